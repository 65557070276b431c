"""Operation: a node of a Graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from traceback import FrameSummary
from typing import TYPE_CHECKING, Any

from penstock.frames import Frames, definition, place, summaries
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor

if TYPE_CHECKING:
    from penstock.graph.graph import Graph


class Operation:
    """A node: an op type, its inputs, control inputs, attrs and device, and the tensors it gives.

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
        graph: Graph,
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
        self._original_op: Operation | None = None  # of a gradient: the op that it is for

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
        from penstock.graph.graphdef import node_def

        return node_def(self)

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
            from penstock.graph.graphdef import tensor_proto

            return tensor_proto(value, self.attrs["dtype"])
        if attr is not None and attr.kind == "shape":
            return value.as_proto()
        return [_as_bytes(v) for v in value] if isinstance(value, (tuple, list)) else _as_bytes(value)

    def _set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value
        self.graph.touch()

    def _set_device(self, device: Any) -> None:
        from penstock.graph.device import canonical_name

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
        from penstock.graph.graph import session_for

        session_for(session, self.graph, "execute operation").run(self, feed_dict)

    def _as_graph_element(self) -> Operation:
        return self

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"

    def __str__(self) -> str:
        return str(self.node_def)


def _as_bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
