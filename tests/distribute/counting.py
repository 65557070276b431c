"""Counts on parameter servers, by which tests see that each function counts once; and a program of its own that counts.

As a program it is a coordinator that can be killed: it counts to `--total`, and prints what was acknowledged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import penstock as tf


class Counters:
    """A variable on each of two parameter servers, and a function that adds 1 to each, one after the other."""

    def __init__(self, strategy: Any) -> None:
        with strategy.scope():
            self.first = tf.Variable(0)
            self.second = tf.Variable(0)

        @tf.function
        def add() -> Any:
            seen = self.first.assign_add(1)
            self.second.assign_add(tf.minimum(seen.read_value(), 1))
            return seen.read_value()

        self.add = add

    def values(self) -> list[int]:
        return [int(self.first.numpy()), int(self.second.numpy())]


class Gated:
    """A function that adds 1 before a gate and 1 behind it. `arrive` waits for a run that is at the gate."""

    def __init__(self, strategy: Any) -> None:
        with strategy.scope():
            self.before, self.behind = tf.Variable(0), tf.Variable(0)
        with tf.device("/job:ps/task:0"):
            self._arrived, self._gate = tf.queue.FIFOQueue(10, tf.int32), tf.queue.FIFOQueue(10, tf.int32)

        @tf.function
        def step() -> None:
            self.before.assign_add(1)
            self._arrived.enqueue(1)
            self.behind.assign_add(self._gate.dequeue())

        self.step = step

    def arrive(self) -> None:
        self._arrived.dequeue()

    def open(self) -> None:
        self._gate.enqueue(1)

    def values(self) -> list[int]:
        return [int(self.before.numpy()), int(self.behind.numpy())]


def resolver_for(spec: Any) -> Any:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec))


def restart(cluster: Any, name: str) -> None:
    cluster.kill(name)
    cluster.start(name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=json.loads)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--total", type=int)
    args = parser.parse_args()
    strategy = tf.distribute.ParameterServerStrategy(resolver_for(args.cluster), ps_recovery=args.folder / "state")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = tf.Variable(0, name="count")
    print(f"begins at {count.numpy()}", flush=True)

    @tf.function
    def add() -> Any:
        return count.assign_add(1).read_value()

    while int(count.numpy()) < args.total:
        left = args.total - int(count.numpy())
        for result in [coordinator.schedule(add) for _ in range(min(left, 20))]:
            print(f"acknowledged {result.fetch()}", flush=True)
        coordinator.join()
    print(f"ends at {count.numpy()}", flush=True)


if __name__ == "__main__":
    main()
