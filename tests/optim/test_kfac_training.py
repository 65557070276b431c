"""K-FAC in training: workers that take turns to invert, other optimizers around it, the digits, bad input."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.kfac_reference import Network, Reference, agree, batch
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf
from penstock.data_files import load_digits

_DEADLINE = 60.0
opt = tf.contrib.opt


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


# A cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[str]]:
    """The addresses of two workers, beside two parameter servers."""
    with leak_check(), contextlib.ExitStack() as stack:
        addresses = free_addresses(4)
        spec = {"ps": addresses[:2], "worker": addresses[2:]}
        servers = []
        for job, task in ((job, task) for job in spec for task in range(2)):
            servers.append(tf.train.Server(spec, job_name=job, task_index=task))
            stack.callback(servers[-1].stop)
        yield [server.target for server in servers[2:]]


@pytest.fixture
def targets(cluster: list[str]) -> list[str]:
    tf.Session.reset(cluster[0])
    return cluster


class Worker:
    """One worker: the network in a graph of its own, its variables on the parameter server."""

    def __init__(self, task: int, reference: Reference, use_resource: bool, servers: int, gate: Any = None) -> None:
        self.task, self.graph = task, tf.Graph()
        place = f"/job:worker/task:{task}"
        setter = tf.train.replica_device_setter(ps_tasks=servers, worker_device=place)
        with self.graph.as_default(), tf.device(setter):
            self.network = Network(reference, use_resource, registered=False, gate=gate)
            self.train = self.network.rule.minimize(self.network.loss, global_step=self.network.step)
            self.theta = self.network.theta()
            places = {v.device for v in tf.global_variables()}
            assert places == {f"/job:ps/task:{i}" for i in range(servers)} and not tf.local_variables()

    def monitored(self, target: str) -> Any:
        with self.graph.as_default():
            return tf.train.MonitoredTrainingSession(target, self.task == 0, save_summaries_steps=None)

    def run(self, session: Any, number: int) -> set[str]:
        """Makes a step. Returns the tasks in which matrices were inverted."""
        x, y = batch(self.task, number)
        options, found = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
        session.run(self.train, {self.network.x: x, self.network.y: y}, options=options, run_metadata=found)
        parts = found.step_stats.dev_stats
        return {part.device for part in parts for node in part.node_stats if "Cholesky" in node.timeline_label}


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_either_worker_inverts_when_it_is_asked(targets: list[str], use_resource: bool) -> None:
    """Workers step in turn, so every value can be predicted."""
    reference = Reference(cov_every=2, invert_every=3)
    workers = [Worker(task, reference, use_resource, servers=1) for task in range(2)]
    steps = workers[0].network.rule._get_non_slot_variable("KFAC_steps", workers[0].graph)
    with workers[0].graph.as_default():
        lost_number = steps.assign_add(1)
    with workers[0].monitored(targets[0]) as chief, workers[1].graph.as_default():
        supervisor = tf.train.Supervisor(is_chief=False, summary_op=None, global_step=workers[1].network.step)
        with supervisor.managed_session(targets[1]) as other:
            sessions, asked = [chief, other], []
            for number in range(14):
                if number == 6:  # a worker takes this number, which asks it to invert, and dies
                    chief.run(lost_number)
                    reference.number += 1
                    continue
                worker = workers[number % 2]
                places = worker.run(sessions[worker.task], number)
                asked += [(number, place.partition("/device")[0]) for place in places]
                reference.apply(reference.gradients(*batch(worker.task, number)))
                agree(other.run(workers[1].theta), reference.theta, f"step {number}")
            chief_place, other_place = (f"/job:worker/replica:0/task:{task}" for task in range(2))
            assert asked == [(0, chief_place), (3, other_place), (9, other_place), (12, chief_place)]


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_a_slow_worker_overwrites_nothing(targets: list[str], use_resource: bool) -> None:
    """One worker computes its gradients, the other makes a whole step meanwhile. Both batches are in the factors."""
    reference = Reference()
    arrived, may_go = threading.Semaphore(0), threading.Semaphore(0)

    def gate(*_: np.ndarray) -> bool:
        arrived.release()
        return may_go.acquire(timeout=_DEADLINE)

    slow = Worker(0, reference, use_resource, 2, gate)
    fast = Worker(1, reference, use_resource, 2)
    with slow.monitored(targets[0]) as chief, fast.monitored(targets[1]) as other:
        for number in range(4):
            thread = threading.Thread(target=slow.run, args=(chief, number), daemon=True)
            thread.start()
            assert arrived.acquire(timeout=_DEADLINE), "the slow worker has not begun"
            start = list(reference.theta)
            fast.run(other, number)
            reference.apply(reference.gradients(*batch(1, number)))
            agree(other.run(fast.theta), reference.theta, f"step {number} of the fast worker")
            may_go.release()
            thread.join(_DEADLINE)
            assert not thread.is_alive(), "the slow worker still waits"
            meanwhile, reference.theta = reference.theta, start
            late = reference.gradients(*batch(0, number))
            reference.theta = meanwhile
            reference.apply(late)
            agree(other.run(fast.theta), reference.theta, f"step {number} of the slow worker")
            agree(other.run(fast.network.slots("A")), [a for a, _ in reference.factors], "A")


# Other optimizers around it


@pytest.mark.parametrize("kind", ["accumulation", "sync"])
def test_other_optimizers_wrap_it(kind: str) -> None:
    """Both apply the mean of two gradients at the same weights, after two batches have gone into the factors."""
    reference = Reference()
    network = Network(reference, use_resource=True, registered=False)
    hooks = []
    if kind == "sync":
        rule = tf.train.SyncReplicasOptimizer(network.rule, replicas_to_aggregate=2, total_num_replicas=1)
        hooks.append(rule.make_session_run_hook(is_chief=True, num_tokens=1))
    else:
        rule = tf.train.GradientAccumulationOptimizer(network.rule, steps=2)
    train, theta = rule.minimize(network.loss, global_step=network.step), network.theta()
    with tf.train.MonitoredSession(hooks=hooks) as session:
        for t in range(3):
            grads = []
            for worker in range(2):
                x, y = batch(worker, t)
                session.run(train, {network.x: x, network.y: y})
                grads.append(reference.gradients(x, y))
            reference.apply([np.mean(pair, 0) for pair in zip(*grads, strict=True)])
            agree(session.run(theta), reference.theta, f"step {t}")


# The digits


def _steps_to(target: float, make: Callable[[Any], Any], rates: list[float], most: int) -> int:
    """The fewest steps, over learning rates, after which the loss of all training images is below the target.

    It looks at the loss after every fourth step.
    """
    (images, labels), _ = load_digits()
    x, y = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
    rate = tf.placeholder(tf.float32, [])
    tf.set_random_seed(1)
    logits = tf.layers.dense(tf.layers.dense(x, 32, tf.tanh), 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = make(rate).minimize(loss)
    fewest = most
    with tf.Session() as session:
        for value in rates:
            order = np.random.RandomState(0)
            session.run(tf.global_variables_initializer())
            for step in range(1, fewest + 1):
                chosen = order.randint(0, len(images), 100)
                session.run(train, {x: images[chosen].reshape(-1, 64), y: labels[chosen], rate: value})
                if step % 4 == 0 and session.run(loss, {x: images.reshape(-1, 64), y: labels}) < target:
                    fewest = step
                    break
    return fewest


def test_digits_take_less_than_half_of_the_steps_of_gradient_descent() -> None:
    rates, most = [0.3, 0.5, 1.0, 2.0], 200
    with tf.Graph().as_default():
        plain = _steps_to(0.1, tf.train.GradientDescentOptimizer, rates, most)
    with tf.Graph().as_default():
        natural = _steps_to(0.1, lambda rate: opt.KFACOptimizer(rate, damping=0.01, momentum=0.0), rates, most)
    assert natural <= plain / 2 and plain < most


# Bad input


def test_errors_name_the_argument() -> None:
    x = tf.placeholder(tf.float32, [None, 4])
    w, b = tf.get_variable("w", [4, 3]), tf.get_variable("b", [3])
    product = tf.matmul(x, w) + b
    loss = tf.reduce_mean(tf.square(product))
    table = tf.get_variable("table", [5, 2])
    kernel = tf.get_variable("kernel", [3, 3, 1, 2])
    images = tf.placeholder(tf.float32, [None, 8, 8, 1])
    outputs = tf.nn.conv2d(images, kernel, [1, 1, 1, 1], "SAME")
    layers = opt.LayerCollection()

    def collection(*args: Any) -> Any:
        made = opt.LayerCollection()
        made.register_fully_connected(*args)
        return made

    def convolution(**changed: Any) -> None:
        given = {"params": kernel, "strides": [1, 1, 1, 1], "padding": "SAME", "inputs": images, "outputs": outputs}
        layers.register_conv2d(**{**given, **changed})

    def rule(**settings: Any) -> Any:
        return opt.KFACOptimizer(0.1, **settings)

    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "invert_every must be .* received 0", lambda: rule(invert_every=0)),
        (ValueError, "invert_every", lambda: rule(invert_every=2.5)),
        (ValueError, "cov_update_every must be .* received 0", lambda: rule(cov_update_every=0)),
        (ValueError, "damping .* received -1", lambda: rule(damping=-1.0)),
        (ValueError, "cov_ema_decay .* received 1.5", lambda: rule(cov_ema_decay=1.5)),
        (ValueError, "norm_constraint", lambda: rule(norm_constraint=0.0)),
        (ValueError, "estimation_mode", lambda: rule(estimation_mode="exact")),
        (TypeError, "layer_collection", lambda: rule(layer_collection=[w])),
        (
            ValueError,
            "estimation_mode='gradients' needs a layer_coll",
            lambda: rule(estimation_mode="gradients").minimize(loss),
        ),
        (ValueError, "loss: '.*' has no layer", lambda: rule().minimize(tf.reduce_sum(tf.square(table)))),
        (ValueError, "loss: '.*' has no layer", lambda: rule().minimize(loss, var_list=[b])),
        (
            ValueError,
            "loss: '.*' has no layer",
            lambda: rule(layer_collection=collection((w, b), x, product)).minimize(loss, var_list=[w]),
        ),
        (
            ValueError,
            "does not depend",
            lambda: rule(layer_collection=collection(w, x, tf.matmul(x, w))).minimize(loss),
        ),
        (ValueError, "call compute_gradients", lambda: rule().apply_gradients([(tf.ones([4, 3]), w)])),
        (ValueError, "inputs must have the shape", lambda: collection((w, b), tf.zeros([2, 5]), product)),
        (ValueError, "outputs must have the shape", lambda: collection((w, b), x, tf.zeros([2, 4]))),
        (ValueError, "inputs must have the shape", lambda: collection((w, b), tf.zeros([4]), product)),
        (ValueError, "the bias in params", lambda: collection((w, table), x, product)),
        (ValueError, "weight in params", lambda: collection((b, b), x, product)),
        (ValueError, "params must be a variable", lambda: collection((product, b), x, product)),
        (ValueError, "params must be a variable", lambda: collection((w, b, b), x, product)),
        (ValueError, "data_format", lambda: convolution(data_format="NCHW")),
        (ValueError, "padding", lambda: convolution(padding="EXPLICIT")),
        (ValueError, "strides", lambda: convolution(strides=[1, 1])),
        (ValueError, "dilations", lambda: convolution(dilations=[1, 0, 1, 1])),
        (ValueError, "inputs must have the shape", lambda: convolution(inputs=tf.zeros([1, 8, 8, 2]))),
        (ValueError, "logits", lambda: layers.register_categorical_predictive_distribution(tf.zeros([3]))),
        (ValueError, "var must be positive", lambda: layers.register_normal_predictive_distribution(product, var=0.0)),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
    made = rule()
    grads = dict((v, g) for g, v in made.compute_gradients(loss) if g is not None)
    with pytest.raises(ValueError, match=r"grads_and_vars has a gradient of 'w:0' but none of \['b:0'\]"):
        made.apply_gradients([(grads[w], w)])


def test_names_of_contrib() -> None:
    assert tf.contrib.kfac.optimizer.KfacOptimizer is opt.KFACOptimizer
    assert tf.contrib.kfac.layer_collection.LayerCollection is opt.LayerCollection
