"""SparseTensor: a tensor given by its non-zero values and their positions."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dtypes
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.operation import GraphData, Operation
from penstock.graph.scopes import name_scope
from penstock.graph.sessions import session_for
from penstock.graph.shape import TensorShape


class SparseTensor:
    """A tensor given by its non-zero `values` at `indices`, of `dense_shape`.

    >>> tf.SparseTensor(indices=[[0, 0], [1, 2]], values=[1, 2], dense_shape=[3, 4])
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        with name_scope(None, "SparseTensor", [indices, values, dense_shape]):
            self.indices = convert_to_tensor(indices, name="indices", dtype=dtypes.int64)
            self.values = convert_to_tensor(values, name="values")
            self.dense_shape = convert_to_tensor(dense_shape, name="dense_shape", dtype=dtypes.int64)
        indices_shape = self.indices.shape.with_rank(2)
        values_shape = self.values.shape.with_rank(1)
        dense_shape_shape = self.dense_shape.shape.with_rank(1)
        indices_shape[:1].merge_with(values_shape)
        indices_shape[1:].merge_with(dense_shape_shape)

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """Makes a SparseTensor from a SparseTensorValue or another SparseTensor."""
        return value if isinstance(value, cls) else cls(value.indices, value.values, value.dense_shape)

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def op(self) -> Operation:
        return self.values.op

    @property
    def graph(self) -> GraphData:
        return self.values.graph

    @property
    def shape(self) -> TensorShape:
        return constant_value_as_shape(self.dense_shape)

    def get_shape(self) -> TensorShape:
        """The static dense shape, as far as it is known."""
        return self.shape

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Runs `session` or the default session and returns the SparseTensorValue."""
        return session_for(session, self.graph, "evaluate sparse tensor").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"SparseTensor(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"
