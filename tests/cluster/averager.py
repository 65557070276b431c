"""A task of a cluster whose workers average. A worker makes a step when the test lets it, and prints its variables."""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from averaging_reference import START, gradient
from gates import turns
from tasks import run_task

import penstock.v1 as tf

opt = tf.contrib.opt


def rule_of(args: argparse.Namespace, workers: int, place: str) -> tuple[Any, Any]:
    """The optimizer, made when the variables are there, and the custom getter for these."""
    base = tf.train.MomentumOptimizer(0.1, args.momentum)
    if args.kind == "model":
        getter = opt.ModelAverageCustomGetter(place)
        return getter, lambda: opt.ModelAverageOptimizer(base, workers, args.task == 0, getter, args.period)
    if args.kind == "elastic":
        getter = opt.ElasticAverageCustomGetter(place)
        return getter, lambda: opt.ElasticAverageOptimizer(
            base, workers, getter, args.period, moving_rate=0.3, synchronous=True
        )
    getter = opt.AGNCustomGetter(place)
    return getter, lambda: opt.AGNOptimizer(base, workers, getter, args.period)


def work(args: argparse.Namespace, cluster: dict[str, list[str]], target: str) -> None:
    is_chief, workers = args.task == 0, len(cluster["worker"])
    place = f"/job:worker/task:{args.task}"
    with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=place)):
        step = tf.train.get_or_create_global_step()
        getter, make = rule_of(args, workers, place)
        with tf.variable_scope("", custom_getter=getter):
            variables = {n: tf.get_variable(n, initializer=value.astype(np.float32)) for n, value in START.items()}
        rule = make()
        fed = {name: tf.placeholder(tf.float32, value.shape) for name, value in START.items()}
        train = rule.apply_gradients([(fed[name], variables[name]) for name in START], global_step=step)
    turn = turns(args.task).dequeue()
    state = {v.op.name: v for v in [*tf.global_variables(), *tf.local_variables()]}
    hook = rule.make_session_run_hook(*(() if args.kind == "model" else (is_chief, args.task)))
    with tf.train.MonitoredTrainingSession(
        target, is_chief, hooks=[hook], save_summaries_secs=None, save_summaries_steps=None
    ) as session:
        count = 0
        while session.run(turn):
            session.run(train, {fed[name]: grad for name, grad in gradient(args.task, count).items()})
            count += 1
            found = {name: np.asarray(value).tolist() for name, value in session.run(state).items()}
            print(f"step {count} {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    run_task(work, kind=str, period=int, momentum=float)
