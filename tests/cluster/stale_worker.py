"""A task of a cluster whose workers are in step. A worker makes a step when the test lets it, and prints its number."""

from __future__ import annotations

from typing import Any

from gates import turns
from tasks import run_task

import penstock.v1 as tf


def work(args: Any, cluster: dict[str, list[str]], target: str) -> None:
    task: int = args.task
    place = f"/job:worker/task:{task}"
    with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=place)):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", initializer=[0.0, 0.0])
        base = tf.train.GradientDescentOptimizer(1.0)
        rule = tf.contrib.opt.BoundedStalenessOptimizer(base, 0, len(cluster["worker"]), task, 60.0, name="in_step")
        train = rule.apply_gradients([(tf.constant([-1.0, -1.0]), w)], global_step=step)
    turn = turns(task).dequeue()
    hooks = [rule.make_session_run_hook()]
    with tf.train.MonitoredTrainingSession(
        target, task == 0, hooks=hooks, save_summaries_secs=None, save_summaries_steps=None
    ) as session:
        print("joined", flush=True)
        count = 0
        while session.run(turn):
            session.run(train)
            count += 1
            print(f"step {count}", flush=True)


if __name__ == "__main__":
    run_task(work)
