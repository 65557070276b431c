"""GraphDefs: how a graph is written, and that it can be imported again."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from golden_programs import GOLDEN, load, run_program, view
from google.protobuf import text_format
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.tensor_pb2 import TensorProto

import penstock.v1 as tf
from penstock.errors import NotFoundError
from penstock.graph import dtype as dt
from penstock.graph.convert import make_constant
from penstock.graph.function import Call, Function
from penstock.graph.graph import Graph
from penstock.graph.importer import import_graph_def
from penstock.graph.opdef import op, registered
from penstock.graph.shape import TensorShape
from penstock.graph.tensor_proto import array_from_proto, make_ndarray, make_tensor_proto, tensor_proto

MODELS = ["attrs", "input_pipeline", "model_ref", "model_resource", "partitioned"]


def golden(model: str) -> GraphDef:
    return GraphDef.FromString((GOLDEN / "graphdef" / f"{model}.pb").read_bytes())


def differences(actual: Any, expected: Any) -> list[str]:
    """The differences of two lists of NodeDefs, node by node."""
    found = []
    for a, e in zip(actual, expected, strict=False):
        if (a.name, a.op, list(a.input), a.device) != (e.name, e.op, list(e.input), e.device):
            mine, theirs = (f"{n.name}: {n.op}{list(n.input)} on '{n.device}'" for n in (a, e))
            found.append(f"{mine} instead of {theirs}")
        for key in sorted({*a.attr, *e.attr}):
            if key not in a.attr or key not in e.attr or a.attr[key] != e.attr[key]:
                mine, theirs = (str(n.attr[key])[:200] if key in n.attr else "nothing" for n in (a, e))
                found.append(f"{e.name}.{key}: {mine} instead of {theirs}")
    if len(actual) != len(expected):
        found.append(f"{len(actual)} nodes instead of {len(expected)}")
    return found


@pytest.mark.parametrize("model", MODELS)
def test_read_and_written_again_is_the_same(model: str) -> None:
    proto = golden(model)
    with Graph().as_default() as graph:
        import_graph_def(proto, name="")
        again = graph.as_graph_def()
    devices = {n.name: n.device for n in proto.node}
    for node in proto.node:
        # As in TensorFlow, a node goes to the device of the node that it is colocated with.
        group = [g.decode()[5:] for g in node.attr["_class"].list.s] if "_class" in node.attr else []
        node.device = devices[group[0]] if group and group != [node.name] else node.device
    assert differences(again.node, proto.node) == []
    assert again.versions == proto.versions
    for name, expected in load(f"graphdef/{model}.json")["ops"].items():
        outputs = graph.get_operation_by_name(name).outputs
        assert [[t.dtype.name, view(t.shape)] for t in outputs] == expected["outputs"]


@pytest.mark.parametrize("model", MODELS)
def test_the_same_program_gives_the_same_graph(model: str) -> None:
    row = load(f"graphdef/{model}.json")
    program = f"tf.set_random_seed(42)\n{row['program']}\nresult = tf.get_default_graph()"
    graph = run_program({"id": model, "program": program}, tf)
    assert differences(graph.as_graph_def().node, golden(model).node) == []
    for name, expected in row["ops"].items():
        op = graph.get_operation_by_name(name)
        assert [[t.dtype.name, view(t.shape)] for t in op.outputs] == expected["outputs"], name
        assert [g.decode() for g in op.colocation_groups()] == expected["colocation"], name
    for key, names in row["collections"].items():
        assert [getattr(item, "name", str(item)) for item in graph.get_collection(key)] == names, key


def test_add_shapes_and_from_version() -> None:
    with Graph().as_default() as graph:
        make_constant([1.0, 2.0], None, name="a")
        version = graph.version
        make_constant([3], None, name="b")
        assert [n.name for n in graph.as_graph_def(from_version=version).node] == ["b"]
        node = graph.as_graph_def(add_shapes=True).node[0]
    assert node.attr["_output_shapes"].list.shape[0] == TensorShape([2]).as_proto()


# Tensors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3.0,), "dtype: DT_FLOAT tensor_shape { } float_val: 3.0"),
        (([1.0, 1.0],), r'dtype: DT_FLOAT tensor_shape { dim { size: 2 } } tensor_content: "\0\0\200?\0\0\200?"'),
        ((0.0, None, [3]), "dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: 0.0"),
        (([],), "dtype: DT_FLOAT tensor_shape { dim { } }"),
        ((["a", "b"],), 'dtype: DT_STRING tensor_shape { dim { size: 2 } } string_val: "a" string_val: "b"'),
        (("a", None, [2]), 'dtype: DT_STRING tensor_shape { dim { size: 2 } } string_val: "a"'),
        ((True, None, [2]), "dtype: DT_BOOL tensor_shape { dim { size: 2 } } bool_val: true"),
        (([True, True],), "dtype: DT_BOOL tensor_shape { dim { size: 2 } } bool_val: true bool_val: true"),
        ((1 + 2j,), "dtype: DT_COMPLEX128 tensor_shape { } dcomplex_val: 1.0 dcomplex_val: 2.0"),
        (
            ([1 + 2j, 3], dt.complex64),
            "dtype: DT_COMPLEX64 tensor_shape { dim { size: 2 } } scomplex_val: 1.0 "
            "scomplex_val: 2.0 scomplex_val: 3.0 scomplex_val: 0.0",
        ),
        (([1, 2], dt.float16), r'dtype: DT_HALF tensor_shape { dim { size: 2 } } tensor_content: "\000<\000@"'),
        ((5, dt.bfloat16), "dtype: DT_BFLOAT16 tensor_shape { } half_val: 16544"),
        (([1, 2], dt.bfloat16), r'dtype: DT_BFLOAT16 tensor_shape { dim { size: 2 } } tensor_content: "\200?\000@"'),
        ((5, dt.uint64), "dtype: DT_UINT64 tensor_shape { } uint64_val: 5"),
        ((5, dt.int8, [2]), "dtype: DT_INT8 tensor_shape { dim { size: 2 } } int_val: 5"),
        ((np.ones((2, 0)),), "dtype: DT_DOUBLE tensor_shape { dim { size: 2 } dim { } }"),
        ((7.0, None, [0]), "dtype: DT_FLOAT tensor_shape { dim { } }"),
        (
            (np.array([(1,), (2,)], dt.qint8.as_numpy_dtype),),
            r'dtype: DT_QINT8 tensor_shape { dim { size: 2 } } tensor_content: "\001\002"',
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:40],
)
def test_tensor_protos_are_as_tensorflow_writes_them(arguments: tuple[Any, ...], text: str) -> None:
    proto = make_tensor_proto(*arguments)
    assert proto == text_format.Parse(text, TensorProto())
    array = array_from_proto(proto)
    assert tensor_proto(array, dt.as_dtype(proto.dtype)) == proto


def test_an_array_of_jax_is_written_as_one_of_numpy() -> None:
    """Functions that capture computed tensors are sent with such arrays."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert tensor_proto(jnp.asarray(array), dt.float32) == tensor_proto(array, dt.float32)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: 1 float_val: 2", [1.0, 2.0, 2.0]),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 3 } }", [0.0, 0.0, 0.0]),
        ('dtype: DT_STRING tensor_shape { dim { size: 2 } } string_val: "a"', [b"a", b"a"]),
        ("dtype: DT_FLOAT tensor_shape { unknown_rank: true } float_val: 1", 1.0),
        ("dtype: DT_INT8 tensor_shape { dim { size: 1 } } int_val: -3", [-3]),
        ('dtype: DT_FLOAT tensor_shape { dim { size: 3 } } tensor_content: "abcd"', ValueError),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 1 } } float_val: 1 float_val: 2", ValueError),
        ("dtype: DT_FLOAT tensor_shape { dim { size: -1 } } float_val: 1", ValueError),
        ("dtype: DT_FLOAT tensor_shape { dim { size: 1000000 } dim { size: 1000000 } } float_val: 1", ValueError),
        ("dtype: DT_RESOURCE", ValueError),
        ("dtype: DT_INVALID", ValueError),
    ],
)
def test_make_ndarray(text: str, expected: Any) -> None:
    proto = text_format.Parse(text, TensorProto())
    if expected is ValueError:
        with pytest.raises(ValueError):
            make_ndarray(proto)
    else:
        assert make_ndarray(proto).tolist() == expected


# Importing

X = 'node{name:"x" op:"Placeholder" attr{key:"dtype" value{type:DT_FLOAT}}}'
INT = X.replace("DT_FLOAT", "DT_INT64")
S = 'node{name:"s" op:"Identity" input:"%s" attr{key:"T" value{type:DT_FLOAT}}}'
LOOP = S % "t" + 'node{name:"t" op:"Identity" input:"s" attr{key:"T" value{type:DT_FLOAT}}}'


def parse(text: str) -> GraphDef:
    return text_format.Parse(text, GraphDef())


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('node{name:"f" op:"Foo"}', NotFoundError, "no op type 'Foo'"),
        (S % "x", ValueError, "input 'x' is not in"),
        (X + S % "x:3", ValueError, "output 3 of 'x'"),
        (X + S % "x:-1", ValueError, "input 'x:-1' is not in"),
        (X + S % "x:y", ValueError, "is not in the GraphDef"),
        (X + S % "", ValueError, "input '' is not in"),
        (INT + S % "x", ValueError, "input 0 must be float32, received int64 from 'import/x:0'"),
        (LOOP, ValueError, "2 nodes wait"),
        (X + X, ValueError, "Two nodes are called 'x'"),
        (X + S.replace('input:"%s"', 'input:"x" input:"x"'), ValueError, "takes 1 inputs, received 2"),
        (X + S.replace('input:"%s"', ""), ValueError, "takes 1 inputs, received 0"),
        (X + S.replace('input:"%s"', 'input:"^x" input:"x"'), ValueError, "after a control input"),
        ('node{name:"x" op:"Placeholder"}', ValueError, "attr 'dtype' is missing"),
        ('node{name:"x" op:"Placeholder" attr{key:"dtype" value{i:1}}}', ValueError, "of kind 'type'"),
        (X.replace("DT_FLOAT", "DT_INVALID"), ValueError, "No type has the number 0"),
        (X.replace('"x"', '"x y"'), ValueError, "not a valid name"),
        (X.replace('"x"', r'"x\n"'), ValueError, "not a valid name"),
        (X.replace('"x"', '""'), ValueError, "not a valid name"),
        (X.replace("attr", 'device:"foo bar" attr', 1), ValueError, "foo bar"),
        (X.replace("attr", 'attr{key:"_class" value{list{s:"loc:@n"}}} attr', 1), ValueError, "colocated with 'n'"),
        ('node{name:"s" op:"NoOp" input:"^x"}', ValueError, "is not in the GraphDef"),
        (X + "versions{producer:99999 min_consumer:99999}", ValueError, "reader of version"),
    ],
)
def test_import_errors_leave_the_graph_alone(text: str, error: type[Exception], message: str) -> None:
    with Graph().as_default() as graph, pytest.raises(error, match=message):
        import_graph_def(parse(text))
    assert graph.get_operations() == []


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"return_elements": ["y"]}, ValueError),
        ({"return_elements": ["x:1"]}, ValueError),
        ({"return_elements": ["x:y"]}, ValueError),
        ({"return_elements": [3]}, TypeError),
        ({"input_map": [1]}, TypeError),
        ({"input_map": {"y": 1.0}}, ValueError),
        ({"input_map": {"x:5": 1.0}}, ValueError),
        ({"input_map": {"x": 1}}, ValueError),
        ({"input_map": {"x": 1.0}, "name": ""}, ValueError),
        ({"name": "bad name"}, ValueError),
        ({"graph_def": b"abc"}, TypeError),
    ],
    ids=str,
)
def test_import_arguments(kwargs: dict[str, Any], error: type[Exception]) -> None:
    with Graph().as_default(), pytest.raises(error):
        import_graph_def(**{"graph_def": parse(X + S % "x"), **kwargs})


def test_import_names_maps_and_places() -> None:
    proto = parse(S % "x" + X)
    with Graph().as_default() as graph:
        one = make_constant([1.0, 2.0], None, name="one")
        op, tensor, mapped = import_graph_def(proto, {"x": one}, ["s", "s:0", "x:0"], name="im")  # type: ignore[misc]
        assert (op.name, tensor.name, mapped is one, tensor.shape.as_list()) == ("im/s", "im/s:0", True, [2])
        import_graph_def(proto)
        import_graph_def(proto)
        import_graph_def(proto, name="")
        import_graph_def(proto, name="")
        import_graph_def(proto, {"x": 3.0}, name="v")
        names = [o.name for o in graph.get_operations()]
    assert names == [
        "one",
        "im/s",
        "im/x",
        "import/x",
        "import/s",
        "import_1/x",
        "import_1/s",
        "x",
        "s",
        "x_1",
        "s_1",
        "v/_inputs/Const",
        "v/s",
        "v/x",
    ]
    coloc = parse(
        X.replace("attr", 'device:"/job:ps/task:0" attr', 1)
        + S.replace('input:"%s"', 'input:"x" input:"^x" attr{key:"_class" value{list{s:"loc:@x"}}}')
    )
    with Graph().as_default() as graph, graph.device("/job:worker"):
        bar = registered("NoOp")(name="bar")  # type: ignore[misc]
        with graph.control_dependencies([bar]):
            import_graph_def(coloc)
            import_graph_def(parse(X), name="y")
        s, x, y = (graph.get_operation_by_name(n) for n in ("import/s", "import/x", "y/x"))
    assert (x.device, s.device, y.device) == ("/job:ps/task:0", "/job:ps/task:0", "/job:worker")
    assert s.colocation_groups() == [b"loc:@import/x"]
    assert [c.name for c in s.control_inputs] == ["import/x"]
    assert [c.name for c in y.control_inputs] == ["bar"]


def test_functions_and_calls_travel() -> None:
    def body(x: Any) -> list[Any]:
        return [registered("AddV2")(x, outside, name="sum"), x]  # type: ignore[misc]

    with Graph().as_default() as graph:
        outside = registered("Placeholder")(dtype=dt.float32, shape=[2], name="outside")  # type: ignore[misc]
        function = Function.trace("body", [(dt.float32, [2])], body)
        twin = Function("body", Function.trace("other", [(dt.float32, None)], lambda x: [x]).graph)
        inner = Call("AddV2", {"T": dt.float32})
        call = Call("TestHolder", {"body": twin, "nested": inner})
        holder(body=function, nested=Call("TestHolder", {"body": function, "nested": call}), name="h")
        proto = GraphDef.FromString(graph.as_graph_def().SerializeToString())
    assert [f.signature.name for f in proto.library.function] == ["body_1", "body"]
    assert list(proto.library.function[0].node_def[0].input) == ["arg0", "outside_captured"]
    assert dict(proto.library.function[0].ret) == {"output_0": "sum:z:0", "output_1": "arg0"}
    with Graph().as_default() as again:
        import_graph_def(proto, name="")
        assert again.as_graph_def() == proto
        attrs = again.get_operation_by_name("h").attrs
    assert attrs["nested"].attrs["nested"].attrs["nested"] == inner
    assert attrs["nested"].attrs["body"] is attrs["body"]
    assert [t.shape.as_list() for t in attrs["body"].outputs] == [[2], [2]]


@op("TestHolder", "->")
def holder(*, body: Function, nested: Call) -> None:
    """Holds functions."""
