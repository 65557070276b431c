"""Converts Python values, arrays, variables and user types to tensors of the default graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.graph.arrays import array_of
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.hooks import hooks
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike, TensorLike

Conversion = Callable[..., Any]
_CONVERSIONS: list[tuple[int, Any, Conversion]] = []


def register_tensor_conversion_function(base_type: Any, conversion_func: Conversion, priority: int = 100) -> None:
    """Lets `convert_to_tensor` take values of `base_type`; called as `f(value, dtype, name, as_ref)`.

    >>> tf.register_tensor_conversion_function(Point, lambda p, **_: tf.stack([p.x, p.y]))
    """
    _CONVERSIONS.append((priority, base_type, conversion_func))
    _CONVERSIONS.sort(key=lambda entry: entry[0])


def convert_to_tensor(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    preferred_dtype: Any = None,
    dtype_hint: Any = None,
    as_ref: bool = False,
) -> Tensor:
    """Converts `value` to a Tensor: itself, a variable's value, or a constant.

    >>> tf.convert_to_tensor([1.0, 2.0]).dtype
    tf.float32
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Tensor):
        if wanted is not None and not wanted.is_compatible_with(value.dtype):
            raise ValueError(
                f"Tensor conversion requested dtype {wanted.name} for Tensor with dtype {value.dtype.name}: {value!r}"
            )
        return value
    preferred = preferred_dtype if preferred_dtype is not None else dtype_hint
    convert = getattr(value, "_as_tensor", None)
    if convert is not None:
        tensor: Tensor = convert(dtype=wanted, name=name, as_ref=as_ref)
        return tensor
    for _, base_type, function in _CONVERSIONS:
        if isinstance(value, base_type):
            result = None
            if wanted is None and preferred is not None:
                try:
                    result = function(value, dtype=as_dtype(preferred), name=name, as_ref=as_ref)
                except (TypeError, ValueError):
                    result = None  # a preference, not a demand
            if result is None or result is NotImplemented:
                result = function(value, dtype=wanted, name=name, as_ref=as_ref)
            if result is not NotImplemented:
                tensor = result
                return tensor
    if wanted is None and preferred is not None:
        try:
            return make_constant(value, as_dtype(preferred), name=name)
        except (TypeError, ValueError):
            pass  # a preference, not a demand
    return make_constant(value, wanted, name=name)


def make_constant(value: Any, dtype: DType | None, shape: Any = None, name: str | None = None) -> Tensor:
    """A Const node holding `value`; a nested list with tensors in it becomes a Pack."""
    if isinstance(value, TensorShape):
        value, dtype = _shape_array(value, dtype)
    elif isinstance(value, (list, tuple)) and _holds_tensors(value):
        return _packed(value, dtype, name or "packed")
    elif isinstance(value, IndexedSlices):
        raise TypeError(f"IndexedSlices must be made dense first, received {value!r}.")
    graph = get_default_graph()
    array, found = _checked_array(value, dtype, shape) if graph.is_eager else array_of(value, dtype, shape)
    const = registered("Const")
    assert const is not None
    tensor = graph.add_op(const, (), {"dtype": found, "value": array}, (found,), name or "Const").outputs[0]
    tensor._shape = TensorShape.of(array.shape)
    return tensor


def _checked_array(value: Any, dtype: DType | None, shape: Any) -> tuple[np.ndarray, DType]:
    """As `array_of`, with the errors of eager execution, which is stricter about shapes."""
    try:
        array, found = array_of(value, dtype)
    except TypeError as error:
        if dtype is not None:
            raise
        raise ValueError(
            f"Attempt to convert a value ({value!r:.80}) with an unsupported type ({type(value)}) to a Tensor: {error}"
        ) from error
    if shape is None:
        return array, found
    size = as_shape(shape).num_elements()
    if array.size not in (1, size):
        raise TypeError(f"constant: {value!r:.80} has {array.size} elements, and shape {as_shape(shape)} holds {size}.")
    return array_of(array, found, shape)


def _shape_array(shape: TensorShape, dtype: DType | None) -> tuple[np.ndarray, DType]:
    if not shape.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape {shape} to a Tensor.")
    found = dtype or as_dtype("int32")
    if found.name not in ("int32", "int64"):
        raise TypeError(f"Cannot convert a TensorShape to dtype {found.name}: only int32 and int64 hold shapes.")
    return np.array(shape.as_list(), found.as_numpy_dtype), found


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensors(v) for v in value)
    return isinstance(value, Tensor) or hasattr(value, "_as_tensor") or hasattr(value, "_as_graph_element")


def _packed(value: Any, dtype: DType | None, name: str) -> Tensor:
    """Packs a nested list with tensors in it as TensorFlow does: Python numbers take the tensors' type."""
    found = dtype or _first_dtype(value)
    pack = registered("Pack")
    assert pack is not None

    def build(items: Any, name: str) -> Tensor:
        with name_scope(name) as scope:
            parts = []
            for i, item in enumerate(items):
                if isinstance(item, (list, tuple)):
                    if _holds_tensors(item):
                        item = build(item, str(i))
                    else:
                        # TensorFlow opens a scope here even though the item becomes a plain constant: `packed/1_1`.
                        with name_scope(str(i)):
                            pass
                parts.append(item)
            if not get_default_graph().is_eager:  # there Pack itself refuses tensors of other types
                parts = [convert_to_tensor(item, dtype=found, name=str(i)) for i, item in enumerate(parts)]
            tensor: Tensor = pack(parts, axis=0, name=scope)
            return tensor

    return build(value, name)


def _first_dtype(value: Any) -> DType | None:
    if isinstance(value, (list, tuple)):
        return next((d for d in map(_first_dtype, value) if d is not None), None)
    return value.dtype.base_dtype if hasattr(value, "dtype") and hasattr(value, "op") else None


def convert_n_to_tensor(values: Any, dtype: Any = None, name: str | None = None) -> list[Tensor]:
    """Each of `values` as a Tensor."""
    return [convert_to_tensor(v, dtype, f"{name}_{i}" if name else None) for i, v in enumerate(values)]


def convert_to_tensor_or_indexed_slices(
    value: TensorLike, dtype: DTypeLike | None = None, name: str | None = None
) -> Any:
    """`value` as a Tensor, or as it is when it is IndexedSlices (or None)."""
    return value if isinstance(value, IndexedSlices) else convert_to_tensor(value, dtype, name)


hooks.convert_to_tensor = convert_to_tensor
