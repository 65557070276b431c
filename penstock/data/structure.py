"""Structure: the nesting of the components of an element. Tuples, namedtuples and dicts nest; lists are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype, variant
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, ShapeLike


class TypeSpec:
    """Describes the values of an argument or a component: `tf.TensorSpec` is one for tensors."""

    __slots__ = ()

    @property
    def value_type(self) -> Any:
        """The class of the values."""
        raise NotImplementedError

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        """Tells if a value of that spec, or that value, can be used as a value of this spec."""
        raise NotImplementedError


class TensorSpec(TypeSpec):
    """The type and shape of a tensor: `tf.TensorSpec([None, 3], tf.float32)`."""

    __slots__ = ("_dtype", "_name", "_shape")

    def __init__(self, shape: ShapeLike, dtype: DTypeLike = "float32", name: str | None = None) -> None:
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

    def with_shape(self, shape: ShapeLike) -> TensorSpec:
        """This spec with another shape."""
        return type(self)(shape, self._dtype)

    @classmethod
    def from_tensor(cls, tensor: Any, name: str | None = None) -> TensorSpec:
        """The spec of a tensor: `tf.TensorSpec.from_tensor(x)`."""
        return cls(tensor.shape, tensor.dtype.base_dtype, name)

    @classmethod
    def from_spec(cls, spec: TensorSpec, name: str | None = None) -> TensorSpec:
        """The same spec under another name."""
        return cls(spec.shape, spec.dtype, name or spec.name)

    from_value = from_tensor

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        value = spec_or_value
        if not isinstance(value, TypeSpec) and not hasattr(value, "dtype"):
            value = convert_to_tensor(value)
        same: bool = self._dtype.is_compatible_with(value.dtype)
        return same and self._shape.is_compatible_with(value.shape)

    def is_subtype_of(self, other: Any) -> bool:
        """Tells if every value of this spec is one of `other`."""
        return (
            type(other) is type(self)
            and self._dtype == other._dtype
            and self._name in (None, other._name)
            and self._shape.is_subtype_of(other._shape)
        )

    def most_specific_common_supertype(self, others: Sequence[Any]) -> TensorSpec | None:
        """The tightest spec that this and all of `others` are subtypes of; None if there is none."""
        shape = self._shape
        for other in others:
            if type(other) is not type(self) or (self._dtype, self._name) != (other._dtype, other._name):
                return None
            shape = shape.most_specific_compatible_shape(other._shape)
        return type(self)(shape, self._dtype, self._name)

    def most_specific_compatible_type(self, other: Any) -> TensorSpec:
        """The tightest spec that both are subtypes of; ValueError if there is none."""
        found = self.most_specific_common_supertype([other])
        if found is None:
            raise ValueError(f"No TensorSpec is compatible with both {self} and {other}.")
        return found

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self._dtype, _dims(self._shape), self._name) == (other._dtype, _dims(other._shape), other._name)

    def __hash__(self) -> int:
        return hash((self._dtype, _dims(self._shape)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self._shape}, dtype={self._dtype!r}, name={self._name!r})"


class SparseTensorSpec(TensorSpec):
    """A component that is a sparse tensor: `tf.SparseTensorSpec([None, 10], tf.int64)`. A handle carries it."""

    __slots__ = ()

    def __init__(self, shape: ShapeLike = None, dtype: DTypeLike = "float32", name: str | None = None) -> None:
        super().__init__(shape, dtype, name)

    def __repr__(self) -> str:
        return f"SparseTensorSpec({self._shape!r}, {self._dtype!r})"

    @property
    def value_type(self) -> Any:
        return SparseTensor

    @property
    def carried_dtype(self) -> DType:
        return variant

    @property
    def carried_shape(self) -> TensorShape:
        return TensorShape.of(None)


class RaggedTensorSpec(TensorSpec):
    """A component that is a ragged tensor: `tf.RaggedTensorSpec([None, None], tf.int64)`. A handle carries it.

    With `ragged_rank` 0 it is a dense tensor whose size differs, and which becomes ragged in a batch.
    """

    __slots__ = ("_flat_values_spec", "_ragged_rank", "_row_splits_dtype")

    def __init__(
        self,
        shape: ShapeLike = None,
        dtype: DTypeLike = "float32",
        ragged_rank: int | None = None,
        row_splits_dtype: DTypeLike = "int64",
        flat_values_spec: TensorSpec | None = None,
    ) -> None:
        super().__init__(shape, dtype if flat_values_spec is None else flat_values_spec.dtype)
        self._flat_values_spec = flat_values_spec
        self._row_splits_dtype = as_dtype(row_splits_dtype)
        rank: int | None = self._shape.rank
        if ragged_rank is None:
            if rank is None:
                raise ValueError("RaggedTensorSpec: ragged_rank must be given if the rank of the shape is unknown.")
            ragged_rank = max(rank - 1, 0)
        if ragged_rank < 0 or (rank is not None and ragged_rank >= max(rank, 1)):
            raise ValueError(
                f"RaggedTensorSpec: ragged_rank must be at least 0 and less than the rank of shape {self._shape}, "
                f"received {ragged_rank}."
            )
        self._ragged_rank = ragged_rank

    @property
    def ragged_rank(self) -> int:
        """The number of dimensions that are split into rows."""
        return self._ragged_rank

    @property
    def row_splits_dtype(self) -> DType:
        """The type of the splits."""
        return self._row_splits_dtype

    @property
    def value_type(self) -> Any:
        from penstock.ops.ragged.ragged_tensor import RaggedTensor  # start-up

        return RaggedTensor if self._ragged_rank else Tensor

    @classmethod
    def from_value(cls, value: Any, name: str | None = None) -> RaggedTensorSpec:
        """The spec of a ragged tensor."""
        return cls(value.shape, value.dtype, value.ragged_rank, value.row_splits.dtype)

    @property
    def carried_dtype(self) -> DType:
        return variant

    @property
    def carried_shape(self) -> TensorShape:
        return TensorShape.of(None)

    def with_shape(self, shape: ShapeLike) -> RaggedTensorSpec:
        """This spec with another shape; a new first dimension is one more that is split into rows."""
        new = as_shape(shape)
        more = 0 if new.rank is None or self._shape.rank is None else new.rank - self._shape.rank
        return type(self)(new, self._dtype, max(self._ragged_rank + more, 0), self._row_splits_dtype)

    def is_compatible_with(self, spec_or_value: Any) -> bool:
        given = spec_or_value
        if isinstance(given, Ragged):
            given = type(self).from_value(given)
        if not isinstance(given, RaggedTensorSpec) or given._ragged_rank != self._ragged_rank:
            return False
        return given._row_splits_dtype == self._row_splits_dtype and super().is_compatible_with(given)

    def part_specs(self) -> list[TensorSpec]:
        """The specs of the tensors that it is made of: the innermost values, and all splits."""
        rank = self._shape.rank
        inner = None if rank is None else (None, *self._shape.as_list()[self._ragged_rank + 1 :])
        rows = self._shape.as_list()[0] if rank else None
        splits = [TensorSpec((None if rows is None else rows + 1,), self._row_splits_dtype)]
        splits += [TensorSpec((None,), self._row_splits_dtype)] * (self._ragged_rank - 1)
        return [self._flat_values_spec or TensorSpec(inner, self._dtype), *splits]

    def stand_in(self) -> Any:
        """A ragged tensor with specs for tensors, as an argument with which a function is traced."""
        if not self._ragged_rank:
            return TensorSpec(self._shape, self._dtype)
        return self.value_type.described(*self.part_specs())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RaggedTensorSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self._dtype, _dims(self._shape), self._ragged_rank, self._row_splits_dtype

    def __repr__(self) -> str:
        return f"RaggedTensorSpec({self._shape!r}, {self._dtype!r}, {self._ragged_rank}, {self._row_splits_dtype!r})"


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

    def with_shape(self, shape: ShapeLike) -> TensorSpec:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatasetSpec) and self.element_spec == other.element_spec

    def __hash__(self) -> int:
        return hash(tuple(flatten(self.element_spec)))

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r})"


class RaggedRow:
    """A dense tensor as a component whose size differs from element to element."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Carried:
    """A dataset or an optional: a value that one variant tensor carries between ops and functions."""

    _variant_tensor: Tensor
    _spec: Any

    def carried_by(self, variant_tensor: Tensor) -> Any:
        """A value like this one that another tensor carries."""
        return type(self)(variant_tensor, self._spec)  # type: ignore[call-arg]


def _dims(shape: TensorShape) -> Any:
    return None if shape.rank is None else tuple(shape.as_list())


def is_one_of(spec: Any, dtype: DType) -> bool:
    """Tells if elements of `spec` are scalars of a type."""
    return isinstance(spec, TensorSpec) and spec.dtype == dtype and bool(spec.shape.is_compatible_with(()))


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
        found = [as_shape(s) for s in flatten_up_to(types, shapes)]
    kinds = [Tensor] * len(leaves) if classes is None else flatten_up_to(types, classes)
    parts = zip(leaves, found, kinds, strict=True)
    return pack(types, [_of_class(kind, shape, dtype) for dtype, shape, kind in parts])


def _of_class(kind: Any, shape: TensorShape, dtype: DType) -> TensorSpec:
    """The spec of components of a class; of ragged ones the class does not say enough, so their spec stands for it."""
    if isinstance(kind, RaggedTensorSpec):
        return kind
    return (SparseTensorSpec if kind is SparseTensor else TensorSpec)(shape, dtype)


def flatten_up_to(form: Any, value: Any) -> list[Any]:
    """Flattens `value` only as far as `form` nests, since a shape may be a tuple itself."""
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(form):
            raise ValueError(f"The structures are not nested alike: {form!r:.200} against {value!r:.200}.")
        return [leaf for key in sorted(form) for leaf in flatten_up_to(form[key], value[key])]
    if isinstance(form, tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(form):
            raise ValueError(f"The structures are not nested alike: {form!r:.200} against {value!r:.200}.")
        pairs = zip(form, value, strict=True)
        return [leaf for f, v in pairs for leaf in flatten_up_to(f, v)]
    return [value]


def to_tensors(value: Any, names: Callable[[int], str | None]) -> tuple[Any, list[Tensor]]:
    """Converts a nest of values to its spec and its tensors."""
    from penstock.data import sparse_ops  # start-up
    from penstock.ops.ragged import carrying  # start-up
    from penstock.ops.ragged.ragged_tensor import RaggedTensor  # start-up

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
        if isinstance(leaf, RaggedTensorValue):
            leaf = RaggedTensor.from_nested_row_splits(leaf.flat_values, leaf.nested_row_splits)
        if isinstance(leaf, Ragged):
            specs.append(RaggedTensorSpec.from_value(leaf))
            tensors.append(carrying.to_variant(leaf))
            continue
        if isinstance(leaf, RaggedRow):
            specs.append(RaggedTensorSpec(leaf.tensor.shape, leaf.tensor.dtype.base_dtype, 0))
            tensors.append(carrying.to_variant(leaf.tensor))
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
    from penstock.ops.ragged import carrying  # start-up

    if isinstance(leaf, RaggedTensorSpec):
        return carrying.from_variant(tensor, leaf.dtype, leaf.ragged_rank, leaf.row_splits_dtype, leaf.shape)
    if isinstance(leaf, DatasetSpec):
        return leaf.dataset_class(tensor, leaf.element_spec)
    if isinstance(leaf, SparseTensorSpec):
        indices, values, dense_shape = sparse_ops.unpack_sparse(tensor, dtype=leaf.dtype)
        indices.set_shape([None, leaf.shape.rank])
        dense_shape.set_shape([leaf.shape.rank])
        return SparseTensor(indices, values, dense_shape)
    return tensor
