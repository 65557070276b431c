"""An autoencoder that writes scalars, histograms, images and run metadata for TensorBoard."""

import glob
import os

import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

flags = tf.app.flags
flags.DEFINE_string("out", "/tmp/autoencoder", "Where the events go.")
flags.DEFINE_float("learning_rate", 0.01, "The step size.")
FLAGS = flags.FLAGS
tf.set_random_seed(1)


def variable_summaries(var):
    with tf.name_scope("summaries"):
        mean = tf.reduce_mean(var)
        tf.summary.scalar("mean", mean)
        with tf.name_scope("stddev"):
            stddev = tf.sqrt(tf.reduce_mean(tf.square(var - mean)))
        tf.summary.scalar("stddev", stddev)
        tf.summary.scalar("max", tf.reduce_max(var))
        tf.summary.histogram("histogram", var)


def layer(inputs, units, name, act=tf.nn.sigmoid):
    with tf.name_scope(name):
        W = tf.Variable(tf.truncated_normal([inputs.get_shape()[1].value, units], stddev=0.1), name="W")
        variable_summaries(W)
        b = tf.Variable(tf.constant(0.0, shape=[units]), name="b")
        return act(tf.nn.xw_plus_b(inputs, W, b), name="activation")


def main(unused_argv):
    mnist = input_data.read_data_sets("MNIST_data")
    x = tf.placeholder(tf.float32, [None, 784], name="x-input")
    decoded = layer(layer(x, 64, "encoder"), 784, "decoder")
    loss = tf.reduce_mean(tf.pow(x - decoded, 2))
    tf.summary.scalar("loss", loss)
    tf.summary.image("decoded", tf.reshape(decoded, [-1, 28, 28, 1]), 3)
    train = tf.train.AdamOptimizer(FLAGS.learning_rate).minimize(loss)
    merged = tf.summary.merge_all()
    with tf.Session() as sess:
        writer = tf.summary.FileWriter(os.path.join(FLAGS.out, "train"), sess.graph)
        sess.run(tf.global_variables_initializer())
        for i in range(30):
            batch, _ = mnist.train.next_batch(64)
            if i in (0, 29):
                options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
                metadata = tf.RunMetadata()
                summary, value, _ = sess.run([merged, loss, train], {x: batch}, options=options, run_metadata=metadata)
                writer.add_run_metadata(metadata, "step%03d" % i)
                writer.add_summary(summary, i)
                print("loss", value)
            else:
                sess.run(train, {x: batch})
        writer.close()
    (path,) = glob.glob(os.path.join(FLAGS.out, "train", "events*"))
    tags = {value.tag for event in tf.train.summary_iterator(path) for value in event.summary.value}
    assert {"loss", "decoded/image/0", "encoder/summaries/histogram"} <= tags, tags


if __name__ == "__main__":
    tf.app.run()
