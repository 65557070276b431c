"""Assertions about tensors. They fail while the graph is built if the values are known then, else when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import reshaping
from penstock.ops.control import grouping
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math import compare, reduce, unary

Check = Callable[..., Operation]

# Values.


def _require(
    default_name: str,
    compared: Any,
    x: Any,
    y: Any,
    data: Any,
    summarize: int | None,
    message: str | None,
    name: str | None,
    text: Callable[[Tensor, Tensor], list[Any]],
) -> Operation:
    """Adds an assertion. `text` returns the sentences and tensors to show if the condition does not hold."""
    with name_scope(name, default_name, [x, y, *(data or ())]):
        x, y = convert_to_tensor(x, name="x"), convert_to_tensor(y, name="y")
        condition = reduce.reduce_all(compared(x, y))
        known_x, known_y = constant_value(x), constant_value(y)
        known = known_x is not None and known_y is not None
        if known and not np.all(compared.kernel(known_x, known_y)):
            lines = [constant_value(part) if isinstance(part, Tensor) else part for part in text(x, y)]
            raise InvalidArgumentError(None, condition.op, "\n".join(map(str, [*_message_lines(message), *lines])))
        shown = text(x, y) if data is None else data
        return Assert(condition, [*_message_lines(message), *shown], summarize=summarize)


def _message_lines(message: str | None) -> list[str]:
    return [message] if message else []


def _pairwise(name: str, sign: str, compared: Any, scopes: int = 1) -> Check:
    """The public assertion `name` about two tensors; TensorFlow opens `scopes` name scopes for it."""
    default_name = name

    def check(
        x: TensorLike,
        y: TensorLike,
        data: Any = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        for _ in range(scopes - 1):
            with name_scope(name, default_name, [x, y]):
                pass
        return _require(default_name, compared, x, y, data, summarize, message, name, text)

    def text(x: Tensor, y: Tensor) -> list[Any]:
        return [f"Condition x {sign} y did not hold element-wise:", f"x ({x.label}) = ", x, f"y ({y.label}) = ", y]

    return _documented(check, name, f"x {sign} y", "x, y")


def _about_zero(name: str, sign: str, compared: Any, inner_name: str, zero_first: bool) -> Check:
    """The public assertion `name` about one tensor, which compares it with 0 under `inner_name`."""
    default_name = name

    def check(
        x: TensorLike,
        data: Any = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        with name_scope(name, default_name, [x, *(data or ())]):
            x = convert_to_tensor(x, name="x")
            zero = convert_to_tensor(0, dtype=x.dtype.base_dtype)
            first, second = (zero, x) if zero_first else (x, zero)
            return _require(inner_name, compared, first, second, data, summarize, message, None, text)

    def text(first: Tensor, second: Tensor) -> list[Any]:
        x = second if zero_first else first
        return [f"Condition x {sign} 0 did not hold element-wise:", f"x ({x.label}) = ", x]

    return _documented(check, name, f"x {sign} 0", "x")


def _documented(check: Check, name: str, condition: str, arguments: str) -> Check:
    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""An operation that fails unless `{condition}` everywhere, showing `message` and `data`.

    >>> with tf.control_dependencies([tf.{name}({arguments})]): result = tf.identity(x)
    """
    return check


assert_equal = _pairwise("assert_equal", "==", compare.equal, scopes=2)
assert_none_equal = _pairwise("assert_none_equal", "!=", compare.not_equal)
assert_less = _pairwise("assert_less", "<", compare.less)
assert_less_equal = _pairwise("assert_less_equal", "<=", compare.less_equal)
assert_greater = _pairwise("assert_greater", ">", compare.greater)
assert_greater_equal = _pairwise("assert_greater_equal", ">=", compare.greater_equal)
assert_positive = _about_zero("assert_positive", ">", compare.less, "assert_less", True)
assert_negative = _about_zero("assert_negative", "<", compare.less, "assert_less", False)
assert_non_negative = _about_zero("assert_non_negative", ">=", compare.less_equal, "assert_less_equal", True)
assert_non_positive = _about_zero("assert_non_positive", "<=", compare.less_equal, "assert_less_equal", False)


def assert_near(
    x: TensorLike,
    y: TensorLike,
    rtol: TensorLike = None,
    atol: TensorLike = None,
    data: Any = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless |x - y| < atol + rtol * |y|; both default to 10 times the type's epsilon.

    >>> tf.debugging.assert_near(x, y, rtol=1e-3)
    """
    with name_scope(name, "assert_near", [x, y, rtol, atol, data]):
        x = convert_to_tensor(x, name="x")
        y = convert_to_tensor(y, dtype=x.dtype.base_dtype, name="y")
        kind = x.dtype.base_dtype.real_dtype
        default = 10 * np.finfo(kind.as_numpy_dtype).eps if kind is not dt.bfloat16 else 10 * 2.0**-7
        rtol = convert_to_tensor(default if rtol is None else rtol, dtype=kind, name="rtol")
        atol = convert_to_tensor(default if atol is None else atol, dtype=kind, name="atol")
        if data is None:
            data = [
                message or "",
                f"x and y not equal to tolerance rtol = {rtol}, atol = {atol}",
                f"x ({x.label}) = ",
                x,
                f"y ({y.label}) = ",
                y,
            ]
        allowed = atol + rtol * unary.abs(y)
        condition = reduce.reduce_all(compare.less(unary.abs(x - y), allowed))
        return Assert(condition, data, summarize=summarize)


# Ranks.


def _require_rank(
    default_name: str,
    said: str,
    x: Any,
    ranks: list[Any],
    data: Any,
    summarize: int | None,
    message: str | None,
    name: str | None,
    allowed: Callable[[Any, list[Any]], Any],
    condition: Callable[[Tensor, list[Tensor]], Tensor],
) -> Operation:
    """Checks a rank: `allowed` checks known ranks, `condition` checks tensors."""
    with name_scope(name, default_name, [x, *ranks, *(data or ())]):
        x = x if isinstance(x, SparseTensor) else convert_to_tensor(x, name="x")
        wanted = [convert_to_tensor(rank, name="rank") for rank in ranks]
        shape = reshaping.shape(x)
        for rank in wanted:
            assert_type(rank, dt.int32)
        known = [constant_value(rank) for rank in wanted]
        if any(rank is not None and rank.ndim != 0 for rank in known):
            raise ValueError(f"{default_name}: a rank must be a scalar, received {ranks}.")
        actual = x.shape.rank
        if actual is not None and all(rank is not None for rank in known):
            numbers = [int(rank) for rank in known if rank is not None]
            if not allowed(actual, numbers):
                start = "".join(f"{m}. " for m in _message_lines(message))
                expected = str(tuple(numbers)) if default_name == "assert_rank_in" else str(numbers[0])
                raise ValueError(
                    f"{start}Tensor {_name_of(x)} must have {said} {expected}. Received rank {actual}, shape {x.shape}"
                )
            return grouping.no_op(name="static_checks_determined_all_ok")
        holds = condition(reshaping.rank(x), wanted)
        scalars = [assert_rank(rank, 0) for rank, value in zip(wanted, known, strict=True) if value is None]
        if scalars:
            holds = grouping.with_dependencies(scalars, holds)
        if data is None:
            data = [message or "", f"Tensor {_name_of(x)} must have {said}", *wanted, "Received shape: ", shape]
        return Assert(holds, data, summarize=summarize)


def _name_of(tensor: Any) -> str:
    return str(tensor.indices.label if isinstance(tensor, SparseTensor) else tensor.label)


def assert_rank(
    x: TensorLike,
    rank: TensorLike,
    data: Any = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless `x` has `rank` dimensions: `tf.assert_rank(images, 4)`."""
    return _require_rank(
        "assert_rank",
        "rank",
        x,
        [rank],
        data,
        summarize,
        message,
        name,
        lambda actual, wanted: actual == wanted[0],
        lambda actual, wanted: compare.equal(actual, wanted[0]),
    )


def assert_rank_at_least(
    x: TensorLike,
    rank: TensorLike,
    data: Any = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless `x` has `rank` dimensions or more: `tf.assert_rank_at_least(x, 2)`."""
    return _require_rank(
        "assert_rank_at_least",
        "rank at least",
        x,
        [rank],
        data,
        summarize,
        message,
        name,
        lambda actual, wanted: actual >= wanted[0],
        lambda actual, wanted: compare.greater_equal(actual, wanted[0]),
    )


def assert_rank_in(
    x: TensorLike,
    ranks: Any,
    data: Any = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Operation:
    """An operation that fails unless the rank of `x` is one of `ranks`: `tf.assert_rank_in(weights, (0, 1))`."""

    def one_of(actual: Tensor, wanted: list[Tensor]) -> Tensor:
        either: Tensor = compare.equal(wanted[0], actual)
        for rank in wanted[1:]:
            either = compare.logical_or(either, compare.equal(rank, actual))
        return either

    return _require_rank(
        "assert_rank_in",
        "rank in",
        x,
        list(ranks),
        data,
        summarize,
        message,
        name,
        lambda actual, wanted: actual in wanted,
        one_of,
    )


# Types, and what is always known statically.


def assert_type(
    tensor: TensorLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> Operation:
    """Raises TypeError unless `tensor` has type `tf_type`: `tf.assert_type(x, tf.float32)`."""
    wanted = as_dtype(tf_type)
    with name_scope(name, "assert_type", [tensor]):
        if not isinstance(tensor, SparseTensor):
            tensor = convert_to_tensor(tensor, name="tensor")
        if tensor.dtype.base_dtype != wanted:
            start = "".join(f"{m}. " for m in _message_lines(message))
            raise TypeError(f"{start}{_name_of(tensor)} must be of type {wanted!r}, received {tensor.dtype!r}.")
        return grouping.no_op(name="statically_determined_correct_type")


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> Operation:
    """Raises TypeError unless `x` has an integer type: `tf.assert_integer(ids)`."""
    with name_scope(name, "assert_integer", [x]):
        x = convert_to_tensor(x, name="x")
        if not x.dtype.is_integer:
            start = "".join(f"{m} " for m in _message_lines(message))
            raise TypeError(f"{start}Expected an integer type, received {x.label} of type {x.dtype!r}.")
        return grouping.no_op(name="statically_determined_was_integer")


def assert_scalar(tensor: TensorLike, name: str | None = None, message: str | None = None) -> Tensor:
    """`tensor`; raises ValueError unless it is known to be a scalar: `tf.assert_scalar(rate)`."""
    with name_scope(name, "assert_scalar", [tensor]):
        tensor = convert_to_tensor(tensor)
        if tensor.shape.rank != 0:
            start = "".join(f"{m} " for m in _message_lines(message))
            raise ValueError(f"{start}Expected a scalar, received {tensor.label} of shape {tensor.shape}.")
        scalar: Tensor = tensor
        return scalar


def assert_proper_iterable(values: Any) -> None:
    """Raises TypeError unless `values` is a real list of tensors: not a tensor, an array, a string, or no iterable."""
    unintended = (Tensor, SparseTensor, np.ndarray, bytes, str)
    if isinstance(values, unintended):
        raise TypeError(f"Expected argument values to be a proper iterable, received {type(values).__name__}.")
    if not hasattr(values, "__iter__"):
        raise TypeError(f"Expected argument values to be iterable, received {type(values).__name__}.")


def assert_same_float_dtype(tensors: Any = None, dtype: DTypeLike | None = None) -> DType:
    """The one floating type of all `tensors` (float32 without any); ValueError unless they agree.

    >>> tf.debugging.assert_same_float_dtype([x, y])
    """
    wanted = None if dtype is None else as_dtype(dtype).base_dtype
    for tensor in tensors or ():
        found = tensor.dtype.base_dtype
        if wanted is None:
            wanted = found
        elif found is not wanted:
            raise ValueError(f"Tensor {_name_of(tensor)} has type {found.name}, but {wanted.name} was expected.")
    wanted = wanted or dt.float32
    if not wanted.is_floating:
        raise ValueError(f"Expected a floating point type, received {wanted.name}.")
    return wanted


def is_tensor(x: TensorLike) -> bool:
    """True if `x` is a tensor, a sparse one, or a variable: `tf.is_tensor(tf.constant(1))`."""
    return isinstance(x, (Tensor, SparseTensor, IndexedSlices)) or hasattr(x, "_as_tensor")


def is_numeric_tensor(tensor: TensorLike) -> bool:
    """True if `tensor` is a Tensor of numbers (not strings, truth values or handles)."""
    if not isinstance(tensor, Tensor):
        return False
    kind = tensor.dtype.base_dtype
    return kind.is_floating or kind.is_integer or kind.is_complex or kind.is_quantized
