"""TF-Slim: arg_scope, batch_norm, regularizers, a decayed rate and moving averages, through slim.learning.train."""

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim

tf.app.flags.DEFINE_string("out", "/tmp/slim", "Where checkpoints go.")
FLAGS = tf.app.flags.FLAGS


def model(images, is_training):
    with slim.arg_scope(
        [slim.conv2d, slim.fully_connected],
        activation_fn=tf.nn.relu,
        weights_initializer=tf.truncated_normal_initializer(stddev=0.1),
        weights_regularizer=slim.l2_regularizer(0.0005),
        normalizer_fn=slim.batch_norm,
        normalizer_params={"is_training": is_training, "decay": 0.9},
    ):
        net = slim.repeat(images, 2, slim.conv2d, 8, [3, 3], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.flatten(net, scope="flatten")
        net = slim.fully_connected(net, 32, scope="fc1")
        net = slim.dropout(net, 0.8, is_training=is_training)
        return slim.fully_connected(net, 3, activation_fn=None, normalizer_fn=None, scope="logits")


def main(_):
    tf.set_random_seed(0)
    random = np.random.RandomState(0)
    labels = random.randint(0, 3, 96)
    images = random.rand(96, 8, 8, 3) * 0.3
    images[np.arange(96), :, :, labels] += 0.5
    image, label = tf.train.slice_input_producer([tf.constant(images, tf.float32), tf.constant(labels)], shuffle=True)
    image_batch, label_batch = tf.train.batch([image, label], 16, capacity=64)
    logits = model(image_batch, True)
    slim.losses.softmax_cross_entropy(logits, slim.one_hot_encoding(label_batch, 3))
    total_loss = slim.losses.get_total_loss()
    global_step = slim.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.02, global_step, 10, 0.9, staircase=True)
    averages = tf.train.ExponentialMovingAverage(0.99, global_step)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, averages.apply(slim.get_model_variables()))
    train_op = slim.learning.create_train_op(total_loss, tf.train.MomentumOptimizer(rate, 0.9), global_step=global_step)

    def step(sess, op, *args):
        result = slim.learning.train_step(sess, op, *args)
        print("loss", result[0])
        return result

    slim.learning.train(train_op, FLAGS.out, train_step_fn=step, number_of_steps=25, save_interval_secs=600)
    assert tf.train.latest_checkpoint(FLAGS.out)


if __name__ == "__main__":
    tf.app.run()
