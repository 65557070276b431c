"""A task of a cluster whose workers share shards. A step counts its records on the parameter server, in `visits`.

A worker makes a step when the test lets it, and prints the records of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gates import turns
from sharded import BATCH, RECORDS, make_shards
from tasks import run_task

import penstock.v1 as tf


def work(args: Any, cluster: dict[str, list[str]], target: str) -> None:
    place = f"/job:worker/task:{args.task}"
    with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=place)):
        tf.train.get_or_create_global_step()
        visits = tf.get_variable("visits", initializer=np.zeros(RECORDS, np.int32), trainable=False, use_resource=True)
        shards = make_shards()
        if args.how == "dataset":
            dataset = shards.dataset(lambda start, stop: tf.data.Dataset.range(start, stop).shuffle(10).batch(BATCH))
            batch = tf.data.make_one_shot_iterator(dataset).get_next()
        else:
            batch = tf.placeholder(tf.int64, [None])
        ones = tf.ones_like(batch, tf.int32)
        counted = tf.group(tf.scatter_add(visits, batch, ones), tf.assign_add(tf.train.get_global_step(), 1))
        with tf.control_dependencies([counted]):
            train = tf.identity(batch)
    turn = turns(args.task).dequeue()
    with tf.train.MonitoredTrainingSession(
        target,
        args.task == 0,
        checkpoint_dir=args.folder if args.task == 0 else None,
        hooks=[shards.make_session_run_hook()],
        save_checkpoint_secs=None,
        save_checkpoint_steps=1,
        save_summaries_steps=None,
        save_summaries_secs=None,
        log_step_count_steps=0,
    ) as session:
        print("joined", flush=True)
        for feeds in _feeds(shards, session, batch) if args.how == "feeds" else iter(dict, None):
            session.run(turn)
            print("trained", *session.run(train, feeds), flush=True)
    print("ended", flush=True)


def _feeds(shards: Any, session: Any, batch: Any) -> Iterator[Any]:
    for shard in shards.taken(session):
        for start in range(shard.start, shard.stop, BATCH):
            yield {batch: np.arange(start, min(start + BATCH, shard.stop))}


if __name__ == "__main__":
    run_task(work, how=str)
