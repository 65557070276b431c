"""ShardedVariable: one variable to the program, several on the parameter servers."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import OPERATORS, Tensor
from penstock.graph.scopes import colocate_with
from penstock.graph.shape import TensorShape
from penstock.ops.array.joining import concat, split
from penstock.ops.array.partitioning import dynamic_partition
from penstock.ops.array.selection import boolean_mask
from penstock.ops.math.casting import cast
from penstock.ops.nn.embedding import contiguous, embedding_lookup
from penstock.variables.slices import SaveSliceInfo
from penstock.variables.variable import Variable


class ShardedVariable:
    """A variable that is cut along its first axis. Its shards are variables; as a tensor it is their concatenation.

    Shards hold contiguous rows, and the first ones have one row more if the rows cannot be shared out evenly. A
    strategy with a partitioner makes sharded variables:

    >>> strategy = tf.distribute.ParameterServerStrategy(
    ...     resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(3))
    >>> with strategy.scope():
    ...     v = tf.Variable(tf.zeros([7, 2]), name="w")
    >>> [s.name for s in v.variables]
    ['w/part_0:0', 'w/part_1:0', 'w/part_2:0']
    """

    __array_priority__: ClassVar[int] = 100  # NumPy leaves `array + variable` to the variable.
    is_sharded_variable = True
    _distribute_strategy: Any = None  # the strategy in whose scope it was made

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        self._variables = list(variables)
        if not self._variables or not all(isinstance(v, Variable) for v in self._variables):
            raise TypeError(f"A ShardedVariable takes a list of variables, received {variables!r}.")
        shapes = [known_dims(v.shape) for v in self._variables]
        alike = {(v.dtype, tuple(s[1:])) for v, s in zip(self._variables, shapes, strict=True)}
        if len(alike) > 1:
            raise ValueError(
                f"The shards of a variable must agree in type and in all axes but the first, received {alike}."
            )
        sizes = [s[0] for s in shapes]
        if sizes != shard_sizes(sum(sizes), len(sizes)):
            raise ValueError(
                f"The shards of a variable must be even, the longer ones first: {sum(sizes)} rows in {len(sizes)} "
                f"shards are {shard_sizes(sum(sizes), len(sizes))}, received {sizes}."
            )
        self._name = name
        self._ends = list(accumulate(sizes))
        self._shape = TensorShape([self._ends[-1], *shapes[0][1:]])
        for variable, shape, end in zip(self._variables, shapes, self._ends, strict=True):
            offset = [end - shape[0]] + [0] * (len(shape) - 1)
            variable._set_save_slice_info(SaveSliceInfo(name, known_dims(self._shape), offset, shape))

    @property
    def variables(self) -> list[Variable]:
        """The shards, in the order of their rows."""
        return self._variables

    def _get_variable_list(self) -> list[Variable]:
        return self._variables

    def _save_slices(self) -> list[tuple[Variable, SaveSliceInfo]]:
        """The shards, each with its place in the whole, under which checkpoints have them."""
        return [(v, info) for v in self._variables if (info := v._get_save_slice_info()) is not None]

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables)

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DType:
        return self._variables[0].dtype

    @property
    def shape(self) -> TensorShape:
        return self._shape

    # Changing

    def _assign_by(self, method: str, value: Any, use_locking: bool, name: str | None) -> ShardedVariable:
        tensor = convert_to_tensor(value, dtype=self.dtype)
        if not self._shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"ShardedVariable: {method} takes a value of the whole variable's shape {self._shape}, received shape "
                f"{tensor.shape}."
            )
        pieces = split(tensor, [known_dims(v.shape)[0] for v in self._variables], axis=0)
        for variable, piece in zip(self._variables, pieces, strict=True):
            getattr(variable, method)(piece, use_locking=use_locking, name=name, read_value=False)
        return self

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> ShardedVariable:
        """Replaces the value, shard by shard."""
        return self._assign_by("assign", value, use_locking, name)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> ShardedVariable:
        """Adds `delta`, shard by shard."""
        return self._assign_by("assign_add", delta, use_locking, name)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> ShardedVariable:
        """Subtracts `delta`, shard by shard."""
        return self._assign_by("assign_sub", delta, use_locking, name)

    def _scatter(self, method: str, sparse_delta: Any, use_locking: bool, name: str | None) -> ShardedVariable:
        indices, updates = convert_to_tensor(sparse_delta.indices), sparse_delta.values
        _require_vector(indices)
        count = len(self._variables)
        shard_of, row_of = contiguous(self._variables, indices)
        shard_of = cast(shard_of, dt.int32)
        rows = dynamic_partition(row_of, shard_of, count)
        values = dynamic_partition(convert_to_tensor(updates, dtype=self.dtype), shard_of, count)
        for variable, row, value in zip(self._variables, rows, values, strict=True):
            getattr(variable, method)(IndexedSlices(value, row), use_locking=use_locking, name=name)
        return self

    # Reading

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """The rows at a vector of indices; each shard's are gathered where it is."""
        tensor = convert_to_tensor(indices)
        _require_vector(tensor)
        return self._rows_at(tensor, name)

    def _rows_at(self, indices: Any, name: str | None = None) -> Tensor:
        return embedding_lookup(self._variables, indices, "div", name=name)

    def _as_tensor(self, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(
                f"Incompatible type conversion requested to type '{dtype.name}' for variable of type "
                f"'{self.dtype.name}'"
            )
        whole: Tensor = concat(self._variables, 0, name=name or "concat")
        return whole

    def numpy(self) -> Any:
        """The whole value as a NumPy array."""
        return self._as_tensor().numpy()  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __getitem__(self, slice_spec: Any) -> Tensor:
        """A part of the whole tensor. Only the shards that hold its rows are read."""
        if _is_mask(slice_spec):
            masked: Tensor = boolean_mask(self, slice_spec)
            return masked
        spec = tuple(slice_spec) if isinstance(slice_spec, (list, tuple)) else (slice_spec,)
        if not spec or spec[0] is Ellipsis or spec[0] is None:
            part: Tensor = getattr(self._as_tensor(), "__getitem__")(spec)  # noqa: B009
            return part
        first, rest = spec[0], spec[1:]
        if isinstance(first, Tensor):
            raise TypeError(
                "ShardedVariable: a tensor cannot be an index, since the shard that it names must be known now. Use "
                "tf.gather."
            )
        if isinstance(first, slice):
            return self._slice(first, rest)
        index, rows = operator.index(first), self._ends[-1]
        if not -rows <= index < rows:
            raise IndexError(f"ShardedVariable: index {index} is out of bounds for a first axis of size {rows}.")
        shard = bisect.bisect_right(self._ends, index % rows)
        return self._part(shard, (index % rows - self._begin(shard), *rest))

    def _begin(self, shard: int) -> int:
        return self._ends[shard - 1] if shard else 0

    def _part(self, shard: int, spec: tuple[Any, ...]) -> Tensor:
        variable = self._variables[shard]
        with colocate_with(variable):
            value: Any = variable.value()
            part: Tensor = value[spec]
        return part

    def _slice(self, wanted: slice, rest: tuple[Any, ...]) -> Tensor:
        if any(isinstance(bound, Tensor) for bound in (wanted.start, wanted.stop, wanted.step)):
            raise TypeError(
                "ShardedVariable: tensors cannot be bounds of a slice. Slice tf.convert_to_tensor(variable)."
            )
        rows = range(*wanted.indices(self._ends[-1]))
        rising = rows if rows.step > 0 else rows[::-1]
        parts = []
        for shard, end in enumerate(self._ends):
            begin = self._begin(shard)
            held = rising[bisect.bisect_left(rising, begin) : bisect.bisect_left(rising, end)]
            if not held:
                continue
            low, high = held[0] - begin, held[-1] - begin
            if rows.step > 0:
                local = slice(low, high + 1, rows.step)
            else:
                local = slice(high, low - 1 if low else None, rows.step)
            parts.append(self._part(shard, (local, *rest)))
        if not parts:
            return self._part(0, (slice(0, 0), *rest))
        if rows.step < 0:
            parts.reverse()
        joined: Tensor = parts[0] if len(parts) == 1 else concat(parts, 0)
        return joined

    def __repr__(self) -> str:
        return f"<ShardedVariable shape={self._shape} dtype={self.dtype.name} shards={len(self._variables)}>"


def known_dims(shape: TensorShape) -> list[int]:
    """The sizes of a shape that is fully defined."""
    return [int(size) for size in shape.as_list() if size is not None]


def shard_sizes(rows: int, count: int) -> list[int]:
    """The rows of each shard: contiguous and even, the longer ones first.

    >>> shard_sizes(13, 5)
    [3, 3, 3, 2, 2]
    """
    each, extra = divmod(rows, count)
    return [each + (i < extra) for i in range(count)]


def _require_vector(indices: Tensor) -> None:
    if indices.shape.rank not in (1, None):
        raise ValueError(
            f"ShardedVariable: indices must be 1D Tensor for sparse operations. Received shape: {indices.shape}"
        )


def _is_mask(slice_spec: Any) -> bool:
    if isinstance(slice_spec, Tensor):
        return slice_spec.dtype.base_dtype is dt.bool
    return isinstance(slice_spec, np.ndarray) and slice_spec.dtype == np.bool_


def _scatterer(method: str, doc: str) -> Callable[..., Any]:
    def scatter(
        self: ShardedVariable, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        return self._scatter(method, sparse_delta, use_locking, name)

    scatter.__name__, scatter.__doc__ = method, doc
    return scatter


for _kind in ("add", "sub", "mul", "div", "min", "max", "update"):
    _method = f"scatter_{_kind}"
    setattr(ShardedVariable, _method, _scatterer(_method, getattr(Variable, _method).__doc__))
setattr(  # noqa: B010  as above
    ShardedVariable, "batch_scatter_update", _scatterer("scatter_update", "Replaces rows; there are no batches.")
)


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: ShardedVariable, *args: Any) -> Any:
        return getattr(Tensor, name)(self._as_tensor(), *args)

    operate.__name__ = name
    return operate


for _name in OPERATORS:
    if _name != "getitem":
        setattr(ShardedVariable, f"__{_name}__", _operator(f"__{_name}__"))
