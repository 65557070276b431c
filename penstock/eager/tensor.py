"""EagerTensor: a tensor that has its value. To code that reads graphs it is the output of a Const."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.errors import FailedPreconditionError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef, op_of
from penstock.graph.operation import GraphData, Operation, Tensor
from penstock.graph.shape import TensorShape, as_shape


class EagerOperation(Operation):
    """An operation that has run, for gradients: its inputs and outputs are tensors with values."""

    __slots__ = ("gradient",)

    def __init__(
        self, graph: GraphData, op_def: OpDef, inputs: list[Tensor], attrs: dict[str, Any], outputs: list[Tensor]
    ) -> None:
        self.graph = graph
        self.op_def = op_def
        self.name = op_def.name
        self.input_list = inputs
        self.attrs = attrs
        self.device = ""
        self.control = []
        self.control_outputs = []
        self.outputs = outputs
        self._id = -1
        self._frames = ()
        self._original_op = None
        self.gradient: Any = None  # a gradient function of its own, as for custom gradients and calls of functions


class Handle:
    """Names a resource, such as a variable: the node that stands for it in any graph, on a device of a task.

    A resource lives as long as its handle; one that `is_kept` longer, so that a later process can find it by its name.
    """

    __slots__ = ("attrs", "device", "is_kept", "op_def")

    def __init__(self, op_def: OpDef, attrs: dict[str, Any], device: str, is_kept: bool = False) -> None:
        self.op_def = op_def
        self.attrs = attrs
        self.device = device
        self.is_kept = is_kept

    @property
    def key(self) -> tuple[str, ...]:
        """Tells two resources apart."""
        return (self.op_def.name, self.attrs.get("container", ""), self.attrs["shared_name"], self.device)


class EagerTensor(Tensor):
    """A tensor with a value.

    >>> (tf.constant([1.0, 2.0]) + 1.0).numpy()
    array([2., 3.], dtype=float32)
    """

    __slots__ = ("_device", "_eager_graph", "_node", "_static", "_value", "_was_used")

    def __init__(self, graph: GraphData, value: Any, dtype: DType, device: str) -> None:
        self._eager_graph = graph
        self._value = value
        self.dtype = dtype
        self._device = device
        self._node: EagerOperation | None = None
        self._static: TensorShape | None = None
        self._was_used = False  # by a function

    # As a node of a graph

    @property
    def op(self) -> Operation:  # type: ignore[override]
        if self._node is None:
            value = self._value
            if isinstance(value, Handle):
                self._node = EagerOperation(self._eager_graph, value.op_def, [], value.attrs, [self])
            else:
                attrs = {"dtype": self.dtype, "value": self._array() if self.dtype.name != "variant" else value}
                self._node = EagerOperation(self._eager_graph, op_of("Const"), [], attrs, [self])
            self._node.device = self._device
        return self._node

    value_index = 0
    consumer_list: list[Operation] = []

    @property
    def graph(self) -> GraphData:
        return self._eager_graph

    @property
    def name(self) -> str:
        raise AttributeError("Tensor.name is undefined when eager execution is enabled.")

    @property
    def label(self) -> str:
        return f"shape={self._shape} dtype={self.dtype.name}"

    @property
    def device(self) -> str:
        return self._device

    @property
    def _shape(self) -> TensorShape:
        if self._static is None:
            value = self._value
            dims = None if isinstance(value, Handle) else getattr(value, "shape", None)
            if isinstance(value, Handle):
                dims = ()
            self._static = dims if isinstance(dims, TensorShape) else TensorShape.of(dims)
        return self._static

    @_shape.setter
    def _shape(self, shape: TensorShape) -> None:
        """Is called by code that adds to what a graph knows: the value knows its shape."""

    def set_shape(self, shape: Any) -> None:
        if not self._shape.is_compatible_with(as_shape(shape)):
            raise ValueError(f"Tensor's shape {self._shape} is not compatible with supplied shape {as_shape(shape)}.")

    # Its value

    def _array(self) -> np.ndarray:
        """The value as an array that may not be written to."""
        if isinstance(self._value, Handle):
            raise FailedPreconditionError("A handle of a resource has no value: read the variable, or use the table.")
        return np.asarray(self._value)

    def numpy(self) -> Any:
        """The value as a NumPy array that the caller owns, or as a scalar of NumPy."""
        array = self._array()
        return array[()] if array.ndim == 0 else array.copy()

    def cpu(self) -> EagerTensor:
        """This tensor: its value can be read on the host wherever it is."""
        return self

    def gpu(self, gpu_index: int = 0) -> EagerTensor:
        """This tensor: ops move it to where they run."""
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self._array(), dtype)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._array())  # type: ignore[arg-type]  # Python asks for it since 3.12

    def _scalar(self, kind: str) -> Any:
        array = self._array()
        if array.size != 1:
            raise TypeError(f"only length-1 arrays can be converted to Python scalars, received shape {array.shape}.")
        return array.reshape(())[()]

    def __bool__(self) -> bool:
        array = self._array()
        if array.size > 1:
            raise ValueError(
                f"The truth value of a tensor with {array.size} elements is ambiguous: use tf.reduce_any or "
                "tf.reduce_all."
            )
        return bool(array.size) and bool(array.reshape(())[()])

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        array = self._array()
        if array.ndim == 0 and array.dtype.kind not in "iub":
            raise AttributeError(f"A tensor of type {self.dtype.name} cannot be used as an index; {self!r}.")
        if array.dtype.kind not in "iu" or array.ndim:
            raise TypeError(f"only integer scalar arrays can be converted to a scalar index, received {self!r}.")
        return int(array)

    def __round__(self, digits: int = 0) -> Any:
        return round(self._array().item(), digits)

    def __len__(self) -> int:
        if not self._shape.rank:
            raise TypeError("Scalar tensor has no `len()`")
        return int(self._shape.as_list()[0] or 0)

    def __iter__(self) -> Iterator[Any]:
        if not self._shape.rank:
            raise TypeError("Cannot iterate over a scalar tensor")
        rows: Any = self
        return (rows[i] for i in range(len(self)))

    def __format__(self, spec: str) -> str:
        return format(self.numpy(), spec) if spec else str(self)

    def __hash__(self) -> int:
        raise TypeError("Tensor is unhashable. Instead, use tensor.ref() as the key.")

    def __copy__(self) -> EagerTensor:
        return self

    def __deepcopy__(self, memo: Any) -> EagerTensor:
        value = np.array(self._value) if isinstance(self._value, np.ndarray) else self._value
        return EagerTensor(self._eager_graph, value, self.dtype, self._device)

    def __reduce__(self) -> Any:
        return convert_to_tensor, (self._array(), self.dtype.name)

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        raise NotImplementedError("eval is not supported when eager execution is enabled, is .numpy() what you want?")

    def consumers(self) -> list[Operation]:
        raise NotImplementedError("A tensor with a value does not know its consumers.")

    def _text(self, is_repr: bool) -> str:
        if isinstance(self._value, Handle) or not isinstance(getattr(self._value, "shape", None), tuple):
            return "<unprintable>"
        array = self._array()
        if array.ndim == 0:
            return repr(array.item()) if is_repr else str(array[()])
        return repr(array) if is_repr else str(array)

    def __repr__(self) -> str:
        return f"<tf.Tensor: shape={self._shape}, dtype={self.dtype.name}, numpy={self._text(True)}>"

    def __str__(self) -> str:
        return f"tf.Tensor({self._text(False)}, shape={self._shape}, dtype={self.dtype.name})"
