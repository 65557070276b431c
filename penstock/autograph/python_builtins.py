"""Builtin functions of Python on tensors and datasets. On other values they are Python's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from penstock.autograph.dispatch import becomes_nodes, is_dataset
from penstock.graph import dtype as dt
from penstock.ops.array.ranges import range as tensor_range
from penstock.ops.array.reshaping import shape
from penstock.ops.array.sorting import sort
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.debugging.printing import print_values
from penstock.ops.math.arithmetic import maximum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import logical_not
from penstock.ops.math.unary import abs as tensor_abs
from penstock.ops.string.forms import string_to_number


def abs_(x: Any) -> Any:
    """`abs(x)`."""
    return tensor_abs(x) if becomes_nodes(x) else abs(x)


def float_(x: Any = 0) -> Any:
    """`float(x)`: a float32 tensor of a tensor."""
    return _as_number(x, dt.float32) if becomes_nodes(x) else float(x)


def int_(x: Any = 0, *base: Any, **named_base: Any) -> Any:
    """`int(x)`: an int32 tensor of a tensor."""
    if not becomes_nodes(x):
        return int(x, *base, **named_base)
    if (*base, *named_base.values()) not in ((), (10,)):
        raise NotImplementedError(f"int of the tensor {x}: only base 10 is supported, received {base or named_base}.")
    return _as_number(x, dt.int32)


def _as_number(x: Any, dtype: dt.DType) -> Any:
    return string_to_number(x, dtype) if x.dtype.base_dtype is dt.string else cast(x, dtype)


def len_(s: Any) -> Any:
    """`len(s)`: of a tensor the first dimension, a number if it is known, else a tensor."""
    if isinstance(s, TensorArray):
        return s.size()
    if not becomes_nodes(s):
        return len(s)
    if s.shape.rank == 0:
        raise ValueError(f"len requires a non-scalar tensor, got one of shape {s.shape}")
    if s.shape.rank is not None and s.shape.as_list()[0] is not None:
        return s.shape.as_list()[0]
    sizes: Any = shape(s)
    return sizes[0]


def print_(*objects: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> Any:
    """`print(...)`: with a tensor among the objects a node that prints when it runs."""
    if not any(map(becomes_nodes, objects)):
        return print(*objects, sep=sep, end=end, file=file, flush=flush)
    return print_values(
        *objects,
        sep=" " if sep is None else sep,
        end="\n" if end is None else end,
        output_stream=sys.stdout if file is None else file,
        summarize=-1,
    )


def range_(*bounds: Any) -> Any:
    """`range(...)`: of a tensor a tensor, over which a `for` statement counts."""
    if not any(map(becomes_nodes, bounds)):
        return range(*bounds)
    # Python's range is empty where tf.range refuses a limit below the start.
    if len(bounds) == 1:
        return tensor_range(maximum(bounds[0], 0))
    if len(bounds) == 2:
        return tensor_range(bounds[0], maximum(*bounds))
    return tensor_range(*bounds)


def sorted_(iterable: Any, *, key: Any = None, reverse: Any = False) -> Any:
    """`sorted(...)`: of a vector the sorted vector."""
    if not becomes_nodes(iterable):
        return sorted(iterable, key=key, reverse=reverse)
    if key is not None:
        raise NotImplementedError(f"sorted of the tensor {iterable}: a key is not supported, use tf.argsort.")
    if iterable.shape.rank not in (None, 1):
        raise ValueError(f"sort only supports only 1D tensors, got one of shape {iterable.shape}")
    return sort(iterable, direction="DESCENDING" if reverse else "ASCENDING")


# Datasets


def enumerate_(s: Any, start: Any = 0) -> Any:
    """`enumerate(s, start)`."""
    return s.enumerate(start) if is_dataset(s) else enumerate(s, start)


def zip_(*iterables: Any, strict: bool = False) -> Any:
    """`zip(...)`: of datasets a dataset."""
    if not _are_datasets(iterables):
        return zip(*iterables, strict=strict)
    if strict:
        raise ValueError("strict zip not supported by Dataset")
    return iterables[0].zip(iterables)


def map_(function: Callable[..., Any], *iterables: Any) -> Any:
    """`map(...)`: of datasets a dataset."""
    return iterables[0].zip(iterables).map(function) if _are_datasets(iterables) else map(function, *iterables)


def filter_(function: Any, iterable: Any) -> Any:
    """`filter(...)`: of a dataset a dataset."""
    return iterable.filter(function) if is_dataset(iterable) else filter(function, iterable)


def any_(iterable: Any) -> Any:
    """`any(...)`: of a dataset of bools a tensor."""
    if not is_dataset(iterable):
        return any(iterable)
    return _bools(iterable, "any").filter(lambda x: x).take(1).reduce(False, lambda _, x: x)


def all_(iterable: Any) -> Any:
    """`all(...)`: of a dataset of bools a tensor."""
    if not is_dataset(iterable):
        return all(iterable)
    return _bools(iterable, "all").filter(logical_not).take(1).reduce(True, lambda _, x: x)


def _are_datasets(iterables: tuple[Any, ...]) -> bool:
    return bool(iterables) and all(map(is_dataset, iterables))


def _bools(dataset: Any, builtin: str) -> Any:
    if dataset.output_types is not dt.bool:
        raise ValueError(
            f'in graph mode, the "{builtin}" builtin only supports datasets that return bool scalars; got: '
            f"{dataset.element_spec}"
        )
    return dataset


OVERLOADS: dict[Any, Callable[..., Any]] = {
    abs: abs_,
    all: all_,
    any: any_,
    enumerate: enumerate_,
    filter: filter_,
    float: float_,
    int: int_,
    len: len_,
    map: map_,
    print: print_,
    range: range_,
    sorted: sorted_,
    zip: zip_,
}
