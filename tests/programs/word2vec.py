"""Skip-gram with noise-contrastive estimation, on a toy text."""

import collections
import math
import random

import numpy as np
import tensorflow as tf

words = ("the quick brown fox jumps over the lazy dog and the slow red fox sleeps under the old tree " * 30).split()
count = collections.Counter(words).most_common()
dictionary = {word: i for i, (word, _) in enumerate(count)}
reverse_dictionary = dict(zip(dictionary.values(), dictionary.keys()))
data = [dictionary[word] for word in words]
vocabulary_size, embedding_size, batch_size, num_sampled = len(count), 16, 64, 6
random.seed(0)


def generate_batch():
    centers = [random.randrange(1, len(data) - 1) for _ in range(batch_size)]
    context = [data[i + random.choice([-1, 1])] for i in centers]
    return np.array([data[i] for i in centers], np.int32), np.array(context, np.int32)[:, None]


graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(0)
    train_inputs = tf.placeholder(tf.int32, shape=[batch_size])
    train_labels = tf.placeholder(tf.int32, shape=[batch_size, 1])
    valid_dataset = tf.constant([0, 1, 2], dtype=tf.int32)
    with tf.device("/cpu:0"):
        embeddings = tf.Variable(tf.random_uniform([vocabulary_size, embedding_size], -1.0, 1.0))
        embed = tf.nn.embedding_lookup(embeddings, train_inputs)
        nce_weights = tf.Variable(
            tf.truncated_normal([vocabulary_size, embedding_size], stddev=1.0 / math.sqrt(embedding_size))
        )
        nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=train_labels,
            inputs=embed,
            num_sampled=num_sampled,
            num_classes=vocabulary_size,
        )
    )
    optimizer = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    normalized = embeddings / norm
    similarity = tf.matmul(tf.nn.embedding_lookup(normalized, valid_dataset), normalized, transpose_b=True)
    init = tf.global_variables_initializer()

with tf.Session(graph=graph) as session:
    init.run()
    average = 0.0
    for step in range(1, 201):
        inputs, labels = generate_batch()
        average += session.run([optimizer, loss], feed_dict={train_inputs: inputs, train_labels: labels})[1] / 50
        if step in (50, 200):
            print("loss", average)
        average = 0.0 if step % 50 == 0 else average
    sim = similarity.eval()
    print("nearest to the:", [reverse_dictionary[k] for k in (-sim[0, :]).argsort()[1:4]])
