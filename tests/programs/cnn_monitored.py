"""A convolutional network of tf.layers under a MonitoredTrainingSession, with hooks."""

import argparse

import numpy as np
import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

parser = argparse.ArgumentParser()
parser.add_argument("--out")
args, _ = parser.parse_known_args()
tf.logging.set_verbosity(tf.logging.INFO)
tf.set_random_seed(1)


def cnn(images, training):
    net = tf.reshape(images, [-1, 28, 28, 1])
    net = tf.layers.conv2d(net, filters=8, kernel_size=[5, 5], padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, pool_size=[2, 2], strides=2)
    net = tf.layers.conv2d(net, 16, 5, activation=tf.nn.relu, name="conv2")
    net = tf.layers.batch_normalization(net, training=training)
    net = tf.layers.max_pooling2d(net, 2, 2)
    net = tf.layers.dense(tf.layers.flatten(net), 64, tf.nn.relu)
    net = tf.layers.dropout(net, rate=0.4, training=training)
    return tf.layers.dense(net, units=10)


class Losses(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs(loss)

    def after_run(self, run_context, run_values):
        print("loss", run_values.results)


mnist = input_data.read_data_sets("MNIST_data")
images = tf.placeholder(tf.float32, [None, 784])
labels = tf.placeholder(tf.int32, [None])
logits = cnn(images, training=True)
loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
global_step = tf.train.get_or_create_global_step()
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = tf.train.AdamOptimizer(0.005).minimize(loss, global_step=global_step)
tf.summary.scalar("loss", loss)
hooks = [
    tf.train.StopAtStepHook(last_step=15),
    tf.train.LoggingTensorHook({"loss": loss, "step": global_step}, every_n_iter=5),
    tf.train.NanTensorHook(loss),
    Losses(),
]
with tf.train.MonitoredTrainingSession(
    checkpoint_dir=args.out, hooks=hooks, save_checkpoint_secs=600, save_summaries_steps=5, log_step_count_steps=5
) as sess:
    while not sess.should_stop():
        x, y = mnist.train.next_batch(50)
        sess.run(train_op, feed_dict={images: x, labels: y.astype(np.int32)})
assert tf.train.latest_checkpoint(args.out).endswith("model.ckpt-15")
