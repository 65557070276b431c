"""Tensor: one output of an Operation, a symbol until it is run. IndexedSlices and SparseTensor: tensors in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import OperatorNotAllowedInGraphError
from penstock.graph.dtype import DType
from penstock.graph.reference import Reference
from penstock.graph.shape import TensorShape, as_shape

if TYPE_CHECKING:
    from penstock.graph.graph import Graph
    from penstock.graph.operation import Operation

# Which dunder methods a Tensor has; `ops` fills them in with `overload`, since operators are ops.
OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "div", "rdiv", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "lt", "le", "gt", "ge", "and", "rand", "or", "ror", "xor",
    "rxor", "neg", "invert", "abs", "getitem",
)  # fmt: skip


class Tensor:
    """One output of an Operation.

    >>> x = tf.constant([1.0, 2.0])
    >>> (x + 1.0).name
    'add:0'
    """

    __slots__ = ("__weakref__", "_attributes", "_shape", "consumer_list", "dtype", "op", "value_index")
    __array_priority__: ClassVar[int] = 100  # NumPy leaves `array + tensor` to the tensor.
    _attributes: Any  # what a subclass adds to its tensors, such as the variable that it is a slice of

    def __init__(self, op: Operation, value_index: int, dtype: DType, shape: TensorShape) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self._shape = shape
        self.consumer_list: list[Operation] = []

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        return self.op.graph

    @property
    def device(self) -> str:
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        return self._shape

    def get_shape(self) -> TensorShape:
        """The static shape, as far as it is known while the graph is built."""
        return self._shape

    def set_shape(self, shape: Any) -> None:
        """Adds what is known from elsewhere to the static shape.

        >>> x = tf.placeholder(tf.float32); x.set_shape([None, 3])
        """
        merged = self._shape.merge_with(as_shape(shape))
        if merged != self._shape:
            self._shape = merged
            self.op.graph.touch()

    def consumers(self) -> list[Operation]:
        """The operations that take this tensor as an input."""
        return list(self.consumer_list)

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Runs the graph in `session` (or the default one) as far as needed for this tensor's value."""
        from penstock.graph.graph import session_for

        return session_for(session, self.graph, "evaluate tensor").run(self, feed_dict)

    def ref(self) -> Reference:
        """A reference to this tensor that can be a key of a dict: `{x.ref(): 1}[x.ref()]`."""
        return Reference(self)

    experimental_ref = ref

    def _as_graph_element(self) -> Tensor:
        return self

    @property
    def ndim(self) -> int | None:
        return self._shape.rank

    def __iter__(self) -> Iterator[Any]:
        raise OperatorNotAllowedInGraphError(
            f"Iterating over the symbolic tensor '{self.name}' is not allowed: it has no value before it is run. "
            "Use tf.unstack for its rows, or tf.map_fn and tf.while_loop to go over them when it runs."
        )

    def __len__(self) -> int:
        raise TypeError(
            f"len is not well defined for the symbolic tensor '{self.name}'. "
            "Use `x.shape[0]` for the static size or `tf.shape(x)` for the size at run time."
        )

    def __bool__(self) -> bool:
        raise OperatorNotAllowedInGraphError(
            f"Using the symbolic tensor '{self.name}' as a Python bool is not allowed: it has no value before it is "
            "run. Use `if t is not None:` to test for a tensor, and tf.cond to branch on its value."
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"Cannot convert the symbolic tensor '{self.name}' to a NumPy array: run it in a Session first."
        )

    def __copy__(self) -> Tensor:
        return self

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self._shape} dtype={self.dtype.name}>"

    def __str__(self) -> str:
        shape = f", shape={self._shape}" if self._shape.rank is not None else ""
        return f'Tensor("{self.name}"{shape}, dtype={self.dtype.name}{_device_note(self)})'


def _device_note(tensor: Tensor) -> str:
    return f", device={tensor.device}" if tensor.device else ""


def overload(operator: str, function: Callable[..., Any]) -> None:
    """Makes `function` the meaning of a Python operator on tensors (`"add"` for `x + y`)."""
    setattr(Tensor, f"__{operator}__", function)


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
    def graph(self) -> Graph:
        graph: Graph = self.values.graph
        return graph

    @property
    def device(self) -> str:
        return str(self.values.device)

    @property
    def shape(self) -> TensorShape:
        from penstock.graph.constant import constant_value_as_shape

        if self.dense_shape is None:
            return TensorShape(None)
        return constant_value_as_shape(self.dense_shape)

    def __neg__(self) -> IndexedSlices:
        return IndexedSlices(-self.values, self.indices, self.dense_shape)

    def __repr__(self) -> str:
        return f"IndexedSlices(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"


class SparseTensor:
    """A tensor given by its non-zero `values` at `indices`, of `dense_shape`.

    >>> tf.SparseTensor(indices=[[0, 0], [1, 2]], values=[1, 2], dense_shape=[3, 4])
    """

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        from penstock.graph import dtype as dtypes
        from penstock.graph.convert import convert_to_tensor
        from penstock.graph.scopes import name_scope

        with name_scope(None, "SparseTensor", [indices, values, dense_shape]):
            self.indices = convert_to_tensor(indices, name="indices", dtype=dtypes.int64)
            self.values = convert_to_tensor(values, name="values")
            self.dense_shape = convert_to_tensor(dense_shape, name="dense_shape", dtype=dtypes.int64)
        indices_shape = self.indices.shape.with_rank(2)
        values_shape = self.values.shape.with_rank(1)
        dense_shape_shape = self.dense_shape.shape.with_rank(1)
        indices_shape[0].merge_with(values_shape[0])
        indices_shape[1].merge_with(dense_shape_shape[0])

    @classmethod
    def from_value(cls, value: Any) -> SparseTensor:
        """A SparseTensor of a SparseTensorValue or another SparseTensor."""
        return value if isinstance(value, cls) else cls(value.indices, value.values, value.dense_shape)

    @property
    def dtype(self) -> DType:
        return self.values.dtype

    @property
    def op(self) -> Operation:
        return self.values.op

    @property
    def graph(self) -> Graph:
        return self.values.graph

    @property
    def shape(self) -> TensorShape:
        from penstock.graph.constant import constant_value_as_shape

        return constant_value_as_shape(self.dense_shape)

    def get_shape(self) -> TensorShape:
        """The static dense shape, as far as it is known."""
        return self.shape

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """The SparseTensorValue in `session` or the default session."""
        from penstock.graph.graph import session_for

        return session_for(session, self.graph, "evaluate sparse tensor").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"SparseTensor(indices={self.indices}, values={self.values}, dense_shape={self.dense_shape})"
