"""Trains a model that is plain JAX, with variables, an optimizer and a session of penstock.

    python examples/jax_model.py --steps=400
    penstock launch --ps 1 --workers 2 examples/jax_model.py --steps=400

The model below knows nothing of penstock: it is a function from parameters and arrays to arrays. `penstock.from_jax`
makes a node of it, with its gradient. In one process the node runs here. On a cluster the parameters are on the
parameter server; each worker runs the node on its own batches, and its gradients are applied as they come.
"""

import itertools
import json
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

import penstock
import penstock.v1 as tf
from penstock.data_files import load_digits

tf.flags.DEFINE_integer("steps", 400, "How many batches to train on, of all workers together.", lower_bound=1)
tf.flags.DEFINE_integer("batch_size", 64, "How many images make a batch.", lower_bound=1)
tf.flags.DEFINE_float("learning_rate", 0.003, "The step size of Adam.")
FLAGS = tf.flags.FLAGS


# The model, in JAX


def initial_params(seed, sizes=(64, 128, 64, 10)):
    """The weights and biases of dense layers, as a list of dicts."""
    random = np.random.RandomState(seed)
    return [
        {"w": random.normal(0, (2 / n) ** 0.5, [n, m]).astype("f"), "b": np.zeros(m, "f")}
        for n, m in itertools.pairwise(sizes)
    ]


def predict(params, images):
    """The logits of ten classes for images of 8 by 8 pixels."""
    *hidden, last = params
    x = images.reshape(-1, 64)
    for layer in hidden:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss_and_accuracy(params, images, labels):
    """The mean cross-entropy of a batch, and the share of its images that are read correctly."""
    log_probabilities = jax.nn.log_softmax(predict(params, images))
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
    return losses.mean(), (log_probabilities.argmax(1) == labels).mean()


# Its training


def my_place():
    """The target for sessions, the device for nodes, and the number of this worker; a parameter server stays here."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return "", None, 0
    cluster, job, index = tf.train.ClusterSpec(config["cluster"]), config["task"]["type"], config["task"]["index"]
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()  # never returns: the launcher stops parameter servers when the workers are done
    device = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{job}/task:{index}")
    return server.target, device, index


def main(_):
    """Trains; worker 0, or the only process, prints how many test images are read correctly."""
    target, device, index = my_place()
    with tf.device(device):
        params = jax.tree.map_with_path(
            lambda path, value: tf.get_variable(f"layer{path[0].idx}/{path[1].key}", initializer=value),
            initial_params(seed=0),
        )
        images = tf.placeholder(tf.float32, [None, 8, 8], name="images")
        labels = tf.placeholder(tf.int32, [None], name="labels")
        loss, accuracy = penstock.from_jax(loss_and_accuracy)(params, images, labels)
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(FLAGS.learning_rate).minimize(loss, global_step=step)

    (train_x, train_y), (test_x, test_y) = load_digits()
    order = np.random.RandomState(index)
    now, next_line, start = 0, 0, time.perf_counter()
    with tf.train.MonitoredTrainingSession(target, is_chief=index == 0) as session:
        while now < FLAGS.steps:
            batch = order.randint(0, len(train_x), FLAGS.batch_size)
            _, value, now = session.run([train, loss, step], {images: train_x[batch], labels: train_y[batch]})
            if now >= next_line:
                print(f"step {now:4d}  loss {value:.4f}")
                next_line = now + FLAGS.steps // 10
        seconds = time.perf_counter() - start
        if index == 0:
            correct = session.run(accuracy, {images: test_x, labels: test_y})
            print(f"{now} steps in {seconds:.1f} s, test accuracy {correct:.1%}")


if __name__ == "__main__":
    tf.app.run()
