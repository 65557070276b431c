"""Trains a small network to read handwritten digits, in one process.

python examples/digits.py --steps=600 --batch_size=100 --learning_rate=0.002
"""

import time

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import penstock.v1 as tf
from penstock.data_files import load_digits

tf.flags.DEFINE_integer("steps", 600, "How many batches to train on.", lower_bound=1)
tf.flags.DEFINE_integer("batch_size", 100, "How many images make a batch.", lower_bound=1)
tf.flags.DEFINE_float("learning_rate", 0.002, "The step size of Adam.")
FLAGS = tf.flags.FLAGS


def dense(inputs, units, name):
    """A fully connected layer, without its activation."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs.shape[1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, weights) + bias


def model(images):
    """The logits of ten classes for images of 8 by 8 pixels."""
    hidden = tf.nn.relu(dense(tf.reshape(images, [-1, 64]), 256, "hidden1"))
    hidden = tf.nn.relu(dense(hidden, 128, "hidden2"))
    return dense(hidden, 10, "logits")


def main(_):
    """Trains, then prints how many test images are read correctly."""
    (train_x, train_y), (test_x, test_y) = load_digits()
    tf.set_random_seed(1)
    images = tf.placeholder(tf.float32, [None, 8, 8], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    logits = model(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    train = tf.train.AdamOptimizer(FLAGS.learning_rate).minimize(loss)

    order = np.random.RandomState(0)
    columns = "training", BarColumn(), TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:.0f} steps/s")
    with tf.Session() as session, Progress(*columns, TimeRemainingColumn()) as progress:
        session.run(tf.global_variables_initializer())
        task = progress.add_task("", total=FLAGS.steps, loss=float("nan"), rate=0.0)
        start = time.perf_counter()
        for step in range(1, FLAGS.steps + 1):
            batch = order.randint(0, len(train_x), FLAGS.batch_size)
            _, value = session.run([train, loss], feed_dict={images: train_x[batch], labels: train_y[batch]})
            progress.update(task, completed=step, loss=value, rate=step / (time.perf_counter() - start))
        seconds = time.perf_counter() - start
        correct = session.run(accuracy, feed_dict={images: test_x, labels: test_y})
    print(f"{FLAGS.steps} steps in {seconds:.1f} s, test accuracy {correct:.1%}")


if __name__ == "__main__":
    tf.app.run()
