"""A jaxpr as a flat list of nodes: calls are inlined, equal nodes merged, unused ones removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.sizes import dimension_key, has_symbols

# Calls, and the param that holds the called jaxpr.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr",
    "eval_jaxpr": "jaxpr",
}
# Primitives whose results are their operands, one for one.
_IDENTITIES = {
    "copy",
    "copy_p",
    "device_put",
    "name",
    "optimization_barrier",
    "pvary",
    "sharding_constraint",
    "stop_gradient",
    "layout_constraint",
    "reshard",
}


class Value:
    """An array of a program: its type, the key of its shape, and the array itself if it is a constant."""

    __slots__ = ("constant", "dtype", "shape", "shape_key")

    def __init__(self, aval: Any, primitive: str) -> None:
        dtype = getattr(aval, "dtype", None)
        if dtype is None or jax.numpy.issubdtype(dtype, jax.dtypes.extended):
            raise NoRule(primitive, f"values of type {aval} are no arrays")
        self.dtype = np.dtype(dtype)
        self.shape: tuple[Any, ...] = tuple(aval.shape)
        self.shape_key = tuple(map(dimension_key, self.shape))
        self.constant: np.ndarray | None = None


class Node:
    """One primitive applied to values."""

    __slots__ = ("blocks", "effects", "inputs", "outputs", "params", "primitive", "several")

    def __init__(self, equation: Any, inputs: list[Value], outputs: list[Value]) -> None:
        self.primitive: str = equation.primitive.name
        self.params: dict[str, Any] = equation.params
        self.inputs = inputs
        self.outputs = outputs
        self.several: bool = equation.primitive.multiple_results  # even if there is one result
        self.effects = bool(equation.effects)
        self.blocks: dict[Any, Any] = {}  # jaxprs among the params, prepared once


class FlatJaxpr:
    """The nodes of a closed jaxpr in order, its inputs and its outputs.

    FlatJaxpr(jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.sin(x))(1.0)).nodes has one sine and one addition.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.nodes: list[Node] = []
        self._merged: dict[Any, list[Value]] = {}
        self._constants: dict[Any, Value] = {}
        self.inputs = [Value(variable.aval, "argument") for variable in jaxpr.jaxpr.invars]
        self.outputs = self._inline(jaxpr, self.inputs)
        self._remove_unused()

    def _inline(self, jaxpr: Any, arguments: Sequence[Value]) -> list[Value]:
        jaxpr, constants = (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        for variable, constant in zip(jaxpr.constvars, constants, strict=True):
            known[variable] = self._constant(variable.aval, constant)

        def read(atom: Any) -> Value:
            return self._constant(atom.aval, atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            for variable, value in zip(equation.outvars, self._results(equation, inputs), strict=True):
                known[variable] = value
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, equation: Any, inputs: list[Value]) -> list[Value]:
        name, params = equation.primitive.name, equation.params
        if name in CALLS:
            return self._inline(params[CALLS[name]], inputs)
        if name == "custom_linear_solve":
            return self._inline(params["jaxprs"].solve, _solve_inputs(params, inputs))
        if name in _IDENTITIES or _changes_nothing(name, equation, inputs):
            return inputs
        key = None
        if not equation.effects:
            kept = tuple((item, _key(params[item])) for item in sorted(params))
            key = (name, kept, tuple(map(id, inputs)))
            if key in self._merged:
                return self._merged[key]
        outputs = [Value(variable.aval, name) for variable in equation.outvars]
        self.nodes.append(Node(equation, inputs, outputs))
        if key is not None:
            self._merged[key] = outputs
        return outputs

    def _constant(self, aval: Any, value: Any) -> Value:
        constant = Value(aval, "constant")
        constant.constant = array = np.asarray(value, dtype=constant.dtype)
        return self._constants.setdefault((array.dtype, array.tobytes()) if array.ndim == 0 else id(value), constant)

    def _remove_unused(self) -> None:
        used = set(map(id, self.outputs))
        kept = []
        for node in reversed(self.nodes):
            if node.effects or any(id(output) in used for output in node.outputs):
                used.update(map(id, node.inputs))
                kept.append(node)
        self.nodes = kept[::-1]


def _solve_inputs(params: Any, inputs: list[Value]) -> list[Value]:
    """The constants of a custom_linear_solve's solver, and the right-hand sides."""
    lengths = params["const_lengths"]
    begin = lengths.matvec + lengths.vecmat
    return inputs[begin : begin + lengths.solve] + inputs[sum(lengths) :]


def _changes_nothing(name: str, equation: Any, inputs: list[Value]) -> bool:
    """True for conversions to the same type and changes of shape to the same shape."""
    if name == "convert_element_type":
        return bool(inputs[0].dtype == equation.outvars[0].aval.dtype)
    if name == "reshape" and equation.params["dimensions"] is not None:
        return False
    if name in ("reshape", "broadcast_in_dim", "squeeze"):
        return inputs[0].shape_key == tuple(map(dimension_key, equation.outvars[0].aval.shape))
    if name == "transpose":
        return tuple(equation.params["permutation"]) == tuple(range(len(inputs[0].shape)))
    return False


def _key(param: Any) -> Any:
    """A hashable value that is equal for equal params."""
    if isinstance(param, (tuple, list)):
        return tuple(map(_key, param))
    if has_symbols(param):
        return str(param)
    if isinstance(param, (core.Jaxpr, core.ClosedJaxpr)):
        return id(param)
    try:
        hash(param)
    except TypeError:
        return id(param)
    return type(param), param
