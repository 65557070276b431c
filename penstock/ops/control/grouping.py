"""Order without data: ops that only wait for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op, registered
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, name_scope


@op("NoOp", "->", numpy=False)
def no_op_() -> None:
    """Does nothing."""


def no_op(name: str | None = None) -> Operation:
    """An operation that does nothing; useful as a place for control dependencies.

    >>> with tf.control_dependencies([a, b]): both = tf.no_op()
    """
    result: Operation = no_op_(name=name)
    return result


def _flatten(inputs: Any) -> Iterable[Any]:
    if isinstance(inputs, (list, tuple)):
        for item in inputs:
            yield from _flatten(item)
    elif isinstance(inputs, dict):
        for key in sorted(inputs):
            yield from _flatten(inputs[key])
    else:
        yield inputs


def group(*inputs: Any, name: str | None = None, **kwargs: Any) -> Operation:
    """An operation that is done when all `inputs` are done.

    >>> train = tf.group(update_a, update_b)
    """
    if kwargs:
        raise ValueError(f"Unknown keyword arguments: {', '.join(kwargs)}")
    if not inputs:
        return no_op(name=name)
    graph = get_default_graph()
    with name_scope(name, "group_deps", list(_flatten(inputs))) as scope:
        by_device: dict[str, list[Any]] = {}
        for item in _flatten(inputs):
            if item is None:
                continue
            if not hasattr(item, "device"):
                raise TypeError(
                    f"tf.group() expected inputs to be tensors, variables or operations (or None, or nested lists of "
                    f"these), received {item!r} of type {type(item).__name__}."
                )
            by_device.setdefault(item.device, []).append(item)
        if len(by_device) == 1:
            ((device, waited),) = by_device.items()
            return _waiting(waited, device, scope)
        # One op per device first, so that only one edge leaves each device.
        per_device = [_waiting(by_device[device], device, None) for device in sorted(by_device)]
        with graph.device(""), control_dependencies(per_device):
            return no_op(name=scope)


def _waiting(inputs: list[Any], device: str, name: str | None) -> Operation:
    with control_dependencies(inputs):
        if not device:
            return no_op(name=name)
        with get_default_graph().device(device):
            return no_op(name=name)


def tuple_(tensors: Any, name: str | None = None, control_inputs: Any = None) -> list[Any]:
    """Returns `tensors`; each becomes available only when all are. None stays None.

    >>> a, b = tf.tuple([a, b])
    """
    with name_scope(name, "tuple", [t for t in tensors if isinstance(t, Tensor)]):
        waited: list[Any] = [_op_of(t) for t in tensors if t is not None]
        if not waited:
            raise ValueError(f"`tensors` must have at least one element that is not None, received {tensors!r}.")
        extra = []
        for item in control_inputs or ():
            element = getattr(item, "op", item)
            if not isinstance(element, Operation):
                raise TypeError(f"Control inputs must be operations or tensors, received {item!r}.")
            extra.append(element)
        # Each once, in the order in which they were made.
        ops = sorted(dict.fromkeys([*waited, *extra]), key=lambda o: o._id)
        gate = group(*ops)
        return [None if tensor is None else with_dependencies([gate], tensor) for tensor in tensors]


def _op_of(value: Any) -> Operation:
    operation: Operation = value if isinstance(value, Operation) else value.op
    return operation


def with_dependencies(dependencies: Any, output_tensor: Any, name: str | None = None) -> Any:
    """`output_tensor`, available only after `dependencies`."""
    identity = registered("Identity")
    assert identity is not None
    if isinstance(output_tensor, Operation):
        with control_dependencies([*dependencies, output_tensor]):
            return no_op(name=name)
    values = [v for v in (*dependencies, output_tensor) if isinstance(v, Tensor)]
    with (
        name_scope(name, "control_dependency", values) as scope,
        colocate_with(output_tensor),
        control_dependencies(dependencies),
    ):
        if isinstance(output_tensor, IndexedSlices):
            copied = identity(output_tensor.values, name=scope)
            return IndexedSlices(copied, output_tensor.indices, output_tensor.dense_shape)
        return identity(convert_to_tensor(output_tensor), name=scope)
