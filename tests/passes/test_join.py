"""Tensors that go the same way travel as one, and updates of one kind are one, where nobody sees the difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.graph.opdef import OpDef, all_ops
from penstock.graph.shape import TensorShape
from penstock.ops.engine.joined import join_tensors, joined_accumulators, split_tensor, whole
from penstock.passes import join, pipeline
from penstock.passes.ir import Node
from penstock.passes.join import SUMS_FOR
from penstock.passes.partition import partition
from penstock.passes.place import place
from penstock.passes.prune import prune

PS, WORKER = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"
DEVICES = [f"{task}/device:CPU:0" for task in (PS, WORKER)]
SHAPES = {"weights": [3, 2], "biases": [2]}


class Model:
    """Variables on a parameter server, the updates of which come from a worker."""

    def __init__(self, use_resource: bool = False, shapes: dict[str, list[int]] = SHAPES) -> None:
        with tf.device(PS):
            self.variables = [
                tf.get_variable(name, shape, use_resource=use_resource, initializer=tf.ones_initializer())
                for name, shape in shapes.items()
            ]
        with tf.device(WORKER):
            self.loss = tf.add_n([tf.reduce_sum(v**2) for v in self.variables])

    def train(self, optimizer: Any, *which: int) -> Any:
        """Trains all variables, or those with these numbers; the gradients are the worker's."""
        with tf.device(WORKER):
            return optimizer.minimize(self.loss, var_list=[self.variables[i] for i in which] or None)


def nodes_of(build: Callable[[], tuple[list[Any], list[Any]]]) -> dict[str, list[Node]]:
    """The nodes of each task after all passes. `build` returns what is fetched, and what is only run."""
    with tf.Graph().as_default():
        fetches, targets = build()
        keys = itertools.count()
        subgraph = place(pipeline.applied(pipeline.GRAPH, prune([], fetches, targets)), DEVICES, False)
        subgraph = pipeline.applied(pipeline.over_tasks(DEVICES, False, keys), subgraph)
        return {p.task: pipeline.applied(pipeline.WORKER, p.subgraph).nodes for p in partition(subgraph, keys)}


def count(nodes: list[Node], *names: str) -> int:
    return sum(node.op.name in names for node in nodes)


def tensor_sends(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.op.name == "_Send" and not node.attrs["tensor_name"].startswith("^")]


def updates(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.op.elementwise]


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (lambda: tf.train.GradientDescentOptimizer(0.1), 0),
        (lambda: tf.train.MomentumOptimizer(0.1, 0.9), 1),
        (lambda: tf.train.AdamOptimizer(0.1), 2),
        (lambda: tf.train.RMSPropOptimizer(0.1, centered=True), 3),
        (lambda: tf.train.FtrlOptimizer(0.1), 2),
    ],
)
def test_one_tensor_goes_each_way_and_one_update_takes_it(
    optimizer: Callable[[], Any], slots: int, use_resource: bool
) -> None:
    parts = nodes_of(lambda: ([], [Model(use_resource).train(optimizer())]))
    assert len(tensor_sends(parts[WORKER])) == 1
    (update,) = updates(parts[PS])
    assert [source.op.name for source, _ in update.inputs].count("_JoinedVariable") == 1 + slots
    (sent,) = [n for n in parts[PS] if n.op.name == "_Send" and not n.attrs["tensor_name"].startswith("^")]
    assert sent.inputs == [update.inputs[0]], "the variables are sent as the update takes them"
    assert [part.name for part in update.inputs[0][0].attrs["parts"]] == ["weights", "biases"]
    assert update.inputs[0][0].attrs["shape"].as_list() == [8]
    assert count(parts[PS], "_JoinTensors", "_SplitTensor") == 0


def test_a_variable_that_is_fetched_stays_alone_in_its_update() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        model = Model()
        with tf.device(PS):
            read = model.variables[0] + 0.0
        return [read], [model.train(tf.train.AdamOptimizer(0.1))]

    parts = nodes_of(build)
    assert len(updates(parts[PS])) == 2
    (send,) = tensor_sends(parts[WORKER])
    assert len(send.inputs) == 2, "gradients travel as one all the same"


def test_a_result_of_an_update_may_be_fetched() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        train = Model().train(tf.train.GradientDescentOptimizer(0.1))
        update = next(op for op in tf.get_default_graph().get_operations() if op.type == "ApplyGradientDescent")
        return [update.outputs[0]], [train]

    assert len(updates(nodes_of(build)[PS])) == 2


@pytest.mark.parametrize("between", [PS, WORKER])
def test_updates_that_wait_for_each_other_stay_apart(between: str) -> None:
    def build() -> tuple[list[Any], list[Any]]:
        model, optimizer = Model(), tf.train.GradientDescentOptimizer(tf.constant(0.1))
        with tf.device(WORKER):
            one, other = tf.gradients(model.loss, model.variables)
        first = optimizer.apply_gradients([(one, model.variables[0])])
        with tf.control_dependencies([first]), tf.device(between):
            done = tf.no_op()
        with tf.control_dependencies([done]):
            return [], [optimizer.apply_gradients([(other, model.variables[1])])]

    assert len(updates(nodes_of(build)[PS])) == 2


@pytest.mark.parametrize("use_resource", [False, True])
def test_synchronous_training_has_one_addition_and_one_update(use_resource: bool) -> None:
    def synchronous() -> tuple[Any, Any]:
        rule = tf.train.SyncReplicasOptimizer(tf.train.AdamOptimizer(0.1), 2)
        with tf.device(PS):
            step = tf.train.get_or_create_global_step()
        model = Model(use_resource)
        with tf.device(WORKER):
            train = rule.minimize(model.loss, step)
        return train, rule.get_chief_queue_runner().enqueue_ops[0]

    parts = nodes_of(lambda: ([synchronous()[0]], []))
    (addition,) = [node for node in parts[PS] if node.op.name == "ResourceAccumulatorApplyGradient"]
    assert addition.inputs[0][0].op is joined_accumulators
    assert addition.inputs[1][0].op.name == "_Recv", "the step needs no other type"
    assert [len(send.inputs) for send in tensor_sends(parts[WORKER])] == [2, 1], "gradients, and the step"
    assert "_JoinedVariable" in [send.inputs[0][0].op.name for send in tensor_sends(parts[PS])]

    nodes = nodes_of(lambda: ([], [synchronous()[1]]))[PS]
    (taken,) = [node for node in nodes if node.op.name == "ResourceAccumulatorTakeGradient"]
    assert taken.inputs[0][0].op is joined_accumulators
    (update,) = updates(nodes)
    assert update.inputs[0][0].attrs["shape"].as_list() == [8] and (taken, 0) in update.inputs


def accumulated(of_variables: bool, in_order: bool) -> tuple[list[Any], list[Any]]:
    """Updates by means: of accumulators that say whose gradients they have or not, one after the other or not."""
    model, optimizer = Model(), tf.train.GradientDescentOptimizer(tf.constant(0.1))
    done: list[Any] = []
    for variable in model.variables:
        with tf.device(PS), tf.control_dependencies(done if in_order else []):
            accumulator = tf.ConditionalAccumulator(tf.float32, variable.shape)
            if of_variables:
                accumulator.accumulator_ref.op._set_attr(SUMS_FOR, variable.op.name)
            done.append(optimizer.apply_gradients([(accumulator.take_grad(1), variable)]))
    return [], done


@pytest.mark.parametrize(("of_variables", "in_order"), [(True, False), (False, False), (True, True)])
def test_means_are_taken_together_if_they_come_together(of_variables: bool, in_order: bool) -> None:
    nodes = nodes_of(lambda: accumulated(of_variables, in_order))[PS]
    together = of_variables and not in_order
    assert count(nodes, "ResourceAccumulatorTakeGradient") == len(updates(nodes)) == (1 if together else 2)


def test_a_gradient_that_waits_for_an_update_is_not_joined_to_its_gradient() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        model, optimizer = Model(), tf.train.GradientDescentOptimizer(tf.constant(0.1))
        first = model.train(optimizer, 0)
        with tf.control_dependencies([first]), tf.device(WORKER):
            return [], [optimizer.minimize(tf.reduce_sum(model.variables[1] ** 2), var_list=model.variables[1:])]

    parts = nodes_of(build)
    assert count([*parts[PS], *parts[WORKER]], "_JoinTensors", "_SplitTensor") == 0


def test_a_program_with_a_conditional_over_tasks_is_left_alone() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        model = Model()
        with tf.device(WORKER):
            seen = tf.cond(model.loss > 0, lambda: tf.assign_add(model.variables[1], [1.0, 1.0]), lambda: tf.zeros([2]))
        return [seen], [model.train(tf.train.AdamOptimizer(0.1))]

    parts = nodes_of(build)
    assert count([*parts[PS], *parts[WORKER]], "_JoinTensors", "_SplitTensor") == 0


def test_updates_of_different_kinds_stay_apart() -> None:
    def build() -> tuple[list[Any], list[Any]]:
        model = Model(shapes={name: [4] for name in "abcd"})
        slow, quick = tf.train.GradientDescentOptimizer(0.1), tf.train.GradientDescentOptimizer(0.2)
        return [], [model.train(slow, 0, 1), model.train(quick, 2, 3)]

    found = updates(nodes_of(build)[PS])
    assert sorted([p.name for p in n.inputs[0][0].attrs["parts"]] for n in found) == [["a", "b"], ["c", "d"]]


def test_large_variables_are_left_alone() -> None:
    shapes = {"large": [join.LARGEST // 4 + 1], "a": [2], "b": [3]}
    parts = nodes_of(lambda: ([], [Model(shapes=shapes).train(tf.train.AdamOptimizer(0.1))]))
    names = [n.inputs[0][0].name for n in updates(parts[PS])]
    assert sorted(names) == ["a_and_1_more", "large"]


def test_many_variables_are_left_to_blocks() -> None:
    shapes = {f"v{i}": [2] for i in range(join.MOST + 1)}
    parts = nodes_of(lambda: ([], [Model(shapes=shapes).train(tf.train.AdamOptimizer(0.1))]))
    assert len(updates(parts[PS])) == join.MOST + 1


ELEMENTWISE = sorted((op for op in all_ops() if op.elementwise), key=lambda op: op.name)


@pytest.mark.parametrize("update", ELEMENTWISE, ids=lambda op: op.name)
def test_an_update_of_joined_variables_is_that_of_each(update: OpDef) -> None:
    random = np.random.RandomState(7)
    attrs = {"dtype": tf.float32} if "dtype" in update.wants else {}

    def updated(*args: Any) -> list[Any]:
        results = update.kernel(*args, **attrs)
        return list(results) if len(update.writes) > 1 else [results]

    large = [arg.name in update.writes or arg.name in ("grad", "delta") for arg in update.inputs]
    args = [np.float32(random.uniform(0.1, 0.9, 8 if is_large else ())) for is_large in large]
    together = updated(*args)
    for part in (slice(0, 3), slice(3, 8)):
        each = updated(*[arg[part] if is_large else arg for arg, is_large in zip(args, large, strict=True)])
        for one, whole_of_all in zip(each, together, strict=True):
            np.testing.assert_allclose(one, whole_of_all[part], 1e-6)


def test_joining_and_splitting_are_each_others_inverse() -> None:
    shapes = [TensorShape(s) for s in ([2, 3], [], [4])]
    tensors = [np.random.RandomState(3).standard_normal(s.as_list()) for s in shapes]
    joined = join_tensors.kernel(tensors, shapes=shapes)
    assert list(joined.shape) == whole(shapes).as_list() == [11]
    for tensor, part in zip(tensors, split_tensor.kernel(joined, shapes=shapes), strict=True):
        np.testing.assert_array_equal(tensor, part)


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the variable has shape \[6\], but the gradient \[2, 3\]"):
        join_tensors.kernel([np.ones((2, 3), "f")], shapes=[TensorShape([6])])
