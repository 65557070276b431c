"""Writes TFRecords, reads them back through queues, and trains under a Supervisor until the epochs are over."""

import os

import numpy as np
import tensorflow as tf

tf.flags.DEFINE_string("out", "/tmp/tfrecords", "Where files go.")
FLAGS = tf.flags.FLAGS


def _bytes(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def write(path, seed):
    random = np.random.RandomState(seed)
    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(200):
            x = random.rand(4).astype(np.float32)
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(x.sum() > 2)]))
            example = tf.train.Example(features=tf.train.Features(feature={"raw": _bytes(x.tobytes()), "label": label}))
            writer.write(example.SerializeToString())


def inputs(files, batch_size, num_epochs):
    filename_queue = tf.train.string_input_producer(files, num_epochs=num_epochs)
    _, serialized = tf.TFRecordReader().read(filename_queue)
    features = tf.parse_single_example(
        serialized, features={"raw": tf.FixedLenFeature([], tf.string), "label": tf.FixedLenFeature([], tf.int64)}
    )
    x = tf.decode_raw(features["raw"], tf.float32)
    x.set_shape([4])
    label = tf.cast(features["label"], tf.int32)
    return tf.train.shuffle_batch([x, label], batch_size, capacity=200, min_after_dequeue=50, num_threads=2)


def main(_):
    files = [os.path.join(FLAGS.out, "part-%d" % i) for i in range(2)]
    for i, path in enumerate(files):
        write(path, i)
    x, label = inputs(files, batch_size=20, num_epochs=3)
    logits = tf.layers.dense(x, 2)
    loss = tf.losses.sparse_softmax_cross_entropy(label, logits)
    tf.summary.scalar("loss", loss)
    global_step = tf.Variable(0, name="global_step", trainable=False)
    train_op = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=global_step)
    sv = tf.train.Supervisor(logdir=os.path.join(FLAGS.out, "log"), save_model_secs=600, global_step=global_step)
    losses = []
    with sv.managed_session() as sess:
        while not sv.should_stop():
            losses.append(sess.run([train_op, loss])[1])
    assert len(losses) in (59, 60), len(losses)  # the supervisor's own summary takes a batch, unless it comes too late
    print("loss", np.mean(losses[:5]))
    print("loss", np.mean(losses[-5:]))


if __name__ == "__main__":
    tf.app.run()
