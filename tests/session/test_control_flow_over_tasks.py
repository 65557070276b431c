"""Loops and conditionals over several tasks have the same results as in one, and use no other tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf
from penstock.graph import nest

PS0, PS1, WORKER = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"
KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
pytestmark = pytest.mark.timeout(120)
LIMITS = (500, 5_000, 50_000)  # of steps that never end, in ms: a slow machine may not have begun by the first


class Servers:
    """Two parameter servers and a worker in this process."""

    def __init__(self, stack: ExitStack) -> None:
        addresses = free_addresses(3)
        self.cluster = tf.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
        for task in (("ps", 0), ("ps", 1), ("worker", 0)):
            self.target = stack.enter_context(tf.train.Server(self.cluster, *task)).target
        self.setter = tf.train.replica_device_setter(cluster=self.cluster, worker_device=WORKER)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with leak_check(), ExitStack() as stack, tf.Graph().as_default():
        yield Servers(stack)


def variable(name: str, value: Any, device: str, use_resource: bool = False) -> Any:
    with tf.device(device):
        return tf.get_variable(name, initializer=value, use_resource=use_resource)


def in_both(servers: Servers, build: Callable[[], Any], feeds: Any = None) -> tuple[list[Any], list[Any]]:
    """The results over tasks, and in one process without tasks: those of the steps, then all variables."""
    results = []
    for target in (servers.target, ""):
        with tf.Graph().as_default():
            fetches, placeholders = build()
            after = [v.value() for v in tf.global_variables()]
            if not target:
                for operation in all_operations(tf.get_default_graph()):
                    operation._set_device("")
            with tf.Session(target) as session:
                session.run(tf.global_variables_initializer())
                found = [session.run(fetches, dict(zip(placeholders, fed, strict=True))) for fed in feeds or [()]]
                results.append([*found, *session.run(after)])
    return results[0], results[1]


def all_operations(graph: Any) -> Iterator[Any]:
    """The operations of a graph and of all bodies in it."""
    for operation in graph.get_operations():
        yield operation
        for value in operation.attrs.values():
            if hasattr(value, "graph") and hasattr(value, "captured"):
                yield from all_operations(value.graph)


def check(servers: Servers, build: Callable[[], Any], feeds: Any = None) -> list[Any]:
    """Checks that the results over tasks are those of one process, and returns them."""
    over_tasks, alone = in_both(servers, build, feeds)
    for here, there in zip(over_tasks, alone, strict=True):
        nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), here, there)
    return over_tasks


@KINDS
def test_initial_values_of_initial_values_on_other_parameter_servers(servers: Servers, use_resource: bool) -> None:
    with tf.device(servers.setter):
        first = tf.get_variable("first", initializer=[1.0, 2.0], use_resource=use_resource)
        second = tf.get_variable("second", initializer=first.initialized_value() * 2.0, use_resource=use_resource)
        third = tf.get_variable("third", initializer=second.initialized_value() + 1.0, use_resource=use_resource)
    assert [v.device for v in (first, second, third)] == [PS0, PS1, PS0]
    with tf.Session(servers.target) as session:
        session.run(third.initializer)
        assert session.run(third).tolist() == [3.0, 5.0]
        assert set(session.run(tf.report_uninitialized_variables())) == {b"first", b"second"}
        session.run(first.initializer)
        session.run(tf.assign(first, [5.0, 6.0]))
        session.run(third.initializer)
        assert session.run(third).tolist() == [11.0, 13.0]
        session.run(tf.global_variables_initializer())
        assert session.run([first, second, third])[2].tolist() == [3.0, 5.0]


@KINDS
def test_moving_averages_of_a_replicated_program(servers: Servers, use_resource: bool) -> None:
    with tf.device(servers.setter):
        step = tf.train.get_or_create_global_step()
        weights = [tf.get_variable(f"w{i}", initializer=float(i + 1), use_resource=use_resource) for i in range(3)]
        loss = tf.add_n([tf.square(w) for w in weights])
        train = tf.train.GradientDescentOptimizer(0.25).minimize(loss, step)
        averages = tf.train.ExponentialMovingAverage(0.5)
        update = averages.apply(weights)
    assert {w.device for w in weights} == {PS0, PS1}
    with tf.Session(servers.target) as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        session.run(update)
        assert session.run(weights) == [0.5, 1.0, 1.5]
        assert session.run([averages.average(w) for w in weights]) == [0.75, 1.5, 2.25]


@KINDS
@pytest.mark.parametrize("device", ["", WORKER, PS0, PS1])
def test_only_the_branch_that_is_taken_has_effects(servers: Servers, use_resource: bool, device: str) -> None:
    first, second = variable("first", 1.0, PS0, use_resource), variable("second", 10.0, PS1, use_resource)
    never = variable("never", 0.0, PS1, use_resource)
    go = tf.placeholder(tf.bool, [])
    with tf.device(device):
        result = tf.cond(
            go,
            lambda: tf.assign_add(first, second.read_value()) + 0.5,
            lambda: tf.assign_sub(second, first.read_value()) + never.read_value(),
        )
    with tf.Session(servers.target) as session:
        session.run([first.initializer, second.initializer])
        assert session.run(result, {go: True}) == 11.5
        assert session.run([first, second]) == [11.0, 10.0]
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value never"):
            session.run(result, {go: False})
        session.run(never.initializer)
        session.run(second.initializer)
        assert session.run(result, {go: False}) == -1.0
        assert session.run([first, second]) == [11.0, -1.0]


def test_operations_of_branches_are_waited_for(servers: Servers) -> None:
    counters = [variable(f"counter{i}", 0, device) for i, device in enumerate((PS0, PS1))]
    go = tf.placeholder(tf.bool, [])
    with tf.device(WORKER):
        both = tf.cond(
            go, lambda: tf.group(*[c.assign_add(1) for c in counters]), lambda: tf.group(counters[1].assign_add(10))
        )
    with tf.control_dependencies([both]):
        seen = [c.read_value() for c in counters]
    with tf.Session(servers.target) as session:
        session.run(tf.global_variables_initializer())
        assert [session.run(seen, {go: choice}) for choice in (True, False, True)] == [[1, 1], [1, 11], [2, 12]]


@KINDS
def test_a_loop_on_the_worker_updates_a_parameter_server_in_each_iteration(
    servers: Servers, use_resource: bool
) -> None:
    def build() -> Any:
        count = tf.placeholder(tf.int32, [])
        total, other = variable("total", 1.0, PS0, use_resource), variable("other", 100.0, PS1, use_resource)

        def body(i: Any, seen: Any) -> Any:
            before = total.read_value()
            with tf.control_dependencies([before]):
                after = tf.assign_add(total, tf.cast(i, tf.float32) + seen)
            with tf.control_dependencies([after]):
                return i + 1, seen + total.read_value() + other.read_value()

        with tf.device(WORKER):
            return tf.while_loop(lambda i, _: i < count, body, [0, 0.0]), [count]

    check(servers, build, [(3,), (0,), (5,)])


def test_a_condition_may_be_on_a_parameter_server(servers: Servers) -> None:
    def build() -> Any:
        left, taken = variable("left", 4, PS0), variable("taken", 0, PS1)

        def body(i: Any) -> Any:
            with tf.control_dependencies([tf.assign_sub(left, 1), tf.assign_add(taken, 2)]):
                return i + 1

        return tf.while_loop(lambda i: left.read_value() > 0, body, [0]), []

    assert check(servers, build) == [4, 0, 8]


def test_ops_of_a_mapped_function_are_where_they_ask_to_be(servers: Servers) -> None:
    def build() -> Any:
        elements = tf.placeholder(tf.float32, [None, 2])
        factor = variable("factor", 3.0, PS1)

        def twice(x: Any) -> Any:
            with tf.device(PS0):
                squared = tf.square(x, name="squared")
            return squared * factor.read_value()

        with tf.device(WORKER):
            return tf.map_fn(twice, elements), [elements]

    feeds = [(np.arange(6.0).reshape(3, 2),), (np.ones((1, 2)),)]
    np.testing.assert_array_equal(check(servers, build, feeds)[0], 3.0 * np.square(feeds[0][0]))


@KINDS
def test_a_conditional_in_a_loop_in_a_conditional(servers: Servers, use_resource: bool) -> None:
    def build() -> Any:
        go = tf.placeholder(tf.bool, [])
        even, odd = variable("even", 0, PS0, use_resource), variable("odd", 0, PS1, use_resource)

        def body(i: Any, total: Any) -> Any:
            change = tf.cond(
                tf.equal(i % 2, 0),
                lambda: tf.assign_add(even, i) + odd.read_value(),
                lambda: tf.assign_add(odd, i) + total,
            )
            return i + 1, total + change

        with tf.device(WORKER):
            outer = tf.cond(
                go, lambda: tf.while_loop(lambda i, _: i < 6, body, [0, 1])[1], lambda: even.read_value() * 100
            )
        return outer, [go]

    check(servers, build, [(True,), (False,), (True,)])


def test_a_loop_in_a_loop(servers: Servers) -> None:
    def build() -> Any:
        rows, cells = variable("rows", 0, PS0), variable("cells", 0, PS1)

        def row(i: Any, total: Any) -> Any:
            def cell(j: Any, total: Any) -> Any:
                return j + 1, total + tf.assign_add(cells, i * j)

            with tf.control_dependencies([tf.assign_add(rows, 1)]):
                inner = tf.while_loop(lambda j, _: j < i, cell, [0, total])
            return i + 1, inner[1]

        return tf.while_loop(lambda i, _: i < 5, row, [0, 0]), []

    assert check(servers, build)[1:] == [5, 35]


def test_several_conditionals_that_do_not_depend_on_each_other(servers: Servers) -> None:
    def build() -> Any:
        choices = tf.placeholder(tf.bool, [6])
        sides = [variable(f"v{i}", float(i), device) for i, device in enumerate((PS0, PS1))]
        results = []
        for i in range(6):
            near, far = sides[i % 2], sides[1 - i % 2]
            with tf.device((PS0, PS1, WORKER)[i % 3]):
                results.append(
                    tf.cond(
                        choices[i],
                        lambda near=near, far=far: near.read_value() - far.read_value(),
                        lambda near=near, far=far: near.read_value() * 2.0 + far.read_value(),
                    )
                )
        return [results[3] + results[0], *results], [choices]

    check(servers, build, [(np.array(choice),) for choice in ([True] * 6, [False, True] * 3, [False] * 6)])


@KINDS
def test_gradients_through_a_conditional_over_tasks(servers: Servers, use_resource: bool) -> None:
    def build() -> Any:
        go, x = tf.placeholder(tf.bool, []), tf.placeholder(tf.float32, [2])
        first, second = variable("a", [1.0, 2.0], PS0, use_resource), variable("b", [3.0, 4.0], PS1, use_resource)

        with tf.device(WORKER):
            loss = tf.reduce_sum(tf.cond(go, lambda: first * x * second, lambda: tf.square(second) - x))
            return [loss, tf.gradients(loss, [first, second, x])], [go, x]

    check(servers, build, [(choice, np.array([2.0, 5.0])) for choice in (True, False)])


def test_gradients_through_a_loop_with_an_op_on_a_parameter_server(servers: Servers) -> None:
    def build() -> Any:
        x = tf.placeholder(tf.float32, [2])
        weight = variable("weight", [0.5, 0.25], PS1)

        def body(i: Any, y: Any) -> Any:
            with tf.device(PS0):
                z = tf.sin(y)
            return i + 1, z * weight + y

        with tf.device(WORKER):
            _, y = tf.while_loop(lambda i, _: i < 4, body, [0, x])
            return [y, tf.gradients(y, [x, weight])], [x]

    check(servers, build, [(np.array([1.0, 2.0]),)])


def test_training_with_a_conditional_update(servers: Servers) -> None:
    def build() -> Any:
        x = tf.placeholder(tf.float32, [2])
        with tf.device(servers.setter if servers.target else None):
            w = tf.get_variable("w", initializer=[1.0, 2.0])
            b = tf.get_variable("b", initializer=0.5)
            loss = tf.reduce_sum(tf.square(w * x + b))
            rule = tf.train.MomentumOptimizer(0.1, 0.9)
            pairs = rule.compute_gradients(loss)
            train = tf.cond(loss > 1.0, lambda: rule.apply_gradients(pairs), tf.no_op)
            return [train, loss], [x]

    check(servers, build, [(np.array([1.0, -1.0]),), (np.array([0.1, 0.1]),), (np.array([3.0, 1.0]),)])


def test_a_deadline_is_heeded_in_a_loop_over_tasks(servers: Servers) -> None:
    counter = variable("counter", 0, PS0)
    with tf.device(WORKER):
        forever = tf.while_loop(lambda i: i >= 0, lambda i: i + 0 * tf.assign_add(counter, 1), [0])
    with tf.Session(servers.target) as session:
        session.run(counter.initializer)
        for limit in LIMITS:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(forever, options=tf.RunOptions(timeout_in_ms=limit))
            if (reached := session.run(counter)) > 0:
                break
        assert reached > 0
        assert session.run(tf.assign_add(counter, 1)) - reached <= 2  # the parameter server has stopped, too


def test_an_error_in_a_body_elsewhere_ends_the_step(servers: Servers) -> None:
    with tf.device(WORKER):

        def body(i: Any) -> Any:
            with tf.device(PS1):
                return 10 // (3 - i) * 0 + i + 1

        loop = tf.while_loop(lambda i: i < 10, body, [0])
    with tf.Session(servers.target) as session, pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
        session.run(loop)


@KINDS
def test_scopes_inside_a_body(servers: Servers, use_resource: bool) -> None:
    """An update runs on its variable's device in any scope; other ops follow scopes and colocation."""

    def build() -> Any:
        go = tf.placeholder(tf.bool, [])
        v, w = variable("v", 1.0, PS0, use_resource), variable("w", 2.0, PS1, use_resource)

        def branch() -> Any:
            with tf.device(WORKER):
                changed = tf.assign_add(v, 1.0)
            with tf.colocate_with(w.op):
                scaled = tf.identity(changed) * 3.0
            with tf.device("/job:ps"):
                return scaled + w.read_value()

        with tf.device(PS1):
            return tf.cond(go, branch, lambda: w.read_value()), [go]

    check(servers, build, [(True,), (False,)])


def test_a_queue_on_a_parameter_server_gives_what_a_branch_takes(servers: Servers) -> None:
    with tf.device(PS1):
        queue = tf.FIFOQueue(10, tf.int32, shapes=[()])
        fill = queue.enqueue_many([[1, 2, 3]])
        size = queue.size()
    count = tf.placeholder(tf.int32, [])
    with tf.device(WORKER):
        total = tf.while_loop(
            lambda i, _: i < count,
            lambda i, total: (i + 1, tf.cond(i > 0, lambda: total * 10 + queue.dequeue(), lambda: total)),
            [0, 0],
        )[1]
    with tf.Session(servers.target) as session:
        session.run(fill)
        assert [session.run([total, size], {count: n})[0] for n in (1, 3)] == [0, 12]
        assert session.run(size) == 1
        for limit in LIMITS:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(total, {count: 3}, options=tf.RunOptions(timeout_in_ms=limit))
            if session.run(size) == 0:  # it has taken the last one, and waited for another
                break
        session.run(fill)
        assert session.run(total, {count: 4}) == 123


def test_strings_in_a_body(servers: Servers) -> None:
    def build() -> Any:
        names = variable("names", ["a", "b"], PS0)

        def body(i: Any, text: Any) -> Any:
            with tf.device(PS1):
                joined = tf.string_join([text, tf.as_string(i)])
            return i + 1, tf.string_join([joined, tf.reduce_join(names.read_value())])

        with tf.device(WORKER):
            return tf.while_loop(lambda i, _: i < 3, body, [0, ""])[1], []

    over_tasks, alone = in_both(servers, build)
    assert over_tasks[0] == alone[0] == b"0ab1ab2ab"


def _random_value(rng: random.Random, variables: list[Any], values: list[Any], depth: int) -> Any:
    """A number computed from variables, conditionals and loops on devices of all tasks."""

    def some(values: list[Any] = values) -> Any:
        return _random_value(rng, variables, values, depth - 1)

    kind = rng.random()
    with tf.device(rng.choice([PS0, PS1, WORKER, ""])):
        if depth == 0 or kind < 0.2:
            return rng.choice(values) * 0.5 if rng.random() < 0.5 else rng.choice(variables).read_value()
        if kind < 0.4:
            return some() * 0.5 + some() * 0.25
        if kind < 0.75:
            return tf.cond(some() > rng.uniform(-1, 1), lambda: some() + 0.0, lambda: some() - 0.25)
        return tf.while_loop(
            lambda i, _: i < rng.randint(0, 3), lambda i, x: (i + 1, tf.tanh(some([*values, x]) + x)), [0, some() + 0.0]
        )[1]


@pytest.mark.parametrize("seed", range(3))
def test_no_two_tasks_wait_for_each_other(servers: Servers, seed: int) -> None:
    def build() -> Any:
        rng = random.Random(seed)
        places = (PS0, PS1, WORKER)
        made = [variable(f"v{i}", rng.uniform(-2, 2), place, i == 1) for i, place in enumerate(places)]
        x = tf.placeholder(tf.float32, [])
        return [_random_value(rng, made, [x], 3) for _ in range(3)], [x]

    check(servers, build, [(0.3,), (-0.7,)])


@KINDS
def test_gradients_where_branches_read(servers: Servers, use_resource: bool) -> None:
    def build() -> Any:
        go, x = tf.placeholder(tf.bool, []), tf.placeholder(tf.float32, [2])
        first, second = variable("a", [1.0, 2.0], PS0, use_resource), variable("b", [3.0, 4.0], PS1, use_resource)
        with tf.device(WORKER):
            loss = tf.reduce_sum(
                tf.cond(
                    go, lambda: first.read_value() * x * second.read_value(), lambda: tf.square(second.read_value()) - x
                )
            )
            return [loss, tf.gradients(loss, [x])], [go, x]

    check(servers, build, [(choice, np.array([2.0, 5.0])) for choice in (True, False)])


def test_gradients_of_a_loop_that_reads(servers: Servers) -> None:
    def build() -> Any:
        x = tf.placeholder(tf.float32, [2])
        w = variable("w", [0.5, 0.25], PS1)

        def body(i: Any, y: Any) -> Any:
            with tf.device(PS0):
                z = tf.sin(y)
                return i + 1, tf.cond(tf.equal(i % 2, 0), lambda: z * w.read_value() + y, lambda: y * 2.0)

        with tf.device(WORKER):
            _, y = tf.while_loop(lambda i, _: i < 4, body, [0, x])
            return [y, tf.gradients(y, [x])], [x]

    check(servers, build, [(np.array([1.0, 2.0]),)])


@KINDS
def test_gradients_of_a_loop_that_ends_by_what_another_task_holds(servers: Servers, use_resource: bool) -> None:
    """Its iterations are not counted beforehand: that would need the variables of two tasks."""

    def build() -> Any:
        limit = variable("limit", 9.0, PS1, use_resource)
        weight = variable("weight", 1.5, PS0, use_resource)
        x = tf.placeholder(tf.float32, [])
        with tf.device(WORKER):
            y = tf.while_loop(lambda a: a < limit, lambda a: [a * weight], [x])
            return [y, tf.gradients(y, [x, weight])], [x]

    check(servers, build, [(1.0,), (20.0,)])
