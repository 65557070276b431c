"""IndexedSlices: some rows of a tensor, the others being zero."""

from __future__ import annotations

from typing import Any

from penstock.graph.constant import constant_value_as_shape
from penstock.graph.dtype import DType
from penstock.graph.operation import GraphData, Operation
from penstock.graph.shape import TensorShape


class IndexedSlices:
    """Rows `values` of a tensor at `indices`; all other rows are zero. The gradient of a gather.

    >>> tf.IndexedSlices(values=[[1.0]], indices=[3], dense_shape=[10, 1])
    """

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values, self.indices, self.dense_shape = values, indices, dense_shape

    @property
    def dtype(self) -> DType:
        dtype: DType = self.values.dtype
        return dtype

    @property
    def name(self) -> str:
        return str(self.values.name)

    @property
    def op(self) -> Operation:
        op: Operation = self.values.op
        return op

    @property
    def graph(self) -> GraphData:
        graph: GraphData = self.values.graph
        return graph

    @property
    def device(self) -> str:
        return str(self.values.device)

    @property
    def shape(self) -> TensorShape:
        if self.dense_shape is None:
            return TensorShape(None)
        return constant_value_as_shape(self.dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"
