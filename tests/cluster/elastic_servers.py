"""A coordinator whose parameter servers join and leave while it schedules functions that train, and count themselves.

It trains on one batch again and again, so that the loss depends only on the number of updates: `losses_alone` says what
it must be. It ends when there is a file `finish`. ELASTIC tells the folder, if the training is synchronous, and if lost
parameter servers are recovered. It begins with what an earlier run has saved in the folder.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import penstock as tf
from penstock.distribute.synchronous import synchronized

AT_ONCE = 20  # functions
PAUSE = 0.05  # seconds between them, so that a test has few
WORDS = [f"word {n}" for n in range(40)]


class Training:
    """A model with a sharded table, and a function that makes a step. Without a strategy, all is in this process."""

    def __init__(self, strategy: Any = None, sync: bool = False) -> None:
        with strategy.scope() if strategy else nullcontext():
            self.count, self.updates = tf.Variable(0), tf.Variable(0)
            self.rows = tf.Variable(tf.reshape(tf.linspace(-1.0, 1.0, 40 * 16), [40, 16]))
            self.factor = tf.Variable(1.0)
            self.momenta = [tf.Variable(tf.zeros([40, 16])), tf.Variable(0.0)]
        variables = [*_parts(self.rows), self.factor]
        momenta = [part for momentum in self.momenta for part in _parts(momentum)]
        words = tf.constant(WORDS[::3] + WORDS[:5])
        targets = tf.sin(tf.range(19.0))
        numbers = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(40, dtype=tf.int64)), -1
        )

        def apply(gradients: Any) -> None:
            for variable, momentum, gradient in zip(variables, momenta, gradients, strict=True):
                momentum.assign(0.5 * momentum - 1e-4 * tf.convert_to_tensor(gradient))
                variable.assign_add(momentum)
            self.updates.assign_add(1)

        @tf.function
        def step() -> Any:
            self.count.assign_add(1)
            updates = tf.identity(self.updates)
            with tf.GradientTape() as tape:
                rows = tf.nn.embedding_lookup(self.rows, numbers.lookup(words))
                loss = tf.reduce_mean(tf.square(self.factor * tf.reduce_sum(rows, 1) - targets))
            gradients = tape.gradient(loss, variables)
            if sync:
                synchronized(strategy, "step", gradients, variables, apply)
            else:
                apply(gradients)
            return updates, loss

        self.step = step

    def checkpoint(self) -> Any:
        first, second = self.momenta
        return tf.train.Checkpoint(
            count=self.count, updates=self.updates, rows=self.rows, factor=self.factor, first=first, second=second
        )


def _parts(variable: Any) -> list[Any]:
    return list(getattr(variable, "variables", [variable]))


def losses_alone(updates: int) -> list[float]:
    """The losses before each update of a training in this process."""
    training = Training()
    return [float(training.step()[1]) for _ in range(updates)]


def coordinate(resolver: Any, folder: Path, sync: bool, recovery: bool) -> None:
    strategy = tf.distribute.ParameterServerStrategy(
        resolver,
        variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2),
        synchronous=sync,
        ps_recovery=folder / "state" if recovery else None,
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    training = Training(strategy, sync)
    saved = str(folder / "saved")
    if Path(f"{saved}.index").exists():
        training.checkpoint().read(saved).assert_consumed()
    began = int(training.count.numpy())
    devices = [v.device for v in (training.count, training.factor)]
    waiting, ended = [], []
    while not (folder / "finish").exists():
        waiting.append([coordinator.schedule(training.step) for _ in range(AT_ONCE)])
        if len(waiting) > 1:
            ended += [result.fetch() for result in waiting.pop(0)]
            print(f"functions {len(ended)} workers {coordinator.worker_count}", flush=True)
        time.sleep(PAUSE)
    coordinator.join()
    ended += [result.fetch() for results in waiting for result in results]
    assert devices == [v.device for v in (training.count, training.factor)]
    training.checkpoint().write(saved)
    found = {
        "began": began,
        "functions": len(ended),
        "count": int(training.count.numpy()),
        "updates": int(training.updates.numpy()),
        "losses": sorted({(int(updates), float(loss)) for updates, loss in ended}),
    }
    print(f"ends {json.dumps(found)}", flush=True)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        print(f"process {os.getpid()}", flush=True)
        tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        ).join()
    settings = json.loads(os.environ["ELASTIC"])
    coordinate(resolver, Path(settings["folder"]), settings["sync"], settings["recovery"])


if __name__ == "__main__":
    main()
