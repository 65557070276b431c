"""A task of the cluster that `distributed_optimizers.py` starts: it trains on the digits by one method after another.

    python benchmarks/digits_training.py --cluster=JSON --job=worker --task=0 --folder=DIR --methods='["async SGD"]'

For each method a worker prints one line of JSON: its losses, and what the runtime counted between the first step and
the last. The chief adds the test accuracy of what was saved, and how stale the updates on the parameter server were.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from digits_methods import METHODS, Place

import penstock.v1 as tf
from penstock.data_files import load_digits
from penstock.wire.control import ControlClient

HIDDEN = (256, 256)  # units of the hidden layers
BATCH = 32
SEED = 1
PS = "/job:ps/task:0"


def logits_of(images: Any) -> Any:
    """The logits of ten classes for images of 8 by 8 pixels."""
    values = tf.reshape(images, [-1, 64])
    for i, units in enumerate(HIDDEN):
        values = tf.layers.dense(values, units, tf.nn.relu, name=f"hidden{i}")
    return tf.layers.dense(values, 10, name="logits")


def batches(seed: int) -> Iterator[tuple[Any, Any]]:
    """Random batches of the training digits, without end."""
    (images, labels), _ = load_digits()
    random = np.random.RandomState(seed)
    while True:
        chosen = random.randint(0, len(images), BATCH)
        yield images[chosen], labels[chosen]


def barrier(index: int, workers: int) -> Any:
    """An operation that returns when all workers run it."""
    with tf.device(PS):
        queues = [tf.FIFOQueue(-1, [tf.bool], [[]], shared_name=f"arrived{i}") for i in range(workers)]
        told = [queue.enqueue(True) for i, queue in enumerate(queues) if i != index]
        with tf.control_dependencies(told):
            return queues[index].dequeue_many(workers - 1)


def accuracy_of(checkpoint: str) -> float:
    """The share of the test digits that saved weights read correctly."""
    _, (images, labels) = load_digits()
    saved = tf.train.load_checkpoint(checkpoint)
    values = images.reshape(-1, 64)
    for i in range(len(HIDDEN)):
        layer = f"hidden{i}"
        values = np.maximum(values @ saved.get_tensor(f"{layer}/kernel") + saved.get_tensor(f"{layer}/bias"), 0)
    logits = values @ saved.get_tensor("logits/kernel") + saved.get_tensor("logits/bias")
    return float(np.mean(logits.argmax(1) == labels))


class Counters:
    """The runtime's own counters of this worker and of the parameter server."""

    def __init__(self, cluster: dict[str, list[str]], index: int) -> None:
        self._mine, self._ps = ControlClient(cluster["worker"][index]), ControlClient(cluster["ps"][0])

    def traffic(self) -> np.ndarray:
        """The bytes that this worker has sent to the parameter server and received from it."""
        peers = [peer for peer in self._mine.get_status(details=True).peers if "ps" in peer.name]
        return np.array([[peer.bytes_sent, peer.bytes_received] for peer in peers]).sum(0)

    def staleness(self) -> Counter[int]:
        """How many updates of the parameter server came so many updates of others after their step began."""
        return _histogram(self._ps.get_status(details=True).staleness)

    def recorded(self, container: str) -> Counter[int]:
        """The same of an optimizer that keeps a record of its own; empty if it keeps none."""
        resources = self._ps.get_status(details=True).resources
        return sum((_histogram(each.staleness) for each in resources if each.container == container), Counter())

    def close(self) -> None:
        self._mine.close()
        self._ps.close()


def _histogram(staleness: Any) -> Counter[int]:
    return Counter({each.updates: each.count for each in staleness})


def train(name: str, target: str, index: int, args: argparse.Namespace, counters: Counters) -> dict[str, Any]:
    """Trains by a method as worker `index`. Returns what it measured."""
    cluster, method = args.cluster, METHODS[name]
    steps = args.steps * method.longer
    workers, place = len(cluster["worker"]), f"/job:worker/task:{index}"
    setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=place)
    # Each method has a container of its own, so that it finds no variables or queues of those before it.
    container = re.sub(r"\W+", "-", name)
    with tf.Graph().as_default(), tf.container(container):
        with tf.device(setter):
            tf.set_random_seed(SEED)
            getter = method.getter(place) if method.getter else None
            images = tf.placeholder(tf.float32, [None, 8, 8])
            labels = tf.placeholder(tf.int64, [None])
            with tf.variable_scope("", custom_getter=getter):
                loss = tf.losses.sparse_softmax_cross_entropy(labels, logits_of(images))
            at = Place(index, workers, place, steps, tf.train.get_or_create_global_step(), getter)
            rule = method.make(at)
            train_op = rule.minimize(loss, global_step=at.global_step)
        saver = rule.swapping_saver() if hasattr(rule, "swapping_saver") else tf.train.Saver()
        meet = barrier(index, workers)
        session = tf.train.MonitoredTrainingSession(
            target,
            at.is_chief,
            hooks=method.hooks(rule, at),
            log_step_count_steps=None,
            save_summaries_steps=None,
            save_summaries_secs=None,
        )
        with session:
            session.run(meet)
            stale = counters.staleness()
            session.run(meet)
            before, losses = counters.traffic(), []
            for x, y in batches(index):
                if (session.run(at.global_step) if method.shared else len(losses)) >= steps:
                    break
                losses.append(float(session.run([train_op, loss], {images: x, labels: y})[1]))
            sent, received = (counters.traffic() - before).tolist()
            session.run(meet)
            measured = {"method": name, "losses": losses, "sent": sent, "received": received}
            if at.is_chief:
                record = counters.recorded(container) or counters.staleness() - stale
                measured["staleness"] = sorted(record.items())
                path = session.run_step_fn(
                    lambda step_context: saver.save(step_context.session, str(args.folder / "model"))
                )
                measured["accuracy"] = accuracy_of(path)
            session.run(meet)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cluster", type=json.loads, required=True)
    parser.add_argument("--job", choices=["ps", "worker"], required=True)
    parser.add_argument("--task", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints go")
    parser.add_argument("--methods", type=json.loads, default=[], help="the names of the methods, as JSON")
    parser.add_argument("--steps", type=int, default=600, help="how many each worker makes")
    args = parser.parse_args()
    server = tf.train.Server(args.cluster, job_name=args.job, task_index=args.task)
    if args.job == "ps":
        server.join()
    counters = Counters(args.cluster, args.task)
    for name in args.methods:
        print(json.dumps(train(name, server.target, args.task, args, counters)), flush=True)
    counters.close()


if __name__ == "__main__":
    main()
