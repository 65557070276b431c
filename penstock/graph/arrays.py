"""Python values as arrays of TensorFlow's types."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dtypes
from penstock.graph.dimension import Dimension
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.shape import TensorShape, as_shape

MAX_RANK = 254
_NUMBERS = (bool, int, float, complex)
_SCALARS = frozenset((*_NUMBERS, str, bytes))
_PLAIN = (*_SCALARS, list, tuple, range, Dimension)  # Python's own types: NumPy has no type for them.


def array_of(value: Any, dtype: DType | None = None, shape: Any = None) -> tuple[np.ndarray, DType]:
    """Turns `value` into an array and its TensorFlow type; Python floats are float32, ints int32, text bytes.

    >>> array_of([1, 2.5])[1]
    tf.float32
    """
    if value is None:
        raise ValueError("None values not supported.")
    wanted = None if dtype is None else dtype.base_dtype
    array = _from_numpy(np.asarray(value), wanted) if _is_array(value) else _from_python(value, wanted)
    found = wanted or as_dtype(array.dtype)
    if shape is not None:
        array = _fill(array, as_shape(shape))
    return array, found


def _fill(array: np.ndarray, shape: TensorShape) -> np.ndarray:
    if not shape.is_fully_defined():
        raise ValueError(f"The shape of a constant must be fully known, received {shape}.")
    dims = tuple(d or 0 for d in shape.as_list())
    size = int(np.prod(dims, dtype=np.int64))
    if array.size == size:
        return array.reshape(dims)
    if array.size == 1:
        # A view that repeats one value, so that a GraphDef holds the value once, as TensorFlow's does.
        return np.broadcast_to(array.reshape(()), dims)
    if array.size > size:
        raise ValueError(f"Too many elements provided. Needed at most {size}, but received {array.size}")
    # TensorFlow repeats the last value to fill the shape.
    flat = np.empty(size, array.dtype)
    flat[: array.size] = array.reshape(-1)
    flat[array.size :] = array.reshape(-1)[-1]
    return flat.reshape(dims)


def _from_numpy(array: np.ndarray, wanted: DType | None) -> np.ndarray:
    if array.dtype.kind in "US":
        array = _bytes_array(array.astype(object))
    if wanted is dtypes.string:
        if array.dtype != object:
            raise TypeError(f"Expected string values, received an array of {array.dtype}.")
        return _bytes_array(array)
    if array.dtype == object:
        if wanted is None:
            return _bytes_array(array)
        return _from_python(array.tolist(), wanted)
    if wanted is None:
        as_dtype(array.dtype)  # raises TypeError if there is no such TensorFlow type
        return array
    return array.astype(wanted.as_numpy_dtype, copy=False)


def _bytes_array(array: np.ndarray) -> np.ndarray:
    flat = np.empty(array.size, object)
    for i, item in enumerate(array.reshape(-1)):
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise TypeError(f"Expected bytes or text, received {item!r} of type {type(item).__name__}.")
        flat[i] = item
    return flat.reshape(array.shape)


def _is_array(value: Any) -> bool:
    """Tells if NumPy gives `value` a type of its own: an array, a buffer, or an object that makes one."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    if isinstance(value, _PLAIN):
        return False
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return True
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _plain(value: Any, leaves: list[Any]) -> Any:
    """Turns `value` into lists, arrays, numbers and text only. Adds the items of the lists to `leaves`."""
    if value.__class__ in _SCALARS:
        leaves.append(value)
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item, leaves) for item in value]
    if isinstance(value, range):
        value = np.arange(value.start, value.stop, value.step)
    elif _is_array(value):
        value = np.asarray(value)
        if value.dtype.kind in "USO":
            return _plain(value.tolist(), leaves)
    leaves.append(value)
    return int(value) if isinstance(value, Dimension) else value


def _from_python(value: Any, wanted: DType | None) -> np.ndarray:
    leaves: list[Any] = []
    value = _plain(value, leaves)
    if any(isinstance(x, (str, bytes)) for x in leaves) or wanted is dtypes.string:
        if wanted not in (None, dtypes.string):
            raise TypeError(f"Expected {wanted.name}, but got {leaves[0]!r} of type '{type(leaves[0]).__name__}'.")
        return _bytes_array(_shaped(value, object))
    for leaf in leaves:
        if not isinstance(leaf, (*_NUMBERS, np.generic, np.ndarray)) and not hasattr(leaf, "__int__"):
            raise TypeError(f"Failed to convert {leaf!r} of type {type(leaf).__name__} to a Tensor.")
    if wanted is not None:
        _check_leaves(leaves, wanted)
        return _typed(value, wanted)
    if any(isinstance(x, Dimension) for x in leaves):
        _check_leaves(leaves, dtypes.int32)
    array = _shaped(value, None)
    if array.dtype == object:
        raise TypeError(f"Failed to convert {value!r:.80} to a Tensor: no type of tensor holds all of its numbers.")
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    if array.dtype == np.int64:
        narrow = array.astype(np.int32)
        return narrow if np.array_equal(narrow, array) else array
    return array


def _shaped(value: Any, dtype: Any) -> np.ndarray:
    try:
        if dtype is object:
            # np.array(..., object) splits tuples of equal length wrongly, but only for ragged input.
            shape = np.shape(np.array(value, dtype=object))
            return np.array(value, dtype=object).reshape(shape)
        return np.array(value)
    except ValueError as error:
        raise ValueError(f"Can't convert non-rectangular Python sequence to Tensor: {value!r:.80}.") from error


def _typed(value: Any, wanted: DType) -> np.ndarray:
    try:
        return np.array(value, dtype=wanted.as_numpy_dtype)
    except OverflowError as error:
        array = np.array(value)
        if array.dtype == object:
            raise OverflowError(f"{value!r:.80} does not fit {wanted.name}; give a wider dtype.") from error
        return array.astype(wanted.as_numpy_dtype)  # wraps around, as in TensorFlow: 0xFFFFFFFF is -1 in int32
    except (TypeError, ValueError) as error:
        if isinstance(error, ValueError) and "inhomogeneous" in str(error):
            raise ValueError(f"Can't convert non-rectangular Python sequence to Tensor: {value!r:.80}.") from error
        raise TypeError(f"Cannot convert {value!r:.80} to {wanted.name} ({error}).") from error


def _check_leaves(leaves: list[Any], wanted: DType) -> None:
    for leaf in leaves:
        if isinstance(leaf, (np.generic, np.ndarray)):
            continue
        bad = (
            (isinstance(leaf, Dimension) and not wanted.is_integer)
            or (isinstance(leaf, float) and (wanted.is_integer or wanted.is_bool))
            or (isinstance(leaf, complex) and not wanted.is_complex)
            or (wanted.is_bool and not isinstance(leaf, bool))
        )
        if bad:
            raise TypeError(f"Expected {wanted.name}, but got {leaf!r} of type '{type(leaf).__name__}'.")
