"""Trains a network to read handwritten digits on a cluster of one parameter server and two synchronous workers.

    penstock launch --ps 1 --workers 2 examples/digits_cluster.py --steps=400

Every process of the cluster runs this file. A parameter server holds the variables and waits for requests. A worker
computes gradients for its own batches; in each step the gradients of all workers are averaged and applied once
(`SyncReplicasOptimizer`). Worker 0 is the chief: it initialises, writes checkpoints and event files, and reports.
"""

import json
import os
import tempfile
import time

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import penstock.v1 as tf
from penstock.data_files import load_digits
from penstock.summary.plot import Plot, save

# The first four flags, or TF_CONFIG, tell a process its place in the cluster. `penstock launch` sets both.
tf.flags.DEFINE_list("ps_hosts", [], "The addresses of the parameter servers: host:port,host:port")
tf.flags.DEFINE_list("worker_hosts", [], "The addresses of the workers.")
tf.flags.DEFINE_string("job_name", None, "What this process is: ps or worker.")
tf.flags.DEFINE_integer("task_index", 0, "Which one of them it is.", lower_bound=0)
tf.flags.DEFINE_integer("steps", 400, "How many steps to train.", lower_bound=1)
tf.flags.DEFINE_integer("batch_size", 50, "How many images each worker takes in a step.", lower_bound=1)
tf.flags.DEFINE_float("learning_rate", 0.002, "The step size of Adam.")
tf.flags.DEFINE_string(
    "train_dir",
    None,
    "Where checkpoints, event files and the plot go; by default a new directory. "
    "Training carries on from the last checkpoint there.",
)
FLAGS = tf.flags.FLAGS


def my_place():
    """The cluster and the task of this process: (cluster, job, index)."""
    if FLAGS.job_name:
        cluster = {"ps": FLAGS.ps_hosts, "worker": FLAGS.worker_hosts}
        return tf.train.ClusterSpec(cluster), FLAGS.job_name, FLAGS.task_index
    if config := json.loads(os.environ.get("TF_CONFIG") or "{}"):
        return tf.train.ClusterSpec(config["cluster"]), config["task"]["type"], config["task"]["index"]
    raise SystemExit("This process belongs to no cluster. Start one: penstock launch examples/digits_cluster.py")


def model(images):
    """The logits of ten classes for images of 8 by 8 pixels."""
    hidden = tf.layers.dense(tf.reshape(images, [-1, 64]), 128, tf.nn.relu, name="hidden")
    return tf.layers.dense(hidden, 10, name="logits")


def batches(images, labels, size, seed):
    """Random batches without end."""
    random = np.random.RandomState(seed)
    while True:
        chosen = random.randint(0, len(images), size)
        yield images[chosen], labels[chosen]


def train(server, cluster, index, train_dir, report):
    """Trains as worker `index`; calls `report(step, loss)` after each step. Returns the number of steps."""
    workers = cluster.num_tasks("worker")
    is_chief = index == 0

    # Variables go to the parameter servers, everything else to this worker.
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        images = tf.placeholder(tf.float32, [None, 8, 8], name="images")
        labels = tf.placeholder(tf.int64, [None], name="labels")
        loss = tf.losses.sparse_softmax_cross_entropy(labels, model(images))
        step = tf.train.get_or_create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(FLAGS.learning_rate), replicas_to_aggregate=workers, total_num_replicas=workers
        )
        train_op = optimizer.minimize(loss, global_step=step)
        tf.summary.scalar("loss", loss)

    # The chief initialises or restores the variables; the others wait for that.
    session = tf.train.MonitoredTrainingSession(
        server.target,
        is_chief,
        checkpoint_dir=train_dir,
        save_summaries_steps=10,
        hooks=[optimizer.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=FLAGS.steps)],
    )
    (train_x, train_y), _ = load_digits()
    done = 0
    with session:
        for x, y in batches(train_x, train_y, FLAGS.batch_size, seed=index):
            if session.should_stop():
                break
            _, now, value = session.run([train_op, step, loss], {images: x, labels: y})
            report(now, value)
            done += 1
    return done


def test_accuracy(train_dir):
    """The share of test digits that the last checkpoint reads correctly. It needs no cluster."""
    _, (test_x, test_y) = load_digits()
    with tf.Graph().as_default(), tf.Session() as session:
        answers = tf.argmax(model(tf.constant(test_x)), 1)
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(train_dir))
        return np.mean(session.run(answers) == test_y)


class Report:
    """Shows the losses of a training: as a bar on a terminal, elsewhere as a line at intervals."""

    def __init__(self):
        self.steps, self.losses = [], []
        # The output of a task goes through the launcher, which tells the task if it writes to a terminal.
        columns = os.environ.get("PENSTOCK_TERMINAL_COLUMNS")
        self._console = Console(width=int(columns), force_terminal=True) if columns else Console()
        state = TextColumn("{task.fields[state]}")
        self._bar = Progress("training", BarColumn(None), state, console=self._console, expand=True)
        self._task = self._bar.add_task("", total=FLAGS.steps, state="starting")
        self._next_line = 0
        self._started, self.seconds = 0.0, 0.0  # starts at the end of the first step

    def __enter__(self):
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, step, loss):
        now = time.perf_counter()
        self._started = self._started or now
        self.seconds = now - self._started
        # If a parameter server is lost, training continues from the last checkpoint, and so does the curve.
        while self.steps and self.steps[-1] > step:
            self.steps.pop()
            self.losses.pop()
        self.steps.append(int(step))
        self.losses.append(float(loss))
        rate = (len(self.steps) - 1) / (self.seconds or 1)
        state = f"step {step}/{FLAGS.steps}  loss {loss:.3f}  {rate:.0f}/s"
        self._bar.update(self._task, completed=int(step), state=state)
        if not self._console.is_terminal and step >= self._next_line:
            print(f"step {step:4d}  loss {loss:.4f}")
            self._next_line = step + FLAGS.steps // 10


def main(_):
    """Runs this process's part."""
    cluster, job, index = my_place()
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()  # never returns: the launcher stops parameter servers when the workers are done
    elif index > 0:
        done = train(server, cluster, index, None, lambda step, loss: None)
        print(f"done, after {done} batches")
    else:
        train_dir = FLAGS.train_dir or tempfile.mkdtemp(prefix="penstock-digits-")
        with Report() as report:
            train(server, cluster, index, train_dir, report)
        plot = os.path.join(train_dir, "loss.png")
        title = f"Handwritten digits, {cluster.num_tasks('worker')} workers in step"
        save(plot, Plot(title, {"loss": (report.steps, report.losses)}, x_label="step", y_label="loss", from_zero=True))
        print(f"{FLAGS.steps} steps in {report.seconds:.1f} s, test accuracy {test_accuracy(train_dir):.1%}")
        print(f"checkpoints and event files: {train_dir} (tensorboard --logdir {train_dir})")
        print(f"the loss as a plot: {plot}")


if __name__ == "__main__":
    tf.app.run()
