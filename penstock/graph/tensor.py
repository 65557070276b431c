"""Names that have moved."""

from penstock.graph.indexed_slices import IndexedSlices as IndexedSlices
from penstock.graph.operation import OPERATORS as OPERATORS
from penstock.graph.operation import Tensor as Tensor
from penstock.graph.operation import overload as overload
from penstock.graph.sparse_tensor import SparseTensor as SparseTensor
