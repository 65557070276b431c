"""K-FAC for a network of two layers, by NumPy as the paper writes it, and the same network in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import penstock.v1 as tf

RATE, MOMENTUM, DAMPING = 0.25, 0.5, 0.02  # the first two are the same in float32


def batch(worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, of another number for each worker."""
    random = np.random.RandomState(100 * worker + step)
    size = 5 + worker
    return random.randn(size, 4), random.randn(size, 2)


class Reference:
    """A network of two layers, `[w; b]` each, and K-FAC's state: a Fisher matrix per layer, inverted as a whole."""

    def __init__(
        self, decay: float = 0.9, constraint: float | None = None, cov_every: int = 1, invert_every: int = 1
    ) -> None:
        random = np.random.RandomState(0)
        self.theta = [random.randn(5, 3) / 2, random.randn(4, 2) / 2]
        self.velocity = [np.zeros_like(t) for t in self.theta]
        self.factors = [[np.zeros((n, n)) for n in t.shape] for t in self.theta]
        self.inverses = [np.eye(t.size) for t in self.theta]
        self.decay, self.constraint, self.cov_every, self.invert_every = decay, constraint, cov_every, invert_every
        self.number = self.seen = 0

    def gradients(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """A worker's step until its gradients are there."""
        ones = np.ones((len(x), 1))
        first = np.hstack([x, ones])
        hidden = np.tanh(first @ self.theta[0])
        second = np.hstack([hidden, ones])
        g2 = second @ self.theta[1] - y  # of one example's loss, |output - y|^2 / 2
        g1 = g2 @ self.theta[1][:-1].T * (1 - hidden**2)
        layers = [(first, g1), (second, g2)]
        if self.number % self.cov_every == 0:
            self.seen += 1
            weight = max(1 / self.seen, 1 - self.decay)
            for factors, rows in zip(self.factors, layers, strict=True):
                for i, values in enumerate(rows):
                    batch = np.mean([np.outer(v, v) for v in values], 0)
                    factors[i] = (1 - weight) * factors[i] + weight * batch
        if self.number % self.invert_every == 0:
            for i, (a, g) in enumerate(self.factors):
                pi = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
                damped = [a + pi * np.sqrt(DAMPING) * np.eye(len(a)), g + np.sqrt(DAMPING) / pi * np.eye(len(g))]
                self.inverses[i] = np.linalg.inv(np.kron(*damped))
        self.number += 1
        return [a.T @ g / len(x) for a, g in layers]

    def apply(self, grads: list[np.ndarray]) -> None:
        natural = [(f @ g.ravel()).reshape(g.shape) for f, g in zip(self.inverses, grads, strict=True)]
        if self.constraint is not None:
            length = sum(float((v * g).sum()) for v, g in zip(natural, grads, strict=True))
            factor = min(1.0, np.sqrt(self.constraint / (RATE**2 * length)))
            natural = [factor * v for v in natural]
        for i, v in enumerate(natural):
            self.velocity[i] = MOMENTUM * self.velocity[i] + v
            self.theta[i] = self.theta[i] - RATE * self.velocity[i]


class Network:
    """The same network in the default graph."""

    def __init__(
        self, reference: Reference, use_resource: bool, registered: bool, gate: Callable[..., Any] | None = None
    ) -> None:
        self.x, self.y = tf.placeholder(tf.float64, [None, 4]), tf.placeholder(tf.float64, [None, 2])
        self.step = tf.train.get_or_create_global_step()
        self.weights, self.biases = [], []
        for i, theta in enumerate(reference.theta):
            self.weights.append(tf.Variable(theta[:-1], name=f"w{i}", use_resource=use_resource))
            self.biases.append(tf.Variable(theta[-1], name=f"b{i}", use_resource=use_resource))
        sums = tf.matmul(self.x, self.weights[0]) + self.biases[0]
        with tf.control_dependencies([] if gate is None else [tf.py_func(gate, [sums, self.weights[1]], tf.bool)]):
            hidden = tf.tanh(sums)
        output = tf.nn.bias_add(tf.matmul(hidden, self.weights[1]), self.biases[1])
        self.loss = tf.reduce_mean(tf.reduce_sum(tf.square(output - self.y), 1)) / 2
        collection = None
        if registered:
            collection = tf.contrib.opt.LayerCollection()
            collection.register_fully_connected((self.weights[0], self.biases[0]), self.x, sums)
            collection.register_fully_connected((self.weights[1], self.biases[1]), hidden, output)
        self.rule = tf.contrib.opt.KFACOptimizer(
            RATE,
            reference.decay,
            DAMPING,
            collection,
            momentum=MOMENTUM,
            norm_constraint=reference.constraint,
            cov_update_every=reference.cov_every,
            invert_every=reference.invert_every,
        )

    def theta(self) -> list[Any]:
        return [tf.concat([w, b[None]], 0) for w, b in zip(self.weights, self.biases, strict=True)]

    def slots(self, name: str) -> list[Any]:
        return [self.rule.get_slot(w, name) for w in self.weights]


def agree(found: list[Any], expected: list[Any], at: str) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9, err_msg=at)
