"""A malformed GraphDef gives an error that can be caught, and leaves the graph as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.tensor_pb2 import TensorProto

import penstock.ops  # noqa: F401  declares the library
from penstock.errors import OpError
from penstock.graph import tensor_proto
from penstock.graph.graph import Graph
from penstock.graph.importer import import_graph_def
from penstock.graph.opdef import all_ops, load_libraries

load_libraries()

ALLOWED = (ValueError, TypeError, KeyError, OpError)
GRAPHS = sorted((Path(__file__).parent.parent / "golden").glob("graphdef*/*.pb"))
GOLDEN = [path.read_bytes() for path in GRAPHS if not path.name.startswith("metagraph")]
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_proto, "MAX_TENSOR_BYTES", 2**22)


def try_import(proto: GraphDef) -> None:
    graph = Graph()
    with graph.as_default():
        try:
            import_graph_def(proto, name="")
        except ALLOWED:
            assert graph.get_operations() == []
        else:
            # A graph that can be read can be written, and read again.
            again = graph.as_graph_def()
            with Graph().as_default():
                import_graph_def(GraphDef.FromString(again.SerializeToString()), name="")


CHANGE = st.tuples(st.floats(0, 0.9999), st.integers(0, 255))  # position (as a fraction of the whole), and new value


@relaxed
@given(st.sampled_from(range(len(GOLDEN))), st.lists(CHANGE, max_size=8), st.data())
def test_changed_bytes(which: int, changes: list[tuple[float, int]], data: st.DataObject) -> None:
    content = bytearray(GOLDEN[which])
    for where, value in changes:
        content[int(where * len(content))] = value
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(content) - 1))
        del content[start : start + data.draw(st.integers(0, 40))]
    try:
        proto = GraphDef.FromString(bytes(content))
    except DecodeError:
        return
    try_import(proto)


NAMES = st.sampled_from(["a", "b", "c", "d/e", "f"])
TEXT = st.one_of(NAMES, st.text(max_size=5), st.just("x" * 100_000), st.sampled_from(["\0", "a\n", "_a", "a b", "é"]))
INPUTS = st.one_of(NAMES, NAMES.map("{}:1".format), NAMES.map("^{}".format), TEXT)
NUMBERS = st.one_of(st.integers(-3, 5), st.integers(-(2**63), 2**63 - 1))
TYPES = st.one_of(st.sampled_from([1, 3, 7, 9, 10]), st.integers(0, 140))


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    sizes = draw(st.lists(NUMBERS, max_size=4))
    return {"dim": [{"size": size} for size in sizes], "unknown_rank": draw(st.booleans())}


@st.composite
def tensors(draw: st.DrawFn) -> TensorProto:
    proto = TensorProto(dtype=draw(TYPES), tensor_shape=draw(shapes()), tensor_content=draw(st.binary(max_size=9)))
    proto.float_val.extend(draw(st.lists(st.floats(width=32), max_size=3)))
    proto.int_val.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
    proto.string_val.extend(draw(st.lists(st.binary(max_size=3), max_size=3)))
    return proto


@st.composite
def attr_values(draw: st.DrawFn, kind: str) -> AttrValue:
    if kind.startswith("list("):
        inner = draw(st.lists(attr_values(kind[5:-1]), max_size=4))
        value = AttrValue(list={})
        for item in inner:
            field = item.WhichOneof("value")
            if field in ("s", "i", "f", "b", "type", "shape", "tensor", "func"):
                getattr(value.list, field).append(getattr(item, field))
        return value
    if draw(st.integers(0, 20)) == 0:
        return AttrValue(i=draw(NUMBERS))
    made = {
        "string": lambda: AttrValue(s=draw(st.one_of(st.sampled_from([b"SAME", b"NHWC"]), st.binary(max_size=5)))),
        "int": lambda: AttrValue(i=draw(NUMBERS)),
        "float": lambda: AttrValue(f=draw(st.floats(width=32))),
        "bool": lambda: AttrValue(b=draw(st.booleans())),
        "type": lambda: AttrValue(type=draw(TYPES)),
        "shape": lambda: AttrValue(shape=draw(shapes())),
        "tensor": lambda: AttrValue(tensor=draw(tensors())),
        "func": lambda: AttrValue(func={"name": draw(st.sampled_from(["MatMul", "Vjp", "f", "g"]))}),
    }
    return made[kind]()


@st.composite
def graph_defs(draw: st.DrawFn) -> GraphDef:
    proto = GraphDef()
    ops = sorted((op for op in all_ops()), key=lambda op: op.name)
    for _ in range(draw(st.integers(1, 4))):
        op = draw(st.sampled_from(ops))
        node = proto.node.add(name=draw(TEXT), op=op.name if draw(st.integers(0, 9)) else draw(TEXT))
        node.device = draw(st.sampled_from(["", "", "/job:ps/task:0", "nonsense", "/cpu:0"]))
        count = len(op.inputs) if draw(st.integers(0, 5)) else draw(st.integers(0, 5))
        node.input.extend(draw(INPUTS) for _ in range(count))
        for attr in op.attrs.values():
            if draw(st.integers(0, 9)):
                node.attr[attr.name].CopyFrom(draw(attr_values(attr.kind)))
        if not draw(st.integers(0, 5)):
            extra = draw(st.sampled_from(["_class", "_x", "_output_shapes"]))
            node.attr[extra].CopyFrom(draw(attr_values("list(string)")))
    for name in ("f", "g"):
        if draw(st.booleans()):
            body = proto.library.function.add()
            body.signature.name = name
            node = body.node_def.add(name="call", op="Vjp")
            node.attr["forward"].func.name = draw(st.sampled_from(["f", "g", "MatMul"]))
            body.signature.output_arg.add(name="o", type=1)
            body.ret["o"] = draw(TEXT)
    return proto


@relaxed
@given(graph_defs())
def test_random_nodes(proto: GraphDef) -> None:
    try_import(proto)


FLOW = {"Switch": 2, "Merge": 2, "Enter": 1, "Exit": 1, "NextIteration": 1, "LoopCond": 1, "Identity": 1, "AddV2": 2}
WIRES = st.sampled_from(["x", "p", "p", *(f"n{i}" for i in range(8)), *(f"n{i}:1" for i in range(8)), "^n1", "^n4"])


@st.composite
def flow_graphs(draw: st.DrawFn) -> GraphDef:
    proto = GraphDef()
    for name, dtype in (("x", 1), ("p", 10)):
        proto.node.add(name=name, op="Placeholder").attr["dtype"].type = dtype
    for i in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(sorted(FLOW)))
        node = proto.node.add(name=f"n{i}", op=op)
        wires = [draw(WIRES) for _ in range(FLOW[op])]
        if op in ("Switch", "Merge") and draw(st.integers(0, 3)):
            # Most graphs are nearly right: a Switch goes by p, a Merge takes both sides of one.
            wires = [wires[0], "p"] if op == "Switch" else [f"n{max(i - 1, 0)}", f"n{max(i - 1, 0)}:1"]
        node.input.extend(sorted(wires, key=lambda w: w.startswith("^")))
        node.attr["T"].type = draw(st.sampled_from([1, 1, 1, 10]))
        node.attr["frame_name"].s = draw(st.sampled_from([b"f", b"g"]))
    return proto


@relaxed
@given(flow_graphs())
def test_random_control_flow(proto: GraphDef) -> None:
    try_import(proto)


def test_deep_chain_and_nesting_are_bounded() -> None:
    proto = GraphDef()
    proto.node.add(name="n0", op="NoOp")
    for i in range(1, 3000):
        proto.node.add(name=f"n{i}", op="NoOp", input=[f"^n{i - 1}"])
    try_import(proto)
    nested = GraphDef()
    node = nested.node.add(name="v", op="Vjp")
    call = node.attr["forward"].func
    for _ in range(40):
        call.name = "Vjp"
        call.attr["Tin"].list.SetInParent()
        call.attr["Tdy"].list.SetInParent()
        call.attr["Tout"].list.SetInParent()
        call = call.attr["forward"].func
    call.name = "NoOp"
    for attr in ("Tin", "Tdy", "Tout"):
        node.attr[attr].list.SetInParent()
    with Graph().as_default(), pytest.raises(ValueError, match="nested more than"):
        import_graph_def(nested)
