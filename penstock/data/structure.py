"""Structure: how the components of an element are nested. Tuples, namedtuples and dicts nest; lists are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype, variant
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.tensor import Tensor


class TensorSpec:
    """The type and shape of a tensor: `tf.TensorSpec([None, 3], tf.float32)`."""

    __slots__ = ("_dtype", "_name", "_shape")

    def __init__(self, shape: Any, dtype: Any = "float32", name: str | None = None) -> None:
        self._shape = as_shape(shape)
        self._dtype = as_dtype(dtype)
        self._name = name

    @property
    def shape(self) -> TensorShape:
        return self._shape

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def name(self) -> str | None:
        return self._name

    @property
    def value_type(self) -> Any:
        return Tensor

    def is_compatible_with(self, spec_or_tensor: Any) -> bool:
        """Whether a value of that spec, or that tensor, may stand where this one is wanted."""
        same: bool = self._dtype.is_compatible_with(spec_or_tensor.dtype)
        return same and self._shape.is_compatible_with(spec_or_tensor.shape)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self._dtype, _dims(self._shape)) == (other._dtype, _dims(other._shape))

    def __hash__(self) -> int:
        return hash((self._dtype, _dims(self._shape)))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self._shape}, dtype={self._dtype!r}, name={self._name!r})"


class DatasetSpec(TensorSpec):
    """A component that is a dataset itself, such as a window."""

    __slots__ = ("element_spec",)

    def __init__(self, element_spec: Any) -> None:
        super().__init__((), variant)
        self.element_spec = element_spec

    @property
    def value_type(self) -> Any:
        from penstock.data.dataset import Dataset

        return Dataset

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r})"


def _dims(shape: TensorShape) -> Any:
    return None if shape.rank is None else tuple(shape.as_list())


def is_nested(value: Any) -> bool:
    """Whether `value` nests further: a tuple, a namedtuple or a dict."""
    return isinstance(value, (tuple, Mapping))


def flatten(value: Any) -> list[Any]:
    """The leaves, in order; dicts by sorted key.

    >>> flatten({"b": (1, [2, 3]), "a": 0})
    [0, 1, [2, 3]]
    """
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in flatten(value[key])]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in flatten(item)]
    return [value]


def pack(form: Any, leaves: Sequence[Any]) -> Any:
    """The leaves nested as `form` is."""
    return _pack(form, iter(leaves))


def _pack(form: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(form, Mapping):
        packed = {key: _pack(form[key], leaves) for key in sorted(form)}
        ordered = {key: packed[key] for key in form}
        return ordered if type(form) is dict else type(form)(ordered)  # type: ignore[call-arg]
    if isinstance(form, tuple):
        items = [_pack(item, leaves) for item in form]
        return form._make(items) if hasattr(form, "_make") else tuple(items)
    return next(leaves)


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` of each leaf, nested as before."""
    return pack(value, [function(leaf) for leaf in flatten(value)])


def types_of(spec: Any) -> list[DType]:
    """The types of the components."""
    return [leaf.dtype for leaf in flatten(spec)]


def shapes_of(spec: Any) -> list[TensorShape]:
    """The shapes of the components."""
    return [leaf.shape for leaf in flatten(spec)]


def with_shapes(spec: Any, change: Callable[[TensorShape], TensorShape]) -> Any:
    """The same with other shapes."""
    return map_leaves(lambda leaf: TensorSpec(change(leaf.shape), leaf.dtype), spec)


def from_legacy(types: Any, shapes: Any = None, classes: Any = None) -> Any:
    """A nest of specs of `types` and `shapes` that are nested alike; without shapes all are unknown."""
    leaves = [as_dtype(t) for t in flatten(types)]
    if shapes is None:
        found = [TensorShape.of(None)] * len(leaves)
    else:
        found = [as_shape(s) for s in _flatten_up_to(types, shapes)]
    return pack(types, [TensorSpec(s, t) for t, s in zip(leaves, found, strict=True)])


def _flatten_up_to(form: Any, value: Any) -> list[Any]:
    """`value` taken apart only as far as `form` nests: a shape may be a tuple itself."""
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(form):
            raise ValueError(f"The structures are not nested alike: {form!r:.200} against {value!r:.200}.")
        return [leaf for key in sorted(form) for leaf in _flatten_up_to(form[key], value[key])]
    if isinstance(form, tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(form):
            raise ValueError(f"The structures are not nested alike: {form!r:.200} against {value!r:.200}.")
        pairs = zip(form, value, strict=True)
        return [leaf for f, v in pairs for leaf in _flatten_up_to(f, v)]
    return [value]


flatten_up_to = _flatten_up_to


def to_tensors(value: Any, names: Callable[[int], str | None]) -> tuple[Any, list[Tensor]]:
    """A nest of values as its spec and its tensors."""
    from penstock.data.dataset import Dataset

    specs: list[Any] = []
    tensors: list[Tensor] = []
    for i, leaf in enumerate(flatten(value)):
        if isinstance(leaf, Dataset):
            specs.append(DatasetSpec(leaf.element_spec))
            tensors.append(leaf._variant_tensor)
            continue
        if hasattr(leaf, "dense_shape") and hasattr(leaf, "indices"):
            raise TypeError(
                f"Component {i} of an element is sparse ({leaf!r:.100}), which datasets do not carry yet: convert it "
                "with tf.sparse.to_dense, or give indices, values and dense_shape as three components."
            )
        tensor = convert_to_tensor(leaf, name=names(i))
        specs.append(TensorSpec(tensor.shape, tensor.dtype.base_dtype))
        tensors.append(tensor)
    return pack(value, specs), tensors


def from_tensors(spec: Any, tensors: Sequence[Tensor]) -> Any:
    """Tensors as what a function of an element gets: nested, and datasets where they are datasets."""
    from penstock.data.dataset import Dataset

    return pack(spec, [
        Dataset(tensor, leaf.element_spec) if isinstance(leaf, DatasetSpec) else tensor
        for leaf, tensor in zip(flatten(spec), tensors, strict=True)
    ])  # fmt: skip
