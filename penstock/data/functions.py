"""Functions of elements: traced once into graph functions; captured tensors become inputs of the dataset op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.data import structure
from penstock.data.structure import TensorSpec
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.effects import order_effects
from penstock.graph.function import FuncGraph, Function
from penstock.graph.graph import Graph, executing_eagerly_outside_functions, get_default_graph
from penstock.graph.hooks import hooks
from penstock.graph.operation import Operation, Tensor
from penstock.ops.array.passthrough import identity


@dataclass(frozen=True, slots=True)
class Traced:
    """A function of elements: its body, its captured tensors, and the structure of its result."""

    function: Function
    spec: Any
    result: Any  # the return value of the Python function, in the body's graph

    @property
    def captured(self) -> list[Tensor]:
        return list(self.function.captured)


def trace(function: Callable[..., Any], name: str, *specs: Any) -> Traced:
    """Calls `function` once on parameters of the given structures, one structure per argument.

    A single structure that is a plain tuple is spread over the arguments.
    """
    leaves = [leaf for spec in specs for leaf in structure.flatten(spec)]
    outcome: dict[str, Any] = {}
    function = hooks.converted(function)

    def body(*parameters: Tensor) -> Sequence[Tensor]:
        get_default_graph().outlives_step = True  # so that it reads variables when it runs
        rest = list(parameters)
        arguments: list[Any] = []
        for spec in specs:
            count = len(structure.flatten(spec))
            arguments.append(structure.from_tensors(spec, rest[:count]))
            del rest[:count]
        if len(specs) == 1 and type(specs[0]) is tuple:
            arguments = list(arguments[0])
        result = function(*arguments)
        if isinstance(result, list):
            result = tuple(result)  # a list is the results of an op with several outputs, not rows to stack
        outcome["result"] = result
        try:
            outcome["spec"], tensors = structure.to_tensors(result, lambda i: None)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"Unsupported return value from function passed to {name}: {result!r:.200} ({error})"
            ) from error
        return _after_effects(tensors)

    traced = Function.trace(name.replace(".", "_"), [(leaf.carried_dtype, leaf.carried_shape) for leaf in leaves], body)
    return Traced(traced, outcome["spec"], outcome["result"])


def _after_effects(results: Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of a function of the V2 API, which wait for its effects; these happen in the order of the program."""
    body = get_default_graph()
    assert isinstance(body, FuncGraph)
    if not executing_eagerly_outside_functions():
        return results
    order_effects(body)
    if not body.targets:
        return results
    with body.control_dependencies(body.targets):
        return [identity(t) for t in results]


def by_value(tensor: Tensor, name: str) -> Function:
    """Makes a function without parameters that computes `tensor`: all ops it needs are copied into its body.

    Raises ValueError if an op cannot be copied: a placeholder, or an op with state.
    """
    graph = get_default_graph()
    body = FuncGraph(graph.unique_function_name(name), graph)
    with body.as_default():
        body.outputs = [copied(tensor, body)]
    return Function(body.name, body)


def copied(tensor: Tensor, graph: Graph, handles: bool = False) -> Tensor:
    """Adds all ops that `tensor` needs to `graph`, and returns its copy there.

    Raises ValueError if an op cannot be copied: a placeholder, or an op with state. With `handles`, ops that stand for
    a resource by its name are copied as well.
    """
    copies: dict[Operation, Operation] = {}
    for op in operations_before(tensor.op):
        if op.type == "Placeholder":
            raise ValueError(f"Cannot capture a placeholder (name:{op.name}, type:{op.type}) by value.")
        named = handles and not op.input_list and op.attrs.get("shared_name")
        if op.op_def.stateful and op.type != "Assert" and not named:
            raise ValueError(f"Cannot capture a stateful node (name:{op.name}, type:{op.type}) by value.")
        inputs = [copies[t.op].outputs[t.value_index] for t in op.input_list]
        name = (
            op.name.lstrip("_") if op.graph.is_eager else f"{op.name}/"
        )  # ops that have run are not told apart by their names
        with graph.control_dependencies([copies[c] for c in op.control]):
            copy = graph.add_op(op.op_def, inputs, dict(op.attrs), [t.dtype for t in op.outputs], name)
        if named:
            copy.device = op.device
        for new, old in zip(copy.outputs, op.outputs, strict=True):
            new._shape = old.shape
        copies[op] = copy
    return copies[tensor.op].outputs[tensor.value_index]


def operations_before(last: Operation) -> list[Operation]:
    """All ops that `last` needs, including itself, inputs first."""
    order: dict[Operation, None] = {}
    stack: list[tuple[Operation, bool]] = [(last, False)]
    while stack:
        op, done = stack.pop()
        if done:
            order[op] = None
        elif op not in order:
            stack.append((op, True))
            stack += [(t.op, False) for t in op.input_list if t.op not in order]
            stack += [(c, False) for c in op.control if c not in order]
    return list(order)


def scalar_bool(traced: Traced) -> Traced:
    """Raises an error if a predicate does not return a bool."""
    spec = traced.spec
    if structure.is_nested(spec):
        # TensorFlow raises an AttributeError too.
        raise AttributeError(f"`predicate` must return one tensor, received {traced.result!r:.200}.")
    if not isinstance(spec, TensorSpec) or spec.dtype != dt.bool or not spec.shape.is_compatible_with(()):
        raise ValueError(f"`predicate` must return a scalar boolean tensor, received {traced.result!r:.200}.")
    return traced


def trace_stable(make: Callable[[Any], Traced], state: Any) -> Traced:
    """Traces a function of a state until the shapes of the state do not change any more."""
    while True:
        traced = make(state)
        before, after = structure.flatten(state), structure.flatten(traced.spec)
        if len(before) != len(after):
            raise InvalidArgumentError(
                f"The new state must have as many tensors as the initial one: {len(before)}, received {len(after)}."
            )
        if any(b.dtype != a.dtype for b, a in zip(before, after, strict=False)):
            raise TypeError(
                f"The new state must have the types of the initial one: {[s.dtype.name for s in before]}, received "
                f"{[s.dtype.name for s in after]}."
            )
        pairs = list(zip(before, after, strict=True))
        common = [b.with_shape(b.shape.most_specific_compatible_shape(a.shape)) for b, a in pairs]
        if all(c == b for c, b in zip(common, before, strict=True)):
            return Traced(traced.function, structure.pack(state, common), traced.result)
        state = structure.pack(state, common)
