"""The programs of peers.py: one task of a parameter-server job, with TensorFlow or with penstock.

A worker prints one JSON object with what it measured.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time

BEGAN = time.time()

import numpy as np  # noqa: E402  after the clock

LIBRARY = os.environ.get("LIBRARY", "penstock")
tf = importlib.import_module("penstock.v1" if LIBRARY == "penstock" else "tensorflow.compat.v1")
if LIBRARY != "penstock":
    tf.disable_v2_behavior()


def setter(args, cluster):
    worker = f"/job:worker/task:{args.task_index}/cpu:0"
    return tf.train.replica_device_setter(worker_device=worker, ps_device="/job:ps/cpu:0", cluster=cluster)


def mlp(args, cluster, target):
    """784-100-10 with Adam, batches of 100: global steps per second, and seconds from start to the first step."""
    chief, replicas = args.task_index == 0, cluster.num_tasks("worker")
    random = np.random.RandomState(args.task_index)
    images = random.rand(4000, 784).astype(np.float32)
    labels = np.eye(10, dtype=np.float32)[(images @ np.random.RandomState(1).randn(784, 10)).argmax(1)]
    with tf.device(setter(args, cluster)):
        step = tf.train.get_or_create_global_step()
        x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.float32, [None, 10])
        w1 = tf.Variable(tf.truncated_normal([784, 100], stddev=0.036))
        b1 = tf.Variable(tf.zeros([100]))
        w2 = tf.Variable(tf.truncated_normal([100, 10], stddev=0.1))
        b2 = tf.Variable(tf.zeros([10]))
        logits = tf.nn.xw_plus_b(tf.nn.relu(tf.nn.xw_plus_b(x, w1, b1)), w2, b2)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
        optimizer = tf.train.AdamOptimizer(0.001)
        hooks = []
        if args.sync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas, total_num_replicas=replicas)
            hooks = [optimizer.make_session_run_hook(chief)]
        train = optimizer.minimize(loss, global_step=step)
    filters = ["/job:ps", f"/job:worker/task:{args.task_index}"]
    config = tf.ConfigProto(allow_soft_placement=True, device_filters=filters)
    session = tf.train.MonitoredTrainingSession(
        target,
        chief,
        tempfile.mkdtemp() if chief else None,
        hooks=hooks,
        config=config,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        log_step_count_steps=None,
    )
    done, first, warm = 0, 0.0, (0.0, 0)
    while True:
        at = done * 100 % 3900
        _, now = session.run([train, step], {x: images[at : at + 100], y: labels[at : at + 100]})
        done += 1
        if done == 1:
            first = time.time() - BEGAN
        elif done == 50:
            warm = time.time(), now
        if now >= args.steps:
            break
    rate = (now - warm[1]) / (time.time() - warm[0])
    return {"steps_per_s": round(float(rate), 1), "first_step_s": round(first, 2)}


def bulk(args, cluster, target):
    """A large variable pulled and a gradient as large pushed in each step: gigabytes per second."""
    size = args.mb * (1 << 20) // 4
    with tf.device("/job:ps/task:0"):
        weights = tf.Variable(tf.zeros([size]))
    with tf.device(f"/job:worker/task:{args.task_index}"):
        gradient = weights.read_value() * 0.5 + 1.0
    with tf.device("/job:ps/task:0"):
        train = tf.assign_sub(weights, gradient).op
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        began = time.time()
        for _ in range(10):
            session.run(train)
        return {"gb_per_s": round(10 * 2 * size * 4 / (time.time() - began) / 1e9, 2)}


def embedding(args, cluster, target):
    """A table of a million rows over all parameter servers, 20 lookups per example, Adagrad: examples per second."""
    rows, width, fields, batch = 1_000_000, 32, 20, 1024
    random = np.random.RandomState(args.task_index)
    batches = (random.zipf(1.2, (32, batch, fields)) % rows).astype(np.int64)
    with tf.device(setter(args, cluster)):
        step = tf.train.get_or_create_global_step()
        table = tf.get_variable(
            "table",
            [rows, width],
            initializer=tf.random_normal_initializer(stddev=0.01),
            partitioner=tf.fixed_size_partitioner(cluster.num_tasks("ps")),
        )
        ids, labels = tf.placeholder(tf.int64, [None, fields]), tf.placeholder(tf.float32, [None, 1])
        found = tf.reshape(tf.nn.embedding_lookup(table, ids, partition_strategy="div"), [-1, fields * width])
        hidden = tf.nn.relu(tf.matmul(found, tf.get_variable("w1", [fields * width, 64])))
        logits = tf.matmul(hidden, tf.get_variable("w2", [64, 1]))
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        train = tf.train.AdagradOptimizer(0.05).minimize(loss, global_step=step)
    session = tf.train.MonitoredTrainingSession(target, is_chief=args.task_index == 0)
    began = 0.0
    for i in range(10 + args.steps):
        if i == 10:
            began = time.time()
        chosen = batches[i % 32]
        session.run(train, {ids: chosen, labels: (chosen[:, :1] % 2).astype(np.float32)})
    return {"examples_per_s": round(args.steps * batch / (time.time() - began))}


def deep(args, cluster, target):
    """Many layers of 16 units with Adam: steps per second at the end, when all is compiled."""
    batch = np.random.RandomState(0).rand(32, 16).astype(np.float32)
    with tf.device(setter(args, cluster)):
        x = tf.placeholder(tf.float32, [None, 16])
        hidden = x
        for i in range(args.layers):
            weights = tf.Variable(tf.truncated_normal([16, 16], stddev=0.1, seed=i))
            hidden += tf.tanh(tf.nn.xw_plus_b(hidden, weights, tf.Variable(tf.zeros([16]))))
        train = tf.train.AdamOptimizer(0.001).minimize(tf.reduce_mean(tf.square(hidden)))
    session = tf.train.MonitoredTrainingSession(target, is_chief=args.task_index == 0)
    took = []
    end = time.time() + args.seconds
    while time.time() < end:
        began = time.perf_counter()
        session.run(train, {x: batch})
        took.append(time.perf_counter() - began)
    return {"steps_per_s": round(1 / float(np.median(took[-len(took) // 4 :])), 1)}


PROGRAMS = {"mlp": mlp, "bulk": bulk, "embedding": embedding, "deep": deep}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, required=True)
    parser.add_argument("--job_name", required=True)
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--ps_hosts", required=True)
    parser.add_argument("--worker_hosts", required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--sync", action="store_true")
    args = parser.parse_args()
    cluster = tf.train.ClusterSpec({"ps": args.ps_hosts.split(","), "worker": args.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=args.job_name, task_index=args.task_index)
    if args.job_name == "ps":
        server.join()
    measured = PROGRAMS[args.program](args, cluster, server.target)
    print(json.dumps(measured), flush=True)
    os._exit(0)  # without this TensorFlow's sync replicas wait for two minutes


if __name__ == "__main__":
    main()
