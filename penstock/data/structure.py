"""Structure: the nesting of the components of an element. Tuples, namedtuples and dicts nest; lists are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype, variant
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor


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

    @property
    def carried_dtype(self) -> DType:
        """The type of the tensor that carries this component between ops."""
        return self._dtype

    @property
    def carried_shape(self) -> TensorShape:
        return self._shape

    def with_shape(self, shape: Any) -> TensorSpec:
        """This spec with another shape."""
        return type(self)(shape, self._dtype)

    def is_compatible_with(self, spec_or_tensor: Any) -> bool:
        """Tells if a value of that spec, or that tensor, can be used as a value of this spec."""
        same: bool = self._dtype.is_compatible_with(spec_or_tensor.dtype)
        return same and self._shape.is_compatible_with(spec_or_tensor.shape)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self._dtype, _dims(self._shape)) == (other._dtype, _dims(other._shape))

    def __hash__(self) -> int:
        return hash((self._dtype, _dims(self._shape)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self._shape}, dtype={self._dtype!r}, name={self._name!r})"


class SparseTensorSpec(TensorSpec):
    """A component that is a sparse tensor: `tf.SparseTensorSpec([None, 10], tf.int64)`. A handle carries it."""

    __slots__ = ()

    @property
    def value_type(self) -> Any:
        return SparseTensor

    @property
    def carried_dtype(self) -> DType:
        return variant

    @property
    def carried_shape(self) -> TensorShape:
        return TensorShape.of(None)


class DatasetSpec(TensorSpec):
    """A component that is a dataset itself, such as a window."""

    __slots__ = ("element_spec",)
    dataset_class: ClassVar[type[Any]]  # Dataset, set by its module, which is above this one

    def __init__(self, element_spec: Any) -> None:
        super().__init__((), variant)
        self.element_spec = element_spec

    @property
    def value_type(self) -> Any:
        return self.dataset_class

    def with_shape(self, shape: Any) -> TensorSpec:
        return self

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r})"


def _dims(shape: TensorShape) -> Any:
    return None if shape.rank is None else tuple(shape.as_list())


def is_nested(value: Any) -> bool:
    """Tells if `value` nests further: a tuple, a namedtuple or a dict."""
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
    """Packs the leaves into the structure of `form`."""
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
    """Applies `function` to each leaf and keeps the structure."""
    return pack(value, [function(leaf) for leaf in flatten(value)])


def types_of(spec: Any) -> list[DType]:
    """The types of the tensors that carry the components."""
    return [leaf.carried_dtype for leaf in flatten(spec)]


def shapes_of(spec: Any) -> list[TensorShape]:
    """The shapes of the tensors that carry the components."""
    return [leaf.carried_shape for leaf in flatten(spec)]


def with_shapes(spec: Any, change: Callable[[TensorShape], TensorShape]) -> Any:
    """This structure with other shapes."""
    return map_leaves(lambda leaf: leaf.with_shape(change(leaf.shape)), spec)


def from_legacy(types: Any, shapes: Any = None, classes: Any = None) -> Any:
    """A nest of specs from `types` and `shapes` of the same structure; without shapes all are unknown."""
    leaves = [as_dtype(t) for t in flatten(types)]
    if shapes is None:
        found = [TensorShape.of(None)] * len(leaves)
    else:
        found = [as_shape(s) for s in _flatten_up_to(types, shapes)]
    kinds = [Tensor] * len(leaves) if classes is None else _flatten_up_to(types, classes)
    return pack(
        types,
        [
            (SparseTensorSpec if kind is SparseTensor else TensorSpec)(shape, dtype)
            for dtype, shape, kind in zip(leaves, found, kinds, strict=True)
        ],
    )


def _flatten_up_to(form: Any, value: Any) -> list[Any]:
    """Flattens `value` only as far as `form` nests, since a shape may be a tuple itself."""
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
    """Converts a nest of values to its spec and its tensors."""
    from penstock.data import sparse_ops  # start-up

    specs: list[Any] = []
    tensors: list[Tensor] = []
    for i, leaf in enumerate(flatten(value)):
        if isinstance(leaf, DatasetSpec.dataset_class):
            specs.append(DatasetSpec(leaf.element_spec))
            tensors.append(leaf._variant_tensor)
            continue
        if hasattr(leaf, "dense_shape") and hasattr(leaf, "indices"):
            sparse = leaf if isinstance(leaf, SparseTensor) else SparseTensor(*leaf)
            specs.append(SparseTensorSpec(sparse.shape, sparse.dtype))
            tensors.append(sparse_ops.pack_sparse(sparse.indices, sparse.values, sparse.dense_shape))
            continue
        tensor = convert_to_tensor(leaf, name=names(i))
        specs.append(TensorSpec(tensor.shape, tensor.dtype.base_dtype))
        tensors.append(tensor)
    return pack(value, specs), tensors


def from_tensors(spec: Any, tensors: Sequence[Tensor]) -> Any:
    """Converts tensors to the arguments of a function of an element: nested, with datasets for dataset tensors."""
    return pack(spec, [_meant(leaf, tensor) for leaf, tensor in zip(flatten(spec), tensors, strict=True)])


def _meant(leaf: Any, tensor: Tensor) -> Any:
    from penstock.data import sparse_ops  # start-up

    if isinstance(leaf, DatasetSpec):
        return leaf.dataset_class(tensor, leaf.element_spec)
    if isinstance(leaf, SparseTensorSpec):
        indices, values, dense_shape = sparse_ops.unpack_sparse(tensor, dtype=leaf.dtype)
        indices.set_shape([None, leaf.shape.rank])
        dense_shape.set_shape([leaf.shape.rank])
        return SparseTensor(indices, values, dense_shape)
    return tensor
