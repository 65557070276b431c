"""Infers static shapes, by an op's own rule or by tracing its kernel with stand-in sizes for unknown ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from penstock.graph.checks import ignoring_checks
from penstock.graph.constant import constant_value
from penstock.graph.opdef import grouped, static_positions
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape

# There are two different stand-ins. An output dimension that is the same for both does not depend on the unknown.
_PROBES = (13, 29)
_CACHE: dict[Any, list[tuple[int | None, ...] | None]] = {}
_UNTRACEABLE = frozenset(("string", "resource", "variant"))


def infer_shapes(op: Operation) -> None:
    """Sets the static shapes of a new node's outputs; ValueError, naming the node, if its inputs do not fit."""
    if not op.outputs:
        return
    rule = op.op_def.shape
    try:
        shapes = _by_tracing(op) if rule is None else rule(op)
    except (ValueError, IndexError) as error:
        inputs = ", ".join(_brief(t.shape) for t in op.input_list)
        raise ValueError(f"{error} for '{op.name}' (op: '{op.type}') with input shapes: {inputs}.") from error
    for tensor, shape in zip(op.outputs, shapes, strict=True):
        tensor._shape = shape if isinstance(shape, TensorShape) else TensorShape(shape)


def _brief(shape: TensorShape) -> str:
    return "?" if shape.rank is None else "[" + ",".join("?" if d is None else str(d) for d in shape.as_list()) + "]"


def _by_tracing(op: Operation) -> list[TensorShape]:
    unknown = [TensorShape.of(None) for _ in op.outputs]
    tensors = (*op.input_list, *op.outputs)
    if op.op_def.host or any(t.dtype.base_dtype.name in _UNTRACEABLE for t in tensors):
        return unknown
    positions = static_positions(op.op_def, op.attrs, len(op.input_list))
    static = {i: constant_value(op.input_list[i]) for i in sorted(positions)}
    if any(v is None for v in static.values()) or any(t.shape.rank is None for t in op.input_list):
        return unknown
    specs = tuple((t.dtype.base_dtype, t.shape._dims) for t in op.input_list)
    attrs = {k: v for k, v in op.attrs.items() if k in op.op_def.wants}
    key = (
        op.op_def.name,
        specs,
        tuple((i, v.tobytes(), v.shape) for i, v in static.items() if v is not None),
        tuple((k, repr(v)) for k, v in attrs.items()),
    )
    if key not in _CACHE:
        _CACHE[key] = _probe(op, specs, static, attrs)
    return [TensorShape.of(dims) for dims in _CACHE[key]]


def _probe(op: Operation, specs: Any, static: dict[int, Any], attrs: dict[str, Any]) -> list[Any]:
    complete = all(None not in dims for _, dims in specs)
    found = []
    for probe in _PROBES[:1] if complete else _PROBES:
        try:
            found.append(_trace_shapes(op, specs, static, attrs, probe))
        except (TypeError, ValueError, IndexError, ZeroDivisionError, AssertionError) as error:
            if complete:
                raise ValueError(str(error).splitlines()[0]) from error
            return [None] * len(op.outputs)
    if len(found) == 1:
        return found[0]
    merged: list[Any] = []
    for first, second in zip(*found, strict=True):
        same_rank = len(first) == len(second)
        merged.append(tuple(a if a == b else None for a, b in zip(first, second, strict=True)) if same_rank else None)
    return merged


def _trace_shapes(op: Operation, specs: Any, static: dict[int, Any], attrs: dict[str, Any], probe: int) -> list[Any]:
    traced = [i for i in range(len(specs)) if i not in static]
    structs = [
        jax.ShapeDtypeStruct(tuple(probe if d is None else d for d in specs[i][1]), specs[i][0].as_numpy_dtype)
        for i in traced
    ]
    if op.op_def.random:
        attrs = {**attrs, "key": np.zeros(3, np.uint64)}

    def call(*arrays: Any) -> Any:
        values: list[Any] = [None] * len(specs)
        for i, value in static.items():
            values[i] = value
        for i, array in zip(traced, arrays, strict=True):
            values[i] = array
        return op.op_def.kernel(*grouped(op.op_def, op.attrs, values), **attrs)

    with ignoring_checks():
        result = jax.eval_shape(call, *structs)
    results = result if isinstance(result, (tuple, list)) else [result]
    return [tuple(int(d) for d in r.shape) for r in results[: len(op.outputs)]]
