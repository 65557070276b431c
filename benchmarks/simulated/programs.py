"""The training programs of the simulation: the network of docs/performance.md, its largest variable in shards."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import penstock.v1 as tf

BATCH, INPUTS, CLASSES = 100, 784, 10
OPTIMIZERS = {"sgd": lambda: tf.train.GradientDescentOptimizer(0.1), "adam": lambda: tf.train.AdamOptimizer(0.001)}


@dataclass
class Training:
    """A graph, and the operations that a program runs."""

    graph: Any
    feeds: list[Any]
    loss: Any
    train: Any
    initialize: Any
    chief_initialize: list[Any] = field(default_factory=list)  # of synchronous training, one after the other
    chief_repeats: list[Any] = field(default_factory=list)


def training(
    servers: int, replicas: int = 0, *, hidden: int = 100, optimizer: str = "sgd", worker: int = 0
) -> Training:
    """Builds the graph of one worker. With `replicas` it is synchronous: a step is the mean of so many gradients."""
    cluster = tf.train.ClusterSpec({"ps": ["ps:1"] * servers, "worker": {worker: "worker:1"}})
    setter = tf.train.replica_device_setter(
        worker_device=f"/job:worker/task:{worker}/cpu:0", ps_device="/job:ps/cpu:0", cluster=cluster
    )
    with tf.Graph().as_default() as graph, tf.device(setter):
        tf.set_random_seed(1)
        step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, [BATCH, INPUTS])
        y = tf.placeholder(tf.float32, [BATCH, CLASSES])
        shards = tf.fixed_size_partitioner(servers) if servers > 1 else None
        w1 = tf.get_variable("w1", [INPUTS, hidden], partitioner=shards)
        b1 = tf.get_variable("b1", [hidden], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [hidden, CLASSES])
        b2 = tf.get_variable("b2", [CLASSES], initializer=tf.zeros_initializer())
        logits = tf.matmul(tf.nn.relu(tf.matmul(x, tf.convert_to_tensor(w1)) + b1), w2) + b2
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
        rule = OPTIMIZERS[optimizer]()
        if replicas:
            rule = tf.train.SyncReplicasOptimizer(rule, replicas, total_num_replicas=replicas)
        train = rule.minimize(loss, global_step=step)
        made = Training(graph, [x, y], loss, getattr(train, "op", train), tf.global_variables_initializer())
        if replicas:
            made.chief_initialize = [rule.chief_init_op]
            made.chief_repeats = list(rule.get_chief_queue_runner().enqueue_ops)
    return made


@functools.cache
def batch(worker: int) -> list[np.ndarray]:
    """The images and labels of a worker."""
    random = np.random.RandomState(worker)
    images = random.rand(BATCH, INPUTS).astype(np.float32)
    return [images, np.eye(CLASSES, dtype=np.float32)[random.randint(0, CLASSES, BATCH)]]


def coordinated_step(workers: int, servers: int, hidden: int) -> tuple[Any, Any]:
    """Returns a strategy, and a function that makes the variables and returns the train step for a coordinator."""
    import penstock as tf2  # start-up

    addresses = {"ps": [f"ps{i}:1" for i in range(servers)], "worker": [f"worker{i}:1" for i in range(workers)]}
    resolver = tf2.distribute.cluster_resolver.SimpleClusterResolver(tf2.train.ClusterSpec(addresses))
    partitioner = tf2.distribute.experimental.partitioners.FixedShardsPartitioner(servers)
    strategy = tf2.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    images, labels = batch(0)

    def make() -> Any:
        with strategy.scope():
            w1 = tf2.Variable(np.full([INPUTS, hidden], 0.01, np.float32))
            others = [np.zeros([hidden], "f"), np.full([hidden, CLASSES], 0.01, np.float32), np.zeros([CLASSES], "f")]
        shards = list(getattr(w1, "variables", [w1]))
        for value in others:
            with tf2.device(shards[len(shards) % servers].device):
                shards.append(tf2.Variable(value))

        @tf2.function
        def step() -> Any:
            weights = shards
            with tf2.GradientTape() as tape:
                *parts, b1, w2, b2 = weights
                hidden_layer = tf2.nn.relu(tf2.matmul(images, tf2.concat(parts, 0)) + b1)
                logits = tf2.matmul(hidden_layer, w2) + b2
                loss = tf2.reduce_mean(tf2.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            for gradient, variable in zip(tape.gradient(loss, weights), weights, strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        return step

    return strategy, make
