"""Softmax regression on MNIST, with a Saver: saves, and restores into a second session."""

import os
import sys

import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

FLAGS = tf.app.flags.FLAGS
tf.app.flags.DEFINE_string("data_dir", "MNIST_data", "Where the data are.")
tf.app.flags.DEFINE_string("out", "/tmp/softmax", "Where the checkpoint goes.")


def main(_):
    mnist = input_data.read_data_sets(FLAGS.data_dir, one_hot=True)
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    y_ = tf.placeholder(tf.float32, [None, 10], name="y_")
    with tf.name_scope("softmax"):
        W = tf.Variable(tf.zeros([784, 10]), name="W")
        b = tf.Variable(tf.zeros([10]), name="b")
        y = tf.nn.softmax(tf.matmul(x, W) + b)
    cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.log(y + 1e-10), reduction_indices=[1]))
    train_step = tf.train.GradientDescentOptimizer(0.2).minimize(cross_entropy)
    correct = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
    accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
    saver = tf.train.Saver({"softmax/W": W, "softmax/b": b})
    test = {x: mnist.test.images, y_: mnist.test.labels}

    sess = tf.InteractiveSession()
    tf.global_variables_initializer().run()
    print("loss", cross_entropy.eval(test))
    for _ in range(60):
        batch_xs, batch_ys = mnist.train.next_batch(100)
        train_step.run({x: batch_xs, y_: batch_ys})
    print("loss", cross_entropy.eval(test))
    path = saver.save(sess, os.path.join(FLAGS.out, "model.ckpt"), global_step=60)
    before = accuracy.eval(test)
    sess.close()

    with tf.Session() as again:
        saver.restore(again, tf.train.latest_checkpoint(FLAGS.out))
        assert again.run(accuracy, test) == before > 0.75, (path, before)


if __name__ == "__main__":
    tf.app.run(main=main, argv=[sys.argv[0]])
