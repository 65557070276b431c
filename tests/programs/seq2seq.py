"""An encoder and a decoder with attention learn to reverse sequences; then greedy decoding."""

import numpy as np
import tensorflow as tf

seq2seq = tf.contrib.seq2seq
vocabulary, length, batch, units, GO, END = 8, 5, 32, 32, 0, 1
tf.set_random_seed(2)
source = tf.placeholder(tf.int32, [batch, length])
target = tf.placeholder(tf.int32, [batch, length + 1])
lengths = tf.fill([batch], length + 1)
embedding = tf.get_variable("embedding", [vocabulary, 16])

with tf.variable_scope("encoder"):
    cell = tf.nn.rnn_cell.GRUCell(units)
    memory, state = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(embedding, source), dtype=tf.float32)


def decode(helper, reuse=None):
    with tf.variable_scope("decoder", reuse=reuse):
        attention = seq2seq.LuongAttention(units, memory)
        cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(units), attention, attention_layer_size=units)
        initial = cell.zero_state(batch, tf.float32).clone(cell_state=state)
        output = tf.layers.Dense(vocabulary, name="output")
        decoder = seq2seq.BasicDecoder(cell, helper, initial, output_layer=output)
        return seq2seq.dynamic_decode(decoder, maximum_iterations=length + 1)[0]


shifted = tf.concat([tf.fill([batch, 1], GO), target[:, :-1]], axis=1)
logits = decode(seq2seq.TrainingHelper(tf.nn.embedding_lookup(embedding, shifted), lengths)).rnn_output
weights = tf.sequence_mask(lengths, dtype=tf.float32)
loss = seq2seq.sequence_loss(logits, target, weights)
optimizer = tf.train.AdamOptimizer(0.01)
grads = optimizer.compute_gradients(loss)
train = optimizer.apply_gradients([(tf.clip_by_norm(g, 5.0), v) for g, v in grads if g is not None])
sample = decode(seq2seq.GreedyEmbeddingHelper(embedding, tf.fill([batch], GO), END), reuse=True).sample_id

random = np.random.RandomState(0)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(40):
        words = random.randint(2, vocabulary, (batch, length))
        feed = {source: words, target: np.concatenate([words[:, ::-1], np.full([batch, 1], END)], axis=1)}
        value, _ = sess.run([loss, train], feed)
        if step % 39 == 0:
            print("loss", value)
    ids = sess.run(sample, feed)
    assert ids.shape[0] == batch and ids.shape[1] <= length + 1 and ids.max() < vocabulary, ids
