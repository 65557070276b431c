"""Ragged: the parts of a tensor whose rows have different lengths. `ops/ragged` has the class that programs see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.hooks import NotDense
from penstock.graph.operation import GraphData, Tensor
from penstock.graph.shape import TensorShape


class Ragged:
    """Rows `values[row_splits[i]:row_splits[i + 1]]`; `values` may be ragged too, then rows are lists of rows."""

    values: Any
    row_splits: Any
    _uniform_row_length: int | None = None

    def __init__(self, values: Any, row_splits: Any, uniform_row_length: int | None = None) -> None:
        self.values = tensor_or_ragged(values, name="values")
        self.row_splits = convert_to_tensor(row_splits, name="row_splits")
        self._uniform_row_length = uniform_row_length
        self.row_splits.shape.with_rank(1)
        if not isinstance(self.values, Ragged):
            self.values.shape.with_rank_at_least(1)

    @classmethod
    def described(cls, flat_values: Any, row_splits: Any, *inner_row_splits: Any) -> Self:
        """One that has specs for tensors, and stands for any that fits them."""
        found = cls.__new__(cls)
        found.values = cls.described(flat_values, *inner_row_splits) if inner_row_splits else flat_values
        found.row_splits = row_splits
        return found

    def _as_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        raise NotDense(f"A dense tensor is needed, received {self!r:.200}. Use its to_tensor(), or its flat_values.")

    @property
    def dtype(self) -> DType:
        """The type of the values."""
        dtype: DType = self.values.dtype
        return dtype

    @property
    def graph(self) -> GraphData:
        """The graph of the values."""
        graph: GraphData = self.flat_values.graph
        return graph

    @property
    def shape(self) -> TensorShape:
        """The static shape, with None for dimensions whose sizes differ."""
        splits = self.row_splits.shape.as_list()[0]
        first = TensorShape.of((None if splits is None else splits - 1, self._uniform_row_length))
        inner = self.values.shape
        return TensorShape.of(None) if inner.rank is None else first.concatenate(inner[1:])

    @property
    def ragged_rank(self) -> int:
        """The number of dimensions that are split into rows of different lengths."""
        return 1 + self.values.ragged_rank if isinstance(self.values, Ragged) else 1

    @property
    def flat_values(self) -> Any:
        """The innermost values, a dense tensor."""
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def nested_row_splits(self) -> tuple[Any, ...]:
        """The splits of all ragged dimensions, the outermost first."""
        inner = self.values.nested_row_splits if isinstance(self.values, Ragged) else ()
        return (self.row_splits, *inner)

    def with_values(self, new_values: Any) -> Self:
        """Rows of the same lengths with other values: `r.with_values(tf.range(5))`."""
        return type(self)(new_values, self.row_splits, self._uniform_row_length)

    def with_flat_values(self, new_values: Any) -> Self:
        """The same rows with other innermost values: `r.with_flat_values(tf.sqrt(r.flat_values))`."""
        inner = self.values
        return self.with_values(inner.with_flat_values(new_values) if isinstance(inner, Ragged) else new_values)

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that this is made of: the innermost values, and all splits."""
        return [self.flat_values, *self.nested_row_splits]

    def with_parts(self, parts: Sequence[Any]) -> Self:
        """A ragged tensor of the same form of other tensors."""
        flat, splits, *rest = parts
        inner = self.values.with_parts([flat, *rest]) if isinstance(self.values, Ragged) else flat
        return type(self)(inner, splits, self._uniform_row_length)

    def __repr__(self) -> str:
        return f"tf.RaggedTensor(values={self.values!r}, row_splits={self.row_splits!r})"


def tensor_or_ragged(value: Any, dtype: Any = None, name: str | None = None, dtype_hint: Any = None) -> Any:
    """A ragged tensor as it is, and anything else as a Tensor: for functions whose ops take both."""
    return value if isinstance(value, Ragged) else convert_to_tensor(value, dtype, name, dtype_hint=dtype_hint)
