"""A task of a cluster whose workers compress gradients. A worker counts the bytes that each method sends."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from gates import turns
from tasks import run_task

import penstock.v1 as tf
from penstock.wire.control import ControlClient

SHAPE = (2000, 100)
STEPS = 5
rules = tf.train
METHODS = {
    "dense": lambda opt: opt,
    "deep": lambda opt: rules.DeepGradientCompressionOptimizer(opt, sparsity=0.999),
    "one_bit": rules.OneBitOptimizer,
    "bfloat16": lambda opt: rules.WireFormatOptimizer(opt, tf.bfloat16),
    "float16": lambda opt: rules.WireFormatOptimizer(opt, tf.float16),
}


def model(method: str, task: int, step: Any) -> tuple[Any, Any]:
    """The train op of a method, and its loss."""
    random = np.random.RandomState(task)
    with tf.variable_scope(method):
        w = tf.get_variable("w", SHAPE, initializer=tf.zeros_initializer())
    x = tf.constant(random.randn(4, SHAPE[0]).astype("f"))
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - random.randn(4, SHAPE[1]).astype("f")))
    rule = METHODS[method](tf.train.GradientDescentOptimizer(0.01))
    return rule.minimize(loss, global_step=step), loss


def work(args: Any, cluster: dict[str, list[str]], target: str) -> None:
    task: int = args.task
    place = f"/job:worker/task:{task}"
    with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=place)):
        step = tf.train.get_or_create_global_step()
        models = {method: model(method, task, step) for method in METHODS}
    with tf.device(place):
        residual = tf.add_n([tf.reduce_sum(tf.abs(v)) for v in tf.local_variables()])
    turn = turns(task).dequeue()
    client = ControlClient(cluster["worker"][task])

    def sent() -> int:
        (peer,) = client.get_status(details=True).peers
        return int(peer.bytes_sent)

    with tf.train.MonitoredTrainingSession(
        target, task == 0, save_summaries_secs=None, save_summaries_steps=None
    ) as session:
        begun, held = session.run([step, residual])
        print(f"begins at {begun} with {held}", flush=True)
        bytes_of, losses = {}, {}
        for method, (train, loss) in models.items():
            first = session.run([train, loss])[1]
            before = sent()
            for _ in range(STEPS):
                last = session.run([train, loss])[1]
            bytes_of[method] = (sent() - before) / STEPS
            losses[method] = [float(first), float(last)]
        print(f"bytes {json.dumps(bytes_of)}", flush=True)
        print(f"losses {json.dumps(losses)}", flush=True)
        print(f"ends with {session.run(residual)}", flush=True)
        session.run(turn)
    client.close()


if __name__ == "__main__":
    run_task(work)
