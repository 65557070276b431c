"""An LSTM reads digits row by row: dynamic_rnn, dropout and two layers."""

import tensorflow as tf
from tensorflow.contrib import rnn
from tensorflow.examples.tutorials.mnist import input_data

mnist = input_data.read_data_sets("MNIST_data", one_hot=True)
timesteps = num_input = 28
num_hidden, num_classes = 32, 10
tf.set_random_seed(1)

X = tf.placeholder("float", [None, timesteps, num_input])
Y = tf.placeholder("float", [None, num_classes])
keep = tf.placeholder_with_default(1.0, [])
weights = {"out": tf.Variable(tf.random_normal([num_hidden, num_classes]))}
biases = {"out": tf.Variable(tf.random_normal([num_classes]))}


def cell():
    return rnn.DropoutWrapper(rnn.BasicLSTMCell(num_hidden, forget_bias=1.0), output_keep_prob=keep)


stack = rnn.MultiRNNCell([cell() for _ in range(2)])
state = stack.zero_state(tf.shape(X)[0], tf.float32)
outputs, state = tf.nn.dynamic_rnn(stack, X, initial_state=state)
logits = tf.matmul(outputs[:, -1], weights["out"]) + biases["out"]
loss_op = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(logits=logits, labels=Y))
optimizer = tf.train.AdamOptimizer(learning_rate=0.02)
gradients, variables = zip(*optimizer.compute_gradients(loss_op))
gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
train_op = optimizer.apply_gradients(zip(gradients, variables))
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(Y, 1)), tf.float32))

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for step in range(30):
        batch_x, batch_y = mnist.train.next_batch(64)
        batch_x = batch_x.reshape((64, timesteps, num_input))
        sess.run(train_op, feed_dict={X: batch_x, Y: batch_y, keep: 0.9})
        if step % 29 == 0:
            loss, acc = sess.run([loss_op, accuracy], feed_dict={X: batch_x, Y: batch_y})
            print("loss", loss, "accuracy", acc)
