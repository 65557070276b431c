"""Workers with stale gradients, in sessions of this process: a test says when each reads, and when it pushes."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cluster.staleness_reference import RATE, ROWS, START, goal

import penstock.v1 as tf

DEADLINE = 60.0
names = itertools.count()
opt = tf.contrib.opt


class Worker:
    """One worker: its graph and session. A step reads the variables, waits at a gate, and pushes its gradients."""

    def __init__(self, target: str, task: int, name: str, make: Callable[[str], Any], use_resource: bool = False):
        self.task, self.steps = task, 0
        self.graph = tf.Graph()
        self.target = target
        with self.graph.as_default(), tf.device(f"/job:worker/task:{task}"):
            with tf.device("/job:ps/task:0"), tf.variable_scope(name, use_resource=use_resource):
                self.step = tf.get_variable("step", initializer=np.int64(0), trainable=False)
                self.values = {n: tf.get_variable(n, initializer=v.astype(np.float32)) for n, v in START.items()}
            self.goal = tf.placeholder_with_default(0.0, [])
            seen = {"w": self.values["w"].read_value() + 0.0, "e": tf.gather(self.values["e"], ROWS) + 0.0}
            reached, gate = (
                tf.FIFOQueue(-1, tf.bool, [()], shared_name=f"{name}{w}{task}") for w in ("reached", "gate")
            )
            with tf.control_dependencies(list(seen.values())), tf.control_dependencies([reached.enqueue(True)]):
                opened = gate.dequeue()
            with tf.control_dependencies([opened]):
                grads = {n: value - self.goal for n, value in seen.items()}
            sparse = tf.IndexedSlices(grads["e"], tf.constant(ROWS), tf.constant(START["e"].shape))
            self.rule = make(name)
            pairs = [(grads["w"], self.values["w"]), (sparse, self.values["e"])]
            self.train = self.rule.apply_gradients(pairs, global_step=self.step)
            self.reached, self.open = reached.dequeue(), gate.enqueue(True)
            self.init = tf.group(tf.global_variables_initializer(), tf.local_variables_initializer())
            self.local_init = tf.local_variables_initializer()
            self.join = self.rule.get_init_op()
            self.record = self.rule.staleness_record()
            if isinstance(self.rule, opt.BoundedStalenessOptimizer):
                self.clocks, self.leave = self.rule.clocks(), self.rule._leave()
                self.new_bound = tf.placeholder(tf.int64, [])
                self.switch = self.rule.set_staleness(self.new_bound)
        self.session = tf.Session(target, graph=self.graph)
        self.thread: Any = None

    def run(self, fetches: Any, feed: Any = None) -> Any:
        return self.session.run(fetches, feed, options=tf.RunOptions(timeout_in_ms=int(DEADLINE * 1000)))

    def begin(self) -> None:
        """Starts a step in a thread, and returns when it has read the variables."""

        def run() -> None:
            try:
                self.session.run(self.train, {self.goal: goal(self.task, self.steps)})
            except (tf.errors.OpError, RuntimeError) as error:  # RuntimeError: the session is closed
                thread.error = error  # type: ignore[attr-defined]

        self.thread = thread = threading.Thread(target=run, daemon=True)
        thread.error = None  # type: ignore[attr-defined]
        thread.start()
        self.run(self.reached)

    def push(self) -> None:
        """Lets the step push its gradients."""
        self.run(self.open)

    def returned(self) -> None:
        """Waits until the step has ended."""
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive(), f"worker {self.task} still waits: {self.run(getattr(self, 'clocks', ()))}"
        if self.thread.error is not None:
            raise self.thread.error
        self.steps += 1

    def whole_step(self) -> None:
        self.begin()
        self.push()
        self.returned()


@contextlib.contextmanager
def gated_workers(
    targets: list[str], count: int, make: Callable[[str, int], Any], **settings: Any
) -> Iterator[list[Worker]]:
    """Workers of one model, which `make` makes the optimizers of, by its name and the number of the worker."""
    name = f"model{next(names)}"
    made = [
        Worker(target, task, name, lambda name, task=task: make(name, task), **settings)  # type: ignore[misc]
        for task, target in enumerate(targets[:count])
    ]
    try:
        made[0].run(made[0].init)
        for worker in made:
            worker.run(worker.local_init)
        yield made
    finally:
        for worker in made:
            worker.session.close()
            if worker.thread is not None:
                worker.thread.join(DEADLINE)


def bounded(staleness: Any, count: int, deadline: float = DEADLINE) -> Callable[[str, int], Any]:
    """What makes the optimizers of workers with a bounded staleness."""

    def make(name: str, task: int) -> Any:
        rule = tf.train.GradientDescentOptimizer(RATE)
        return opt.BoundedStalenessOptimizer(rule, staleness, count, task, deadline, name=name)

    return make


def until(check: Callable[[], bool]) -> None:
    """Waits until `check()`."""
    end = time.monotonic() + DEADLINE
    while not check():
        assert time.monotonic() < end
        time.sleep(0.002)


def histogram(rows: Any) -> dict[int, int]:
    """The rows of a record as a dict."""
    return {int(value): int(count) for value, count in rows}
