"""Python's operators on tensors, and on other objects that convert to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.linalg import matmul
from penstock.ops.math import arithmetic, bitwise, compare, unary

Binary = Callable[..., Any]


def _by_type(logical: Binary, bits: Binary) -> Binary:
    """`&`, `|` and `^`: logical for bools, bitwise for integers."""

    def function(x: Any, y: Any, name: str | None = None) -> Any:
        return logical(x, y, name=name) if x.dtype.base_dtype is dt.bool else bits(x, y)

    return function


def _tensor(x: Any) -> Any:
    return x if isinstance(x, (Tensor, Ragged)) else convert_to_tensor(x)


def _operand(x: Any, other: Any) -> Any:
    """The second operand as a tensor: of the type of the first, or of its own, which the operation then refuses."""
    if isinstance(other, (Tensor, Ragged)):
        return other
    try:
        return convert_to_tensor(other, dtype=x.dtype.base_dtype)
    except (TypeError, ValueError):
        return convert_to_tensor(other)


def _forward(operator: str, function: Binary) -> Binary:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, SparseTensor):
            return NotImplemented  # SparseTensor has the reflected operators
        with name_scope(None, operator, [self, other]) as scope:
            try:
                x = _tensor(self)
                return function(x, _operand(x, other) if x.graph.is_eager else other, name=scope)
            except (TypeError, ValueError):
                # The other operand may support tensors even if tensors do not support it.
                reflected = None if isinstance(other, Tensor) else getattr(other, f"__r{operator}__", None)
                if reflected is None:
                    raise
                try:
                    result = reflected(self)
                except (TypeError, ValueError):
                    result = NotImplemented
                if result is NotImplemented:
                    raise
                return result

    return method


def _reflected(operator: str, function: Binary) -> Binary:
    def method(self: Any, other: Any) -> Any:
        with name_scope(None, operator, [other, self]) as scope:
            y = _tensor(self)
            x = other if isinstance(other, Ragged) else convert_to_tensor(other, dtype=y.dtype.base_dtype, name="x")
            return function(x, y, name=scope)

    return method


def _comparison(function: Binary) -> Binary:
    return lambda self, other: function(_tensor(self), other)


def _equality(function: Binary, negated: bool) -> Binary:
    """`==` or `!=`: of values where these exist or will, as in functions; of identities in graphs of TensorFlow 1."""

    def method(self: Any, other: Any) -> Any:
        if other is None:
            return negated
        if not self.graph.equals_by_value:
            return (self is other) is not negated
        return function(_tensor(self), other, incompatible_shape_error=False)

    return method


def _invert(x: Any) -> Any:
    x = _tensor(x)
    return compare.logical_not(x) if x.dtype.base_dtype is dt.bool else bitwise.invert(x)


def _methods() -> dict[str, Binary]:
    # The name of an operator is that of its method and of the node it makes.
    binary: dict[str, Binary] = {
        "add": arithmetic.add,
        "sub": arithmetic.sub,
        "mul": arithmetic.mul,
        "div": arithmetic.div,
        "truediv": arithmetic.truediv,
        "floordiv": arithmetic.floordiv,
        "mod": arithmetic.floor_mod,
        "pow": arithmetic.pow,
        "matmul": lambda x, y, name: matmul.matmul(x, y, name=name),
        "and": _by_type(compare.logical_and, bitwise.bitwise_and),
        "or": _by_type(compare.logical_or, bitwise.bitwise_or),
        "xor": _by_type(compare.logical_xor, bitwise.bitwise_xor),
    }
    comparisons: dict[str, Binary] = {
        "lt": compare.less,
        "le": compare.less_equal,
        "gt": compare.greater,
        "ge": compare.greater_equal,
    }
    methods: dict[str, Binary] = {}
    for operator, function in binary.items():
        methods[f"__{operator}__"] = _forward(operator, function)
        methods[f"__r{operator}__"] = _reflected(operator, function)
    for operator, function in comparisons.items():
        methods[f"__{operator}__"] = _comparison(function)
    methods["__eq__"] = _equality(compare.equal, negated=False)
    methods["__ne__"] = _equality(compare.not_equal, negated=True)
    methods["__neg__"] = lambda x: unary.negative(_tensor(x))
    methods["__abs__"] = lambda x: unary.abs(_tensor(x))
    methods["__invert__"] = _invert
    return methods


_METHODS = _methods()


def install_operators(cls: type) -> None:
    """Gives a class whose objects convert to tensors the operators that tensors have.

    >>> install_operators(Variable)
    """
    for name, method in _METHODS.items():
        setattr(cls, name, method)


install_operators(Tensor)
