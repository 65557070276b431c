"""Each rule of tf.contrib.opt beside NumPy: the steps as the papers write them, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

_STEPS = 12
_START = np.random.RandomState(0).randn(5, 3)
_GRADS = np.random.RandomState(1).randn(_STEPS, 5, 3)
_INDICES = np.random.RandomState(2).randint(0, 4, [_STEPS, 3])  # with duplicates; row 4 has no gradient
_ROWS = np.random.RandomState(3).randn(_STEPS, 3, 3)

Step = Callable[..., np.ndarray]
opt = tf.contrib.opt


def _dense_of(t: int) -> np.ndarray:
    """The sparse gradient of step t as a dense one."""
    dense = np.zeros_like(_START)
    np.add.at(dense, _INDICES[t], _ROWS[t])
    return dense


def _used(t: int) -> np.ndarray:
    return np.isin(np.arange(len(_START)), _INDICES[t])[:, None]


@pytest.fixture(params=[False, True], ids=["ref", "resource"])
def use_resource(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _train(make: Callable[[Any], Any], sparse: bool, use_resource: bool, steps: int = _STEPS) -> list[np.ndarray]:
    """The variable after each step of the rule."""
    w = tf.Variable(_START, name="w", use_resource=use_resource)
    count = tf.train.get_or_create_global_step()
    values, indices = tf.placeholder(tf.float64, [None, 3]), tf.placeholder(tf.int64, [None])
    grad = tf.IndexedSlices(values, indices, tf.constant([5, 3])) if sparse else tf.ensure_shape(values, [5, 3])
    train = make(count).apply_gradients([(grad, w)], global_step=count)
    found = []
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        for t in range(steps):
            session.run(train, {values: _ROWS[t], indices: _INDICES[t]} if sparse else {values: _GRADS[t]})
            found.append(session.run(w))
    return found


def _check(make: Callable[[Any], Any], step: Callable[..., np.ndarray], sparse: bool, use_resource: bool) -> None:
    """`step(w, g, t, used)` is the variable after step t, from 1."""
    w = _START.copy()
    for t, found in enumerate(_train(make, sparse, use_resource)):
        used = _used(t) if sparse else np.ones((len(w), 1), bool)
        w = step(w, _dense_of(t) if sparse else _GRADS[t], t + 1, used)
        np.testing.assert_allclose(found, w, rtol=1e-6, atol=1e-7, err_msg=f"step {t}")


class _Adam:
    """Adam's moments; `lazy` leaves rows without a gradient as they are."""

    def __init__(self, beta1: float = 0.8, beta2: float = 0.9, lazy: bool = False) -> None:
        self.beta1, self.beta2, self.lazy = beta1, beta2, lazy
        self.m = self.v = np.zeros_like(_START)

    def move(self, g: np.ndarray, t: int, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The moments with their bias corrected."""
        where = used if self.lazy else True
        self.m = np.where(where, self.beta1 * self.m + (1 - self.beta1) * g, self.m)
        self.v = np.where(where, self.beta2 * self.v + (1 - self.beta2) * g * g, self.v)
        return self.m / (1 - self.beta1**t), self.v / (1 - self.beta2**t)


@pytest.mark.parametrize("name", ["LazyAdamOptimizer", "LazyAdamGSOptimizer"])
@pytest.mark.parametrize("sparse", [False, True])
def test_lazy_adam(name: str, sparse: bool, use_resource: bool) -> None:
    adam = _Adam(lazy=True)

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, v = adam.move(g, t, used)
        return np.where(used, w - 0.1 * m / (np.sqrt(v) + 1e-3 / np.sqrt(1 - 0.9**t)), w)

    def make(count: Any) -> Any:
        given = {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}
        return getattr(opt, name)(**given, **({"global_step": count} if "GS" in name else {}))

    _check(make, step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_adam_gs(sparse: bool, use_resource: bool) -> None:
    adam = _Adam()

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, v = adam.move(g, t, used)
        return w - 0.1 * m / (np.sqrt(v) + 1e-3 / np.sqrt(1 - 0.9**t))

    _check(lambda count: opt.AdamGSOptimizer(count, 0.1, 0.8, 0.9, 1e-3), step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_adamax(sparse: bool, use_resource: bool) -> None:
    state = {"m": np.zeros_like(_START), "u": np.zeros_like(_START)}

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, u = 0.8 * state["m"] + 0.2 * g, np.maximum(0.9 * state["u"], np.abs(g))
        state.update(m=np.where(used, m, state["m"]), u=np.where(used, u, state["u"]))
        return np.where(used, w - 0.1 / (1 - 0.8**t) * m / (u + 1e-8), w)

    _check(lambda _: opt.AdaMaxOptimizer(0.1, 0.8, 0.9), step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_nadam(sparse: bool, use_resource: bool) -> None:
    adam = _Adam()

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, v = adam.move(g, t, used)
        ahead = 0.8 * m + 0.2 * g / (1 - 0.8**t)
        return np.where(used, w - 0.1 * ahead / (np.sqrt(v) + 1e-8 / np.sqrt(1 - 0.9**t)), w)

    _check(lambda _: opt.NadamOptimizer(0.1, 0.8, 0.9), step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_amsgrad(sparse: bool, use_resource: bool) -> None:
    adam, largest = _Adam(), [np.zeros_like(_START)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        adam.move(g, t, used)
        largest[0] = np.maximum(largest[0], adam.v)
        rate = 0.1 * np.sqrt(1 - 0.9**t) / (1 - 0.8**t)
        return w - rate * adam.m / (np.sqrt(largest[0]) + 1e-8)

    _check(lambda _: opt.AMSGradOptimizer(0.1, 0.8, 0.9), step, sparse, use_resource)


_DECAYS: dict[str, tuple[Any, Callable[[int], float]]] = {
    "none": (None, lambda s: 1.0),
    "linear": (opt.get_linear_decay_fn(8), lambda s: max(0.0, 1 - s / 8)),
    "cosine": (opt.get_cosine_decay_fn(8, 1), lambda s: 0.5 * (1 + np.cos(2 * np.pi * min(s, 8) / 8))),
    "restart": (opt.get_restart_decay_fn(8, 2, 2), lambda s: 0.5 * (1 + np.cos(np.pi * (2 * s % 8) / 8)) * (s < 8)),
}


@pytest.mark.parametrize("decay", _DECAYS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_signs(power: bool, sparse: bool, decay: str, use_resource: bool) -> None:
    function, value = _DECAYS[decay]
    mean = [np.zeros_like(_START)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        mean[0] = 0.9 * mean[0] + 0.1 * g
        agreement = value(t - 1) * np.sign(g) * np.sign(mean[0])
        return w - 0.1 * (2.0**agreement if power else 1.5 + agreement) * g

    def make(_: Any) -> Any:
        kind, strength = (opt.PowerSignOptimizer, 2.0) if power else (opt.AddSignOptimizer, 1.5)
        return kind(0.1, strength, sign_decay_fn=function)

    _check(make, step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_decoupled_weight_decay(sparse: bool, use_resource: bool) -> None:
    adam, momentum = _Adam(), [np.zeros_like(_START)]

    def adamw(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, v = adam.move(g, t, used)
        return w - np.where(used, 0.02 * w, 0) - 0.1 * m / (np.sqrt(v) + 1e-8 / np.sqrt(1 - 0.9**t))

    def momentumw(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        momentum[0] = np.where(used, 0.9 * momentum[0] + g, momentum[0])
        return w - np.where(used, 0.02 * w + 0.1 * momentum[0], 0)

    # The rule's own sparse form bypasses `_apply_sparse`; the decay must not.
    sgdw = opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)
    _check(lambda _: opt.AdamWOptimizer(0.02, 0.1, 0.8, 0.9), adamw, sparse, use_resource)
    with tf.Graph().as_default():
        _check(lambda _: opt.MomentumWOptimizer(lambda: 0.02, 0.1, 0.9), momentumw, sparse, use_resource)
    with tf.Graph().as_default():
        _check(
            lambda _: sgdw(0.02, learning_rate=0.1),
            lambda w, g, t, used: w - np.where(used, 0.02 * w, 0) - 0.1 * g,
            sparse,
            use_resource,
        )


def test_minimize_decays_only_the_given_variables(use_resource: bool) -> None:
    kept, decayed = (tf.Variable(2.0, use_resource=use_resource) for _ in range(2))
    rule = opt.extend_with_decoupled_weight_decay(tf.train.GradientDescentOptimizer)(0.5, 0.0)
    train = rule.minimize(kept * decayed, decay_var_list=[decayed])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run([kept, decayed]) == [2.0, 1.0]


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars(nesterov: bool, use_resource: bool) -> None:
    momentum = [np.zeros_like(_START)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        rate = 2.0 * 0.1 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.01 * np.linalg.norm(w))
        pull = rate * (g + 0.01 * w)
        momentum[0] = 0.9 * momentum[0] + pull
        return w - (pull + 0.9 * momentum[0] if nesterov else momentum[0])

    _check(lambda _: opt.LARSOptimizer(2.0, 0.9, 0.01, 0.1, use_nesterov=nesterov), step, False, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("skipped", [False, True])
def test_lamb(skipped: bool, sparse: bool, use_resource: bool) -> None:
    adam = _Adam()

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        m, v = adam.move(g, t, used)
        direction = m / (np.sqrt(v) + 1e-6)
        if not skipped:
            direction = direction + 0.02 * w
            direction *= np.linalg.norm(w) / np.linalg.norm(direction)
        return w - 0.1 * direction

    skip_list = ["w"] if skipped else ["bias"]
    _check(lambda _: opt.LAMBOptimizer(0.1, 0.02, 0.8, 0.9, skip_list=skip_list), step, sparse, use_resource)


@pytest.mark.parametrize("kind", ["LARSOptimizer", "LAMBOptimizer"])
def test_layers_of_zeros_move_and_stay_finite(kind: str) -> None:
    w, still = tf.Variable([0.0, 0.0]), tf.Variable([1.0, 2.0])
    train = getattr(opt, kind)(0.1).apply_gradients([(tf.constant([1.0, -1.0]), w), (tf.constant([0.0, 0.0]), still)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        np.testing.assert_allclose(session.run(w), [-0.1, 0.1], rtol=1e-4)
        np.testing.assert_allclose(session.run(still), [1.0, 2.0], rtol=1e-4)


def _root(matrix: np.ndarray, power: float, epsilon: float = 1e-2) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix / len(matrix) + epsilon * np.eye(len(matrix)))
    return (vectors * values**power) @ vectors.T


@pytest.mark.parametrize("iterative", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_shampoo(sparse: bool, iterative: bool, use_resource: bool) -> None:
    left, right, mean = [np.zeros([5, 5])], [np.zeros([3, 3])], [np.zeros_like(_START)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        left[0] = 0.9 * left[0] + g @ g.T
        right[0] = 0.9 * right[0] + g.T @ g
        mean[0] = 0.5 * mean[0] + 0.5 * g
        return w - 0.1 * _root(left[0], -0.25) @ mean[0] @ _root(right[0], -0.25)

    def make(_: Any) -> Any:
        settings = {"gbar_decay": 0.5, "gbar_weight": 0.5, "mat_gbar_decay": 0.9, "epsilon": 1e-2}
        return opt.ShampooOptimizer(learning_rate=0.1, use_iterative_root=iterative, **settings)

    _check(make, step, sparse, use_resource)


@pytest.mark.parametrize("sparse", [False, True])
def test_shampoo_of_long_dimensions_keeps_diagonals(sparse: bool, use_resource: bool) -> None:
    left, right = [np.zeros([5, 1])], [np.zeros([3, 3])]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        left[0] = left[0] + (g * g).sum(1, keepdims=True)
        right[0] = right[0] + g.T @ g
        return w - 0.1 * (left[0] + 1e-2) ** -0.25 * g @ _root(right[0], -0.25)

    make = lambda _: opt.ShampooOptimizer(learning_rate=0.1, max_matrix_size=4, epsilon=1e-2)  # noqa: E731
    _check(make, step, sparse, use_resource)


def test_shampoo_intervals_and_settings_that_depend_on_the_step(use_resource: bool) -> None:
    g0, powers = [np.zeros([5, 5]), np.zeros([3, 3])], [np.eye(5), np.eye(3)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        if t % 2 == 0:
            g0[0], g0[1] = g0[0] + 2 * g @ g.T, g0[1] + 2 * g.T @ g
        if t % 3 == 0:
            powers[:] = [_root(each, -0.25) for each in g0]
        return w - 0.5 / t * powers[0] @ g @ powers[1]

    def make(count: Any) -> Any:
        return opt.ShampooOptimizer(
            count, learning_rate=lambda t: 0.5 / t, svd_interval=3, precond_update_interval=2, epsilon=1e-2
        )

    _check(make, step, False, use_resource)


def test_shampoo_of_three_dimensions() -> None:
    start, grads = np.random.RandomState(4).randn(2, 3, 4), np.random.RandomState(5).randn(3, 2, 3, 4)
    w, grad = tf.Variable(start), tf.placeholder(tf.float64, [2, 3, 4])
    train = opt.ShampooOptimizer(learning_rate=0.1, epsilon=1e-2).apply_gradients([(grad, w)])
    sums = [np.zeros([n, n]) for n in start.shape]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for g in grads:
            session.run(train, {grad: g})
            products = [np.einsum(f, g, g) for f in ("abc,xbc->ax", "abc,ayc->by", "abc,abz->cz")]
            sums = [total + product for total, product in zip(sums, products, strict=True)]
            start = start - 0.1 * np.einsum("abc,ax,by,cz->xyz", g, *(_root(each, -0.5 / 3) for each in sums))
            np.testing.assert_allclose(session.run(w), start, rtol=1e-6)


def _ggt(window: list[np.ndarray], mean: np.ndarray, eps: float, svd_eps: float, sigma_eps: float) -> np.ndarray:
    columns = np.stack(window, 1) / np.sqrt(min(len([c for c in window if c.any()]), len(window)))
    vectors, squares, _ = np.linalg.svd(columns.T @ columns + svd_eps * np.eye(len(window)))
    roots = np.sqrt(squares)
    spread = columns @ vectors
    inside = spread @ ((roots + sigma_eps) ** -3 * (spread.T @ mean))
    outside = (mean - spread @ (spread.T @ mean / squares)) / roots.min()
    return inside + (outside if roots.min() > eps else 0)


@pytest.mark.parametrize("eps", [1e-4, 1e-2])
@pytest.mark.parametrize("sparse", [False, True])
def test_ggt(sparse: bool, eps: float, use_resource: bool) -> None:
    window, mean = [np.zeros(15)] * 4, [np.zeros(15)]

    def step(w: np.ndarray, g: np.ndarray, t: int, used: np.ndarray) -> np.ndarray:
        mean[0] = 0.8 * mean[0] + 0.2 * g.ravel()
        window[(t - 1) % 4] = mean[0]
        return w - 0.01 * _ggt(window, mean[0], eps, 1e-6, 1e-2).reshape(w.shape)

    _check(lambda _: opt.GGTOptimizer(0.01, 0.8, window=4, eps=eps), step, sparse, use_resource)


def test_ggt_steps_by_the_inverse_root_of_the_full_matrix() -> None:
    """In the span of the window the step is the paper's: the pseudo-inverse of (G G^T) ** (1/2) times the mean."""
    w, grad = tf.Variable(np.zeros(6)), tf.placeholder(tf.float64, [6])
    rule = opt.GGTOptimizer(1.0, 0.0, window=3, eps=1e9, svd_eps=1e-12, sigma_eps=0.0)
    train = rule.apply_gradients([(grad, w)])
    grads = np.random.RandomState(6).randn(3, 6)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for g in grads:
            before = session.run(w)
            session.run(train, {grad: g})
        full = grads.T @ grads / 3
        values, vectors = np.linalg.eigh(full)
        inverse_root = (vectors[:, 3:] / np.sqrt(values[3:])) @ vectors[:, 3:].T
        np.testing.assert_allclose(before - session.run(w), inverse_root @ grads[-1], rtol=1e-5)


def test_ggt_moves_several_variables_as_one_vector() -> None:
    a, b = tf.Variable(np.zeros([2, 2]), name="a"), tf.Variable(np.zeros(2), name="b")
    whole = tf.Variable(np.zeros(6), name="c")
    g = np.random.RandomState(7).randn(6)
    parts = [(tf.constant(g[4:]), b), (tf.constant(g[:4].reshape(2, 2)), a)]  # sorted by name, not by order
    together = [opt.GGTOptimizer(0.1).apply_gradients(pairs) for pairs in (parts, [(tf.constant(g), whole)])]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(together)
        found = np.concatenate([session.run(a).ravel(), session.run(b)])
        np.testing.assert_allclose(found, session.run(whole), rtol=1e-6)
        assert np.abs(found).max() > 0


@pytest.mark.parametrize("sparse", [False, True])
def test_reg_adagrad(sparse: bool, use_resource: bool) -> None:
    start = _START.astype(np.float32)
    w = tf.Variable(start, use_resource=use_resource)
    loss = tf.reduce_sum(tf.square(tf.gather(w, [0, 2]) if sparse else w))
    rule = opt.RegAdagradOptimizer(0.1)
    train = rule.minimize(loss)
    with rule.avoid_updating_slots():
        shrink = rule.minimize(0.5 * loss)
    used = np.array([True, not sparse, True, not sparse, not sparse])[:, None]
    sums = np.where(used, 0.1 + 4 * start**2, 0.1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        expected = np.where(used, start - 0.1 * 2 * start / np.sqrt(sums), start)
        np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)
        session.run(shrink)
        np.testing.assert_allclose(session.run(rule.get_slot(w, "accumulator")), sums, rtol=1e-5)
        expected = np.where(used, expected - 0.1 * expected / np.sqrt(sums), expected)
        np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dims", [[1], [0], [0, 1]])
@pytest.mark.parametrize("colocate", [False, True])
def test_variable_clipping(colocate: bool, dims: list[int], sparse: bool, use_resource: bool) -> None:
    w = tf.Variable(_START, name="w", use_resource=use_resource)
    unclipped = tf.Variable(_START, name="u", use_resource=use_resource)
    values, indices = tf.placeholder(tf.float64, [None, 3]), tf.placeholder(tf.int64, [None])
    grad = tf.IndexedSlices(values, indices, tf.constant([5, 3])) if sparse else tf.ensure_shape(values, [5, 3])
    rule = opt.VariableClippingOptimizer(
        tf.train.GradientDescentOptimizer(0.1), {w: dims}, 1.5, colocate_clip_ops_with_vars=colocate
    )
    train = rule.apply_gradients([(grad, w), (grad, unclipped)])
    expected, free = _START.copy(), _START.copy()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for t in range(_STEPS):
            g = _dense_of(t) if sparse else _GRADS[t]
            session.run(train, {values: _ROWS[t], indices: _INDICES[t]} if sparse else {values: g})
            expected, free = expected - 0.1 * g, free - 0.1 * g
            norms = np.sqrt((expected**2).sum(tuple(dims), keepdims=True))
            clipped = expected * np.minimum(1, 1.5 / norms)
            expected = np.where(_used(t), clipped, expected) if sparse and 0 not in dims else clipped
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(session.run(unclipped), free, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sparse", [False, True])
def test_multitask_wrapper_leaves_variables_without_a_gradient_alone(sparse: bool, use_resource: bool) -> None:
    one, other = (tf.Variable(np.float32([1.0, 2.0]), use_resource=use_resource) for _ in range(2))
    mask = tf.placeholder(tf.float32, [])
    pick = (lambda v: tf.gather(v, [0, 1])) if sparse else tf.identity
    loss = tf.reduce_sum(mask * pick(one)) + tf.reduce_sum(pick(other))
    rule = opt.MultitaskOptimizerWrapper(tf.train.MomentumOptimizer(0.1, 0.9))
    train = rule.minimize(loss)
    momentum = rule.get_slot(one, "momentum")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {mask: 1.0})
        for _ in range(2):
            session.run(train, {mask: 0.0})
        np.testing.assert_allclose(session.run([one, momentum]), [[0.9, 1.9], [1.0, 1.0]], rtol=1e-6)
        np.testing.assert_allclose(session.run(other), [1 - 0.1 - 0.19 - 0.271, 2 - 0.1 - 0.19 - 0.271], rtol=1e-6)
        session.run(train, {mask: 1.0})
        np.testing.assert_allclose(session.run(momentum), [1.9, 1.9], rtol=1e-6)


def test_clip_gradients_by_global_norm() -> None:
    v, u, n = (tf.Variable(np.zeros(2, np.float32)) for _ in range(3))
    pairs = [(tf.constant([3.0, 4.0]), v), (tf.constant([0.0, 0.0]), u), (None, n)]
    clipped, norm = opt.clip_gradients_by_global_norm(pairs, 1.0)
    assert [var for _, var in clipped] == [v, u, n] and clipped[2][0] is None
    with tf.Session() as session:
        assert session.run(norm) == 5.0
        np.testing.assert_allclose(session.run(clipped[0][0]), [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize("kind", ["LARSOptimizer", "LAMBOptimizer"])
def test_large_batches_are_summed_in_local_variables(kind: str, use_resource: bool) -> None:
    with tf.device("/cpu:0"):
        w = tf.Variable(_START, name="w", use_resource=use_resource)
        count = tf.train.get_or_create_global_step()
        grad = tf.placeholder(tf.float64, [5, 3])
        rule = tf.train.GradientAccumulationOptimizer(
            getattr(opt, kind)(0.1), steps=3, worker_device="/job:localhost/task:0/cpu:0"
        )
        train = rule.apply_gradients([(grad, w)], global_step=count)
        sums = tf.local_variables()
        assert {v.op.name for v in sums} == {"w/GradientAccumulation", "accumulated/GradientAccumulation"}
        assert all("job:localhost" in v.device for v in sums) and not set(sums) & set(tf.global_variables())
        whole = tf.Variable(_START, name="whole", use_resource=use_resource)
        at_once = getattr(opt, kind)(0.1).apply_gradients([(grad, whole)])
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            for t in range(6):
                session.run(train, {grad: _GRADS[t]})
                if t % 3 == 2:
                    session.run(at_once, {grad: _GRADS[t - 2 : t + 1].mean(0)})
                np.testing.assert_allclose(*session.run([w, whole]), rtol=1e-6)
            assert session.run(count) == 2


# SciPy


def _quadratic() -> tuple[Any, Any]:
    vector = tf.Variable([7.0, 7.0], name="vector")
    return vector, tf.reduce_sum(tf.square(vector))


def test_scipy_minimises_and_calls_back() -> None:
    vector, loss = _quadratic()
    other = tf.Variable(np.ones([2, 2]), dtype=tf.float64)
    scale = tf.placeholder(tf.float32, [])
    loss = scale * loss + tf.cast(tf.reduce_sum((other - [[1.0, 2.0], [3.0, 4.0]]) ** 2), tf.float32)
    rule = opt.ScipyOptimizerInterface(loss, [vector, other], options={"maxiter": 100})
    losses: list[float] = []
    steps: list[Any] = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        rule.minimize(
            session, feed_dict={scale: 2.0}, fetches=[loss], loss_callback=losses.append, step_callback=steps.append
        )
        np.testing.assert_allclose(session.run(vector), [0, 0], atol=1e-3)
        np.testing.assert_allclose(session.run(other), [[1, 2], [3, 4]], atol=1e-3)
    assert losses[0] == pytest.approx(2 * 98 + 14) and losses[-1] < 1e-4
    assert steps and steps[-1].shape == (6,)


def test_scipy_holds_bounds_and_constraints() -> None:
    vector, loss = _quadratic()
    bounded = opt.ScipyOptimizerInterface(loss, var_to_bounds={vector: ([1, 2], None)})
    constrained = opt.ScipyOptimizerInterface(
        loss, equalities=[vector[1] - 1.0], inequalities=[vector[0] - 3.0], method="SLSQP"
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        bounded.minimize(session)
        np.testing.assert_allclose(session.run(vector), [1, 2], atol=1e-4)
        with session.as_default():
            constrained.minimize()
        np.testing.assert_allclose(session.run(vector), [3, 1], atol=1e-4)


def test_other_algorithms_can_be_used() -> None:
    vector, loss = _quadratic()

    class Descent(opt.ExternalOptimizerInterface):  # type: ignore[misc, name-defined]
        def _minimize(self, initial_val: Any, loss_grad_func: Any, optimizer_kwargs: Any, **_: Any) -> Any:
            for _ in range(20):
                initial_val = initial_val - optimizer_kwargs["rate"] * loss_grad_func(initial_val)[1]
            return initial_val

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        Descent(loss, rate=0.25).minimize(session)
        np.testing.assert_allclose(session.run(vector), 7 * 0.5**20 * np.ones(2), rtol=1e-4)
        with pytest.raises(NotImplementedError, match="_minimize"):
            opt.ExternalOptimizerInterface(loss).minimize(session)


def test_errors_name_the_argument() -> None:
    w, loss = _quadratic()
    step = tf.train.get_or_create_global_step()
    for error, message, call in (
        (ValueError, "svd_interval", lambda: opt.ShampooOptimizer(svd_interval=0)),
        (ValueError, "precond_update_interval", lambda: opt.ShampooOptimizer(precond_update_interval=0)),
        (
            ValueError,
            "use_iterative_root",
            lambda: opt.ShampooOptimizer(alpha=0.3, use_iterative_root=True).minimize(loss),
        ),
        (ValueError, "window", lambda: opt.GGTOptimizer(window=0)),
        (ValueError, "base", lambda: opt.PowerSignOptimizer(base=0.0)),
        (ValueError, "decay_steps", lambda: opt.get_linear_decay_fn(0)),
        (ValueError, "decay_steps", lambda: opt.get_cosine_decay_fn(-1)),
        (
            ValueError,
            "global_step is required",
            lambda: opt.AddSignOptimizer(sign_decay_fn=opt.get_linear_decay_fn(5)).minimize(loss),
        ),
        (ValueError, "momentum", lambda: opt.LARSOptimizer(0.1, momentum=-1.0)),
        (ValueError, "weight_decay", lambda: opt.LAMBOptimizer(0.1, weight_decay=-1.0)),
        (TypeError, "opt must be", lambda: opt.MultitaskOptimizerWrapper(0.1)),
        (TypeError, "opt must be", lambda: opt.MovingAverageOptimizer(0.1)),
        (TypeError, "opt must be", lambda: opt.VariableClippingOptimizer(None, {w: [0]}, 1.0)),
        (ValueError, "gradients_variables", lambda: opt.clip_gradients_by_global_norm([])),
        (ValueError, "var_list", lambda: opt.ScipyOptimizerInterface(loss, var_list=[])),
        (ValueError, "var_to_bounds", lambda: opt.ScipyOptimizerInterface(loss, var_to_bounds={step: (0, 1)})),
        (ValueError, "needs a session", lambda: opt.ScipyOptimizerInterface(loss).minimize()),
        (ValueError, "steps must be", lambda: tf.train.GradientAccumulationOptimizer(opt.LAMBOptimizer(), 0)),
    ):
        with pytest.raises(error, match=message):
            call()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for name, instead in (("bounds", "var_to_bounds"), ("callback", "step_callback"), ("jac", "always")):
            with pytest.raises(ValueError, match=instead):
                opt.ScipyOptimizerInterface(loss, **{name: None}).minimize(session)


# Stale gradients


def test_stale_gradients_are_dropped(use_resource: bool) -> None:
    step = tf.train.get_or_create_global_step()
    v = tf.Variable(10.0, use_resource=use_resource)
    rule = opt.DropStaleGradientOptimizer(tf.train.MomentumOptimizer(1.0, 0.5), staleness=1)
    ((grad, _),) = rule.compute_gradients(v * 1.0)
    # The others make their steps between the two looks at the global step.
    others = tf.placeholder(tf.int64, [])
    with tf.control_dependencies([rule._local_step, grad]):
        moved = tf.assign_add(step, others)
    with tf.control_dependencies([moved]):
        late = tf.identity(grad)
    train = rule.apply_gradients([(late, v)], global_step=step)
    share = tf.summary.merge_all()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for others_steps, dropped, value in ((0, 0, 9.0), (1, 0, 7.5), (2, 1, 7.5), (3, 2, 7.5), (1, 2, 5.75)):
            assert session.run(train, {others: others_steps}) == dropped
            assert session.run(v) == pytest.approx(value)
        assert session.run(step) == 3 + 7
        summary = tf.Summary.FromString(session.run(share))
        assert summary.value[0].tag == "Gradient_staleness_percentage"
        assert summary.value[0].simple_value == pytest.approx(2 / 11)
        assert session.run(step) == 10  # a summary is no step
    assert rule.get_slot_names() == ["momentum"] and rule.get_slot(v, "momentum") is not None


def test_errors_of_stale_gradients() -> None:
    v = tf.Variable(1.0)
    with pytest.raises(ValueError, match="staleness"):
        opt.DropStaleGradientOptimizer(tf.train.GradientDescentOptimizer(1.0), -1)
    rule = opt.DropStaleGradientOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
    with pytest.raises(ValueError, match="no global step"):
        rule.compute_gradients(v * v)
    step = tf.train.get_or_create_global_step()
    with pytest.raises(ValueError, match="after compute_gradients"):
        rule.apply_gradients([(tf.constant(1.0), v)], step)
    with pytest.raises(ValueError, match="global_step is required"):
        rule.minimize(v * v)


# Training that is interrupted

_RULES: dict[str, Callable[[Any], Any]] = {
    "lazy_adam": lambda _: opt.LazyAdamOptimizer(0.1),
    "adam_gs": lambda step: opt.AdamGSOptimizer(step, 0.1),
    "adamax": lambda _: opt.AdaMaxOptimizer(0.1),
    "nadam": lambda _: opt.NadamOptimizer(0.1),
    "amsgrad": lambda _: opt.AMSGradOptimizer(0.1),
    "addsign": lambda _: opt.AddSignOptimizer(0.01, sign_decay_fn=opt.get_linear_decay_fn(5)),
    "powersign": lambda _: opt.PowerSignOptimizer(0.01),
    "kfac": lambda _: opt.KFACOptimizer(0.05, damping=0.1, invert_every=2),
    "shampoo": lambda step: opt.ShampooOptimizer(step, learning_rate=0.1, gbar_decay=0.5, svd_interval=2),
    "ggt": lambda _: opt.GGTOptimizer(0.1, window=3),
    "lars": lambda _: opt.LARSOptimizer(0.01, eeta=0.1),
    "lamb": lambda _: opt.LAMBOptimizer(0.1, 0.01),
    "reg_adagrad": lambda _: opt.RegAdagradOptimizer(0.1),
    "adamw": lambda _: opt.AdamWOptimizer(0.01, 0.1),
    "moving_average": lambda _: opt.MovingAverageOptimizer(tf.train.MomentumOptimizer(0.01, 0.9), 0.5),
    "multitask": lambda _: opt.MultitaskOptimizerWrapper(tf.train.AdamOptimizer(0.1)),
    "drop_stale": lambda _: opt.DropStaleGradientOptimizer(tf.train.AdamOptimizer(0.1), 0),
}


def _regression(make: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """A table and a matrix, trained by the rule; the step, the train op and the loss."""
    step = tf.train.get_or_create_global_step()
    table = tf.get_variable("table", [4, 3], initializer=tf.constant_initializer(0.5))
    w = tf.get_variable("w", [3, 2], initializer=tf.constant_initializer(np.linspace(-1, 1, 6)))
    loss = tf.reduce_sum(tf.square(tf.matmul(tf.gather(table, [0, 2, 2]), w) - 1.0))
    return step, make(step).minimize(loss, global_step=step), loss


@pytest.mark.parametrize(
    "rule, loop",
    [
        *((rule, "monitored") for rule in _RULES),
        ("ggt", "supervisor"),
        ("kfac", "supervisor"),
        ("moving_average", "supervisor"),
    ],
)
def test_training_goes_on_from_a_checkpoint(rule: str, loop: str, tmp_path: Any) -> None:
    """All state of a rule is saved: two runs of three steps end where one of six does."""

    def train(folder: str, steps: int) -> float:
        with tf.Graph().as_default():
            step, op, loss = _regression(_RULES[rule])
            if loop == "monitored":
                hooks = [tf.train.StopAtStepHook(num_steps=steps)]
                with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
                    while not session.should_stop():
                        session.run(op)
                with tf.train.MonitoredTrainingSession(checkpoint_dir=folder) as session:
                    return float(session.run(loss))
            supervisor = tf.train.Supervisor(logdir=folder, global_step=step, summary_op=None)
            with supervisor.managed_session() as session:
                for _ in range(steps):
                    session.run(op)
                supervisor.saver.save(session, supervisor.save_path, global_step=step)
                return float(session.run(loss))

    whole, halves = str(tmp_path / "whole"), str(tmp_path / "halves")
    start = train(whole, 1)
    end = train(whole, 5)
    train(halves, 3)
    assert train(halves, 3) == pytest.approx(end, rel=1e-5) and end < start
    tf.summary.FileWriterCache.clear()
