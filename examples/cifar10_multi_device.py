"""Trains the CIFAR-10 model on several devices of one machine: a tower on each; the CPU averages the gradients.

    python examples/cifar10_multi_device.py --towers=2 --steps=200
    python examples/cifar10_multi_device.py --data_dir=/data/cifar-10-batches-bin --train_dir=/tmp/cifar10

Every tower takes its own batch from the queue, so a step uses `towers * batch_size` images. The towers go to the
GPUs, or to as many CPU devices if there are none. Without --data_dir it trains on synthetic images. With --train_dir
it writes checkpoints and summaries there, and continues from the last checkpoint.
"""

import os
import tempfile

import cifar10_model as cifar10

import penstock.v1 as tf

tf.flags.DEFINE_string("data_dir", None, "CIFAR-10's binary files; synthetic images if not given.")
tf.flags.DEFINE_string("train_dir", None, "Where checkpoints and summaries go; nowhere if not given.")
tf.flags.DEFINE_integer("towers", 2, "How many devices to train on.", lower_bound=1)
tf.flags.DEFINE_integer("batch_size", 32, "How many images make the batch of a tower.", lower_bound=1)
tf.flags.DEFINE_integer("steps", 200, "How many steps to train.", lower_bound=1)
FLAGS = tf.flags.FLAGS


def device_of_tower(number):
    """A GPU for each tower if there are any, else a CPU device."""
    return f"/{'gpu' if tf.test.is_gpu_available() else 'cpu'}:{number}"


def average_gradients(towers):
    """[(mean gradient, variable)], given such a list for each tower."""
    averaged = []
    for of_one_variable in zip(*towers, strict=True):
        gradients = [gradient for gradient, _ in of_one_variable]
        averaged.append((tf.reduce_mean(tf.stack(gradients), axis=0), of_one_variable[0][1]))
    return averaged


def build(data_dir):
    """The ops of a step: the training op, and the mean loss of the towers."""
    step = tf.train.get_or_create_global_step()
    epochs = cifar10.EXAMPLES_PER_EPOCH / (FLAGS.batch_size * FLAGS.towers)
    rate = tf.train.exponential_decay(
        cifar10.LEARNING_RATE, step, int(epochs * cifar10.EPOCHS_PER_DECAY), cifar10.DECAY_FACTOR, staircase=True
    )
    optimizer = tf.train.GradientDescentOptimizer(rate)
    batch = cifar10.distorted_inputs(data_dir, FLAGS.batch_size, min_after_dequeue=4 * FLAGS.batch_size)
    batches = tf.contrib.slim.prefetch_queue.prefetch_queue(batch, capacity=2 * FLAGS.towers)

    gradients, losses = [], []
    for number in range(FLAGS.towers):
        with (
            tf.device(device_of_tower(number)),
            tf.variable_scope("", reuse=number > 0),
            tf.name_scope(f"tower_{number}") as scope,
        ):
            images, labels = batches.dequeue()
            losses.append(cifar10.loss(cifar10.inference(images), labels, scope))
            gradients.append(optimizer.compute_gradients(losses[-1]))

    update = optimizer.apply_gradients(average_gradients(gradients), global_step=step)
    with tf.control_dependencies([update]):
        averages = tf.train.ExponentialMovingAverage(cifar10.AVERAGE_DECAY, step)
        train = averages.apply(tf.trainable_variables())
    loss = tf.add_n(losses) / FLAGS.towers
    tf.summary.scalar("loss", loss)
    tf.summary.scalar("learning_rate", rate)
    return train, loss


def main(_):
    """Trains, and prints the loss at intervals."""
    with tempfile.TemporaryDirectory() as scratch, tf.Graph().as_default(), tf.device("/cpu:0"):
        data_dir = FLAGS.data_dir or os.path.join(scratch, "data")
        if FLAGS.data_dir is None:
            cifar10.write_synthetic_data(data_dir)
        train, loss = build(data_dir)
        config = tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": FLAGS.towers})
        hooks = [tf.train.StopAtStepHook(last_step=FLAGS.steps), tf.train.NanTensorHook(loss)]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=FLAGS.train_dir, hooks=hooks, config=config, save_summaries_steps=100
        ) as session:
            step = 0
            while not session.should_stop():
                _, value = session.run([train, loss])
                if step % 10 == 0 or session.should_stop():
                    print(f"step {step}: loss {value:.3f}", flush=True)
                step += 1


if __name__ == "__main__":
    tf.app.run()
