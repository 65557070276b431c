"""Operation, Tensor and GraphData: nodes, their outputs, and the graph that holds them. They refer to each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from traceback import FrameSummary
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from penstock.errors import OperatorNotAllowedInGraphError
from penstock.frames import Frames, definition, place, summaries
from penstock.graph.collections import Collections
from penstock.graph.device import canonical_name
from penstock.graph.dtype import DType
from penstock.graph.hooks import hooks
from penstock.graph.opdef import OpDef
from penstock.graph.reference import Reference
from penstock.graph.sessions import session_for
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.tensor_proto import tensor_proto

# The dunder methods that a Tensor has; `ops` fills them in with `overload`, since operators are ops.
_OPERATORS = (
    "add radd sub rsub mul rmul div rdiv truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul "
    "rmatmul lt le gt ge eq ne and rand or ror xor rxor neg invert abs getitem"
)
OPERATORS = tuple(_OPERATORS.split())


class Tensor:
    """One output of an Operation.

    >>> x = tf.constant([1.0, 2.0])
    >>> (x + 1.0).name
    'add:0'
    """

    __slots__ = ("__weakref__", "_attributes", "_shape", "consumer_list", "dtype", "op", "value_index")
    __array_priority__: ClassVar[int] = 100  # NumPy leaves `array + tensor` to the tensor.
    _attributes: Any  # set by subclasses, such as the variable that the tensor is a slice of

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
    def label(self) -> str:
        """The tensor in messages: its name, or its shape and type if it has none."""
        return self.name

    @property
    def graph(self) -> GraphData:
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
        """Merges knowledge from elsewhere into the static shape.

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
        """Computes this tensor's value in `session` (or the default one)."""
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
        device = f", device={self.device}" if self.device else ""
        return f'Tensor("{self.name}"{shape}, dtype={self.dtype.name}{device})'


def is_symbolic_tensor(tensor: Any) -> bool:
    """Tells if a value is a tensor of a graph or function, which has no value yet: `tf.is_symbolic_tensor(x)`."""
    return isinstance(tensor, Tensor) and not tensor.graph.is_eager


def overload(operator: str, function: Callable[..., Any]) -> None:
    """Makes `function` the meaning of a Python operator on tensors (`"add"` for `x + y`)."""
    setattr(Tensor, f"__{operator}__", function)


class Operation:
    """A node: an op type, its inputs, control inputs, attrs and device, and its output tensors.

    >>> tf.constant(1.0).op.type
    'Const'
    """

    __slots__ = (
        "__weakref__",
        "_attributes",
        "_frames",
        "_id",
        "_original_op",
        "attrs",
        "control",
        "control_outputs",
        "device",
        "graph",
        "input_list",
        "name",
        "op_def",
        "outputs",
    )

    def __init__(
        self,
        graph: GraphData,
        op_def: OpDef,
        name: str,
        inputs: list[Tensor],
        attrs: dict[str, Any],
        output_types: Sequence[DType],
        control: list[Operation],
    ) -> None:
        self.graph = graph
        self.op_def = op_def
        self.name = name
        self.input_list = inputs
        self.attrs = attrs
        self.device = ""
        self.control = control
        self.control_outputs: list[Operation] = []
        unknown = TensorShape.of(None)
        self.outputs = [Tensor(self, i, dtype, unknown) for i, dtype in enumerate(output_types)]
        self._id = -1
        self._frames: Frames = ()
        self._original_op: Operation | None = None  # for an op of a gradient: the op that it differentiates

    @property
    def type(self) -> str:
        return self.op_def.name

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(self.input_list)

    @property
    def control_inputs(self) -> list[Operation]:
        return list(self.control)

    @property
    def node_def(self) -> Any:
        """This node as a NodeDef proto."""
        return hooks.node_def(self)

    @property
    def traceback(self) -> list[FrameSummary]:
        """The program's frames when the op was made, outermost first.

        >>> tf.constant(1.0).op.traceback[-1].lineno
        29
        """
        return summaries(self._frames)

    @property
    def definition(self) -> str:
        """The line that made the op, and the calls that led there: `train.py:29, in build_model`, ..."""
        where = definition(self._frames)
        forward = self._original_op
        if not where or forward is None or not forward._frames:
            return where
        line, *rest = where.split("\n")
        of = f"(gradient of '{forward.name}', defined at {place(forward.traceback[-1])})"
        return "\n".join([f"{line} {of}", *rest])

    def values(self) -> tuple[Tensor, ...]:
        """The outputs, as a tuple."""
        return tuple(self.outputs)

    def get_attr(self, name: str) -> Any:
        """The value of an attr; string attrs are bytes, as in TensorFlow.

        >>> tf.nn.conv2d(x, k, [1, 1, 1, 1], "SAME").op.get_attr("padding")
        b'SAME'
        """
        if name not in self.attrs:
            raise ValueError(f"Operation '{self.name}' has no attr named '{name}'; it has {sorted(self.attrs)}.")
        value = self.attrs[name]
        attr = self.op_def.attrs.get(name)
        if attr is not None and attr.kind == "tensor":
            return tensor_proto(value, self.attrs["dtype"])
        if attr is not None and attr.kind == "shape":
            return value.as_proto()
        return [_as_bytes(v) for v in value] if isinstance(value, (tuple, list)) else _as_bytes(value)

    def _set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value
        self.graph.touch()

    def _set_device(self, device: Any) -> None:
        self.device = canonical_name(device)

    def colocation_groups(self) -> list[bytes]:
        """Names of the groups whose members run on one device (`loc:@name`); at least the op's own."""
        groups = [g.encode() if isinstance(g, str) else g for g in self.attrs.get("_class", ())]
        return groups or [b"loc:@" + self.name.encode()]

    def add_control_input(self, op: Operation) -> None:
        """Makes this operation run only after `op`."""
        self.add_control_inputs([op])

    def add_control_inputs(self, ops: Iterable[Operation]) -> None:
        """Makes this operation run only after `ops`."""
        for op in ops:
            if op not in self.control:
                self.control.append(op)
                op.control_outputs.append(self)
        self.graph.touch()

    _add_control_input = add_control_input
    _add_control_inputs = add_control_inputs

    def run(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> None:
        """Runs this operation in `session` or the default session."""
        session_for(session, self.graph, "execute operation").run(self, feed_dict)

    def _as_graph_element(self) -> Operation:
        return self

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"

    def __str__(self) -> str:
        return str(self.node_def)


def _as_bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


class GraphData(Collections):
    """The operations of a graph and facts about them. All graphs are of its subclass `Graph`."""

    is_function = False
    is_eager = False  # runs each operation when it is made
    orders_effects = False  # writes and reads in bodies happen in the order of the program
    equals_by_value = False  # `==` on its tensors compares values, as in TensorFlow 2; else it asks for identity
    is_branch = False  # a body that may not run, so nothing in it may be read in advance
    outlives_step = False  # a body that runs after the step in which it was made: a function of a dataset
    outer_graph: GraphData | None = None
    shares_seeds = True  # its bodies count random ops together with it; in TensorFlow 2 each counts its own

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._ops: dict[str, Operation] = {}
        self._names_in_use: dict[str, int] = {}
        self.gradient_functions: dict[str, Callable[..., Any]] = {}  # from `custom_gradient`, by `_gradient_op_type`
        self._finalized = False
        self.held: list[Any] = []  # objects that must live as long as the graph
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Any] = set()
        self.seed: int | None = None
        self._op_seeds = 0  # how many random ops without a seed of their own there are
        self.mutations = 0  # how often an existing node was changed; anything compiled before is then stale
        self._function_names = 0
        self.differentiated: dict[Operation, Any] = {}  # control-flow nodes, and the values their gradients need
        self.bodies: WeakValueDictionary[str, GraphData] = WeakValueDictionary()  # all function bodies, by name

    def next_op_seed(self) -> int:
        """The seed of a new random op that has none, in a graph that has one. Bodies may count with the outer graph."""
        if self.outer_graph is not None and self.shares_seeds:
            return self.outer_graph.next_op_seed()
        self._op_seeds += 1
        return self._op_seeds - 1

    @property
    def version(self) -> int:
        """The number of operations in the graph."""
        return len(self._ops)

    @property
    def building_function(self) -> bool:
        return self.is_function

    def touch(self) -> None:
        """Records that an existing node changed."""
        self.mutations += 1

    def capture(self, tensor: Tensor, op_type: str, name: str) -> Tensor:
        """Returns the parameter for a tensor of another graph; a graph that is no function body has none."""
        raise ValueError(
            f"Operation '{name}' ({op_type}): the input '{tensor.name}' belongs to another graph than the operation."
        )

    def stands_for(self, parameter: Tensor) -> Tensor | None:
        """The outer tensor that a parameter was captured from; None in a graph that is no function body."""
        return None

    def captures_of(self, ops: set[Operation]) -> dict[Tensor, Tensor]:
        """The parameters that stand for results of `ops`, with those results; none if this is no function body."""
        return {}

    def capture_control(self, op: Operation) -> None:
        """Records an op of another graph that ops made here must wait for."""
        raise ValueError(f"Cannot wait for '{op.name}': it belongs to another graph.")

    # Looking up

    def get_operations(self) -> list[Operation]:
        """All operations, oldest first."""
        with self._lock:
            return list(self._ops.values())

    def find(self, path: str) -> Operation | None:
        """The operation called `name`, or `body::name` for one in a body, if there is one."""
        body, _, name = path.rpartition("::")
        graph = self.bodies.get(body) if body else self
        return None if graph is None else graph._ops.get(name)

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation called `name`."""
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        op: Operation = self.as_graph_element(name, allow_tensor=False)
        return op

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor called `name`, such as 'x:0'."""
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        tensor: Tensor = self.as_graph_element(name, allow_operation=False)
        return tensor

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True, across_functions: bool = False
    ) -> Any:
        """The Tensor or Operation of this graph that `obj` (a Tensor, an Operation, a variable or a name) refers to."""
        kinds = " or ".join(k for k, ok in (("Tensor", allow_tensor), ("Operation", allow_operation)) if ok)
        if hasattr(obj, "_as_graph_element"):
            obj = obj._as_graph_element()
        if isinstance(obj, bytes):
            obj = obj.decode()
        if isinstance(obj, str):
            return self._by_name(obj, kinds, allow_tensor, allow_operation)
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Operation) and allow_operation):
            if obj.graph is not self and not across_functions:
                kind = "Tensor" if isinstance(obj, Tensor) else "Operation"
                raise ValueError(f"{kind} {obj} is not an element of this graph.")
            return obj
        raise TypeError(f"Can not convert a {type(obj).__name__} into a {kinds}.")

    def _by_name(self, name: str, kinds: str, allow_tensor: bool, allow_operation: bool) -> Any:
        if ":" in name and allow_tensor:
            op_name, _, index = name.partition(":")
            if not op_name or not index.isdigit():
                raise ValueError(f"The name '{name}' is no Tensor name: it must be <op_name>:<index>.")
            op = self._ops.get(op_name)
            if op is None:
                raise KeyError(
                    f"The name '{name}' refers to a Tensor which does not exist. The operation, '{op_name}', does "
                    "not exist in the graph."
                )
            if int(index) >= len(op.outputs):
                raise KeyError(
                    f"The name '{name}' refers to a Tensor which does not exist. The operation, '{op_name}', exists "
                    f"but only has {len(op.outputs)} outputs."
                )
            return op.outputs[int(index)]
        if ":" in name:
            raise ValueError(f"The name '{name}' appears to refer to a Tensor, not a {kinds}.")
        op = self._ops.get(name)
        if allow_operation:
            if op is None:
                raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
            return op
        if op is not None:
            raise ValueError(f"The name '{name}' refers to an Operation, not a {kinds}. Did you mean '{name}:0'?")
        raise ValueError(f"The name '{name}' is not the name of a {kinds}: it has no ':<index>'.")
