"""A two-layer network whose variables are on parameter servers: workers train it in sync or not.

Started once for each task: --job_name=PS or worker, --task_index=0, 1, ...
"""

from __future__ import division, print_function

import math
import os

import tensorflow as tf
from tensorflow.examples.tutorials.mnist import input_data

flags = tf.app.flags
flags.DEFINE_string("data_dir", "MNIST_data", "Where the data are.")
flags.DEFINE_string("out", "/tmp/replicated_mlp", "Where checkpoints and summaries go.")
flags.DEFINE_string("ps_hosts", "localhost:2222", "Addresses of the parameter servers.")
flags.DEFINE_string("worker_hosts", "localhost:2223,localhost:2224", "Addresses of the workers.")
flags.DEFINE_string("job_name", "", "PS or worker.")
flags.DEFINE_integer("task_index", -1, "Which one of the job. Worker 0 is the chief.")
flags.DEFINE_integer("train_steps", 150, "Global steps.")
flags.DEFINE_integer("hidden", 64, "Units of the hidden layer.")
flags.DEFINE_bool("sync", False, "Whether the workers' gradients are put together before they are applied.")
flags.DEFINE_integer("aggregate", None, "How many gradients make a step; by default one of each worker.")
FLAGS = flags.FLAGS


def layer(inputs, units, name):
    size = int(inputs.get_shape()[1])
    with tf.variable_scope(name):
        init = tf.truncated_normal_initializer(stddev=1.0 / math.sqrt(size))
        w = tf.get_variable("w", [size, units], initializer=init)
        b = tf.get_variable("b", [units], initializer=tf.constant_initializer(0.0))
    return tf.nn.xw_plus_b(inputs, w, b)


def main(_):
    if not FLAGS.job_name or FLAGS.task_index < 0:
        raise ValueError("--job_name and --task_index say which task this is")
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"PS": FLAGS.ps_hosts.split(","), "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "PS":
        server.join()

    is_chief = FLAGS.task_index == 0
    mnist = input_data.read_data_sets(FLAGS.data_dir, one_hot=True)
    # No test machine has such a device: allow_soft_placement below chooses another.
    worker_device = "/job:worker/task:%d/gpu:0" % FLAGS.task_index
    with tf.device(
        tf.train.replica_device_setter(worker_device=worker_device, ps_device="/job:PS/cpu:0", cluster=cluster)
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        x = tf.placeholder(tf.float32, [None, 28 * 28], name="x")
        y_ = tf.placeholder(tf.float32, [None, 10], name="y_")
        logits = layer(tf.nn.relu(layer(x, FLAGS.hidden, "hidden")), 10, "softmax")
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=logits))
        opt = tf.train.AdamOptimizer(0.003)
        more = {}
        if FLAGS.sync:
            opt = tf.train.SyncReplicasOptimizer(
                opt, replicas_to_aggregate=FLAGS.aggregate or len(worker_hosts), total_num_replicas=len(worker_hosts)
            )
        train_op = opt.minimize(loss, global_step=global_step)
        if FLAGS.sync:
            more["local_init_op"] = opt.chief_init_op if is_chief else opt.local_step_init_op
            more["ready_for_local_init_op"] = opt.ready_for_local_init_op
            chief_queue_runner = opt.get_chief_queue_runner()
            first_tokens = opt.get_init_tokens_op()
        tf.summary.scalar("loss", loss)
        init_op = tf.global_variables_initializer()

    supervisor = tf.train.Supervisor(
        is_chief=is_chief,
        logdir=os.path.join(FLAGS.out, "log"),
        init_op=init_op,
        summary_op=None,
        recovery_wait_secs=1,
        global_step=global_step,
        **more,
    )
    config = tf.ConfigProto(
        allow_soft_placement=True, device_filters=["/job:PS", "/job:worker/task:%d" % FLAGS.task_index]
    )
    sess = supervisor.prepare_or_wait_for_session(server.target, config=config)
    if FLAGS.sync and is_chief:
        sess.run(first_tokens)
        supervisor.start_queue_runners(sess, [chief_queue_runner])

    validation = {x: mnist.validation.images, y_: mnist.validation.labels}
    print("loss", sess.run(loss, validation))
    local_step, step = 0, 0
    while not supervisor.should_stop() and step < FLAGS.train_steps:
        xs, ys = mnist.train.next_batch(50)
        _, step = sess.run([train_op, global_step], feed_dict={x: xs, y_: ys})
        local_step += 1
    print("loss", sess.run(loss, validation))
    print("worker %d: %d steps of its own, global step %d" % (FLAGS.task_index, local_step, step))


if __name__ == "__main__":
    tf.app.run()
