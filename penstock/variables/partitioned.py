"""PartitionedVariable: one variable to the user, several to the parameter servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.ops.array.joining import concat, split
from penstock.variables.variable import Variable, identity_of


class PartitionedVariable:
    """Pieces of a variable along one axis. Iterating gives the pieces; as a tensor it is their concatenation.

    >>> with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(2)): v = tf.get_variable("v", [5, 2])
    >>> [p.name for p in v]
    ['s/v/part_0:0', 's/v/part_1:0']
    """

    def __init__(
        self, name: str, shape: TensorShape, dtype: DType, variable_list: Sequence[Variable], partitions: Sequence[int]
    ) -> None:
        if any(v._get_save_slice_info() is None for v in variable_list):
            raise ValueError("All variables must have a save_slice_info available.")
        if any(p < 1 for p in partitions):
            raise ValueError(f"Partition values must be positive: {partitions}")
        self._name, self._shape, self._dtype = name, shape, dtype
        self._variables, self._partitions = list(variable_list), list(partitions)
        self._concatenated: Tensor | None = None

    def __iter__(self) -> Iterator[Variable]:
        return iter(self._variables)

    def __len__(self) -> int:
        axes = self._partition_axes()
        if len(axes) > 1:
            raise ValueError(f"Cannot get a length for {len(axes)} > 1 partition axes")
        return len(self._variables)

    def _partition_axes(self) -> list[int]:
        if all(p == 1 for p in self._partitions):
            return [0]
        return [i for i, p in enumerate(self._partitions) if p > 1]

    def _get_variable_list(self) -> list[Variable]:
        return self._variables

    def _get_partitions(self) -> list[int]:
        return self._partitions

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        return self._shape

    def get_shape(self) -> TensorShape:
        """The shape of the whole."""
        return self._shape

    @property
    def trainable(self) -> bool:
        return self._variables[0].trainable

    def as_tensor(self) -> Tensor:
        """The whole variable as one tensor."""
        if len(self._variables) == 1:
            with name_scope(None):
                return identity_of(self._variables[0], name=self._name)
        axes = self._partition_axes()
        if len(axes) > 1:
            raise NotImplementedError(f"Cannot concatenate along more than one dimension: {axes}.")
        with name_scope(self._name + "/ConcatPartitions/"):
            whole = concat(self._variables, axes[0])
        with name_scope(None):
            return identity_of(whole, name=self._name)

    _concat = as_tensor

    def _as_tensor(self, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self._dtype):
            raise ValueError(
                f"Incompatible type conversion requested to type '{dtype.name}' for variable '{self._name}' of type "
                f"'{self._dtype.name}'"
            )
        if as_ref:
            raise NotImplementedError(f"PartitionedVariable '{self._name}' has no single reference.")
        return self.as_tensor()

    def _assign_by(self, method: str, value: Any, use_locking: bool, name: str | None, read_value: bool) -> list[Any]:
        axis = self._partition_axes()[0]
        if isinstance(value, (list, tuple, PartitionedVariable)):
            pieces = [convert_to_tensor(v) for v in value]
        else:
            whole = convert_to_tensor(value, dtype=self._dtype)
            sizes = [v.shape.as_list()[axis] for v in self._variables]
            pieces = split(whole, sizes, axis=axis) if len(sizes) > 1 else [whole]
        done = [
            getattr(v, method)(piece, use_locking=use_locking, name=name, read_value=True)
            for v, piece in zip(self._variables, pieces, strict=True)
        ]
        return done if read_value else [d.op for d in done]

    def assign(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Replaces the value, piece by piece."""
        return self._assign_by("assign", value, use_locking, name, read_value)

    def assign_add(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Adds to the value, piece by piece."""
        return self._assign_by("assign_add", value, use_locking, name, read_value)

    def assign_sub(
        self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> list[Any]:
        """Subtracts from the value, piece by piece."""
        return self._assign_by("assign_sub", value, use_locking, name, read_value)
