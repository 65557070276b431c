"""Arithmetic, reductions, operators: values against NumPy, types and names against TensorFlow's."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from golden_programs import check, load, run_program, view

from penstock.autodiff import gradients
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import Graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.ops.array import creation, ranges, reshaping, spacing
from penstock.ops.linalg import matmul
from penstock.ops.math import argmax, arithmetic, casting, clip, compare, cumulative, histogram, reduce, special, unary
from penstock.session import Session

X = np.array([[-2.5, -1.0, 0.0], [0.5, 1.5, 3.0]], np.float32)
Y = np.array([2.0, -0.7, 1.3], np.float32)
P = np.array([[0.1, 0.5, 0.9], [1.0, 2.0, 7.5]], np.float32)
U = np.array([-0.9, -0.2, 0.0, 0.4, 0.8], np.float32)
K, J = np.array([7, -7, 8, 0], np.int32), np.array([2, 2, -3, 5], np.int32)
B = np.array([[True, False], [True, True]])

# The NumPy equivalent of TensorFlow's function of that name.
VALUES: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
    ("add", (X, Y), {}, X + Y),
    ("subtract", (X, Y), {}, X - Y),
    ("multiply", (X, Y), {}, X * Y),
    ("truediv", (X, Y), {}, X / Y),
    ("truediv", (K, J), {}, K / J),
    ("floordiv", (X, Y), {}, np.floor(X / Y)),
    ("floordiv", (K, J), {}, K // J),
    ("floormod", (K, J), {}, K % J),
    ("floormod", (X, Y), {}, X % Y),
    ("truncatediv", (K, J), {}, np.array([3, -3, -2, 0])),
    ("truncatemod", (K, J), {}, np.array([1, -1, 2, 0])),
    ("div", (K, J), {}, K // J),
    ("div_no_nan", (X, np.array([0, 2, 0], np.float32)), {}, np.array([[0, -0.5, 0], [0, 0.75, 0]])),
    ("multiply_no_nan", (np.float32([np.inf, 2]), np.float32([0, 3])), {}, [0, 6]),
    ("xlogy", (np.float32([0, 2]), np.float32([0, 3])), {}, [0, 2 * np.log(3)]),
    ("pow", (P, Y), {}, P**Y),
    ("pow", (K, np.int32(3)), {}, K**3),
    ("squared_difference", (X, Y), {}, (X - Y) ** 2),
    ("maximum", (X, Y), {}, np.maximum(X, Y)),
    ("minimum", (X, Y), {}, np.minimum(X, Y)),
    ("atan2", (X, Y), {}, np.arctan2(X, Y)),
    *(
        (name, (X,), {}, f(X))
        for name, f in {
            "negative": np.negative,
            "abs": np.abs,
            "sign": np.sign,
            "square": np.square,
            "exp": np.exp,
            "expm1": np.expm1,
            "sin": np.sin,
            "cos": np.cos,
            "tan": np.tan,
            "sinh": np.sinh,
            "cosh": np.cosh,
            "tanh": np.tanh,
            "asinh": np.arcsinh,
            "floor": np.floor,
            "ceil": np.ceil,
            "round": np.round,
            "rint": np.rint,
            "is_finite": np.isfinite,
            "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        }.items()
    ),
    *(
        (name, (P,), {}, f(P))
        for name, f in {
            "log": np.log,
            "log1p": np.log1p,
            "sqrt": np.sqrt,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "reciprocal": lambda x: 1 / x,
        }.items()
    ),
    *(
        (name, (U,), {}, f(U))
        for name, f in {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atanh": np.arctanh}.items()
    ),
    ("equal", (X, 0.0), {}, X == 0),
    ("not_equal", (X, 0.0), {}, X != 0),
    ("less", (X, Y), {}, X < Y),
    ("greater_equal", (X, Y), {}, X >= Y),
    ("logical_xor", (B, True), {}, ~B),
    ("cast", (X, dt.int32), {}, [[-2, -1, 0], [0, 1, 3]]),
    ("cast", (X, dt.bool), {}, X != 0),
    ("cast", (np.array([300, -1], np.int32), dt.uint8), {}, [44, 255]),
    ("saturate_cast", (np.float32([-3, 1e10]), dt.int32), {}, [-3, 2147483520]),
    ("saturate_cast", (np.array([300, -1], np.int32), dt.uint8), {}, [255, 0]),
    ("matmul", (X, P), {"transpose_b": True}, X @ P.T),
    ("matmul", (np.stack([X, P]), P), {"transpose_a": True}, np.swapaxes(np.stack([X, P]), 1, 2) @ P),
    ("tensordot", (np.stack([X, P]), P, [[1, 2], [0, 1]]), {}, np.tensordot(np.stack([X, P]), P, [[1, 2], [0, 1]])),
    ("add_n", ([X, P, X],), {}, X + P + X),
    ("range", (2, 10, 3), {}, [2, 5, 8]),
    ("linspace", (0.0, 1.0, 5), {}, [0, 0.25, 0.5, 0.75, 1]),
    ("reduce_sum", (X,), {"axis": 1}, X.sum(1)),
    ("reduce_sum", (X,), {"axis": [0, -1], "keepdims": True}, X.sum(keepdims=True)),
    ("reduce_mean", (X,), {}, X.mean()),
    ("reduce_mean", (K,), {}, 2),
    ("reduce_prod", (P,), {"reduction_indices": 0}, P.prod(0)),
    ("reduce_max", (X,), {"axis": 0}, X.max(0)),
    ("reduce_max", (np.zeros([0], np.float32),), {}, -np.inf),
    ("reduce_min", (X,), {"axis": 0}, X.min(0)),
    ("reduce_all", (B,), {"axis": 1}, B.all(1)),
    ("reduce_any", (B,), {"axis": 0}, B.any(0)),
    ("reduce_logsumexp", (X,), {"axis": 1}, np.log(np.exp(X).sum(1))),
    ("reduce_std", (X,), {"axis": 0}, X.std(0)),
    ("reduce_euclidean_norm", (X,), {"axis": 1}, np.sqrt((X * X).sum(1))),
    ("count_nonzero", (X,), {"axis": 1}, [2, 3]),
    ("argmax", (X,), {"axis": 1}, [2, 2]),
    ("argmin", (X,), {}, [0, 0, 0]),
    ("cumsum", (X,), {"axis": 1, "exclusive": True}, [[0, -2.5, -3.5], [0, 0.5, 2]]),
    ("cumprod", (P,), {"axis": 1, "reverse": True}, np.cumprod(P[:, ::-1], 1)[:, ::-1]),
    ("bincount", (np.array([1, 1, 3], np.int32),), {}, [0, 2, 0, 1]),
    ("clip_by_value", (X, -1.0, 1.0), {}, X.clip(-1, 1)),
    ("clip_by_norm", (X, 1.0), {}, X / np.linalg.norm(X)),
    ("global_norm", ([X, None, P],), {}, np.sqrt((X * X).sum() + (P * P).sum())),
]


def _function(name: str) -> Any:
    """TensorFlow's function of that name, from the module that has it."""
    modules = (
        arithmetic,
        unary,
        compare,
        casting,
        cumulative,
        reduce,
        argmax,
        ranges,
        histogram,
        spacing,
        matmul,
        clip,
    )
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def test_values_agree_with_numpy() -> None:
    graph = Graph()
    with graph.as_default():
        feeds: dict[Any, np.ndarray] = {}

        def fed(value: Any) -> Any:
            if isinstance(value, list):
                return [fed(v) for v in value]
            if not isinstance(value, np.ndarray):
                return value
            tensor = creation.placeholder(as_dtype(value.dtype), value.shape)
            feeds[tensor] = value
            return tensor

        tensors = [_function(name)(*map(fed, args), **kwargs) for name, args, kwargs, _ in VALUES]
    for (name, args, kwargs, expected), got in zip(VALUES, Session(graph=graph).run(tensors, feeds), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6, err_msg=f"{name}{args}{kwargs}")


@pytest.mark.parametrize("function", ["floordiv", "floormod", "truncatediv", "truncatemod"])
def test_integer_division_by_zero(function: str) -> None:
    with Graph().as_default() as graph:
        y = creation.placeholder(dt.int32, [2])
        z = getattr(arithmetic, function)([3, 4], y)
    session = Session(graph=graph)
    assert session.run(z, {y: [1, 1]}).shape == (2,)
    with pytest.raises(InvalidArgumentError, match="Integer division by zero"):
        session.run(z, {y: [1, 0]})


def test_shape_arithmetic_folds() -> None:
    with Graph().as_default():
        shape = reshaping.shape(creation.placeholder(dt.float32, [4, 6]))
        rows, columns = reshaping.reshape(shape, [2])[0], reshaping.reshape(shape, [2])[1]  # type: ignore[index]
        half = (rows * columns // 2 + reduce.reduce_prod(shape) - arithmetic.maximum(rows, 5)) % 7
        assert constant_value(casting.cast(half, dt.int64)) == (24 // 2 + 24 - 5) % 7
        assert constant_value(ranges.range(reduce.reduce_max(shape))).tolist() == list(range(6))
        assert constant_value(rows // (columns - 6)) is None  # it fails at run time, not before


# Types and names


def _tf(**more: Any) -> types.SimpleNamespace:
    names = """
        abs add argmax cast cumsum equal exp floor floordiv floormod is_nan less log logical_and logical_not maximum
        multiply negative pow reduce_all reduce_max reduce_mean reduce_prod reduce_sum round sigmoid sign sqrt square
        subtract tanh truediv
    """
    functions = {name: _function(name) for name in names.split()}
    dtypes = {d.name: d for d in map(as_dtype, range(1, 24)) if hasattr(dt, d.name)}
    return types.SimpleNamespace(
        **functions,
        **dtypes,
        Graph=Graph,
        Session=Session,
        constant=creation.constant,
        placeholder=creation.placeholder,
        gradients=gradients,
        get_default_graph=lambda: None,
        global_variables=list,
        **more,
    )


_DTYPES = {row["id"]: row for row in load("semantics/dtypes.json")["cases"]}
_NAMING = {row["id"]: row for row in load("graphdef/naming.json")["cases"]}


@pytest.mark.parametrize(
    "id", ["python_scalar_with_tensor", "tensor_tensor_dtype_matrix", "cast_values", "broadcast_errors"]
)
def test_types(id: str) -> None:
    check(_DTYPES[id], _tf())


def test_types_of_functions_of_one_tensor() -> None:
    tf, expected = _tf(), {k: v for k, v in _DTYPES["unary_dtype_matrix"]["result"].items() if hasattr(_tf(), k)}
    program = _DTYPES["unary_dtype_matrix"]["program"]
    first = program.index("for op in [") + len("for op in ")
    listed = program[first : program.index("]", first) + 1]
    row = {"id": "unary", "program": program.replace(listed, repr(list(expected)))}
    assert len(expected) > 15
    assert view(run_program(row, tf)) == expected


@pytest.mark.parametrize("id", ["operator_names", "operator_names_bool", "gradients_names"])
def test_names(id: str) -> None:
    from penstock.graph.graph import get_default_graph

    tf = _tf()
    tf.get_default_graph = get_default_graph
    check(_NAMING[id], tf)


GRADIENT_NODES = {
    # function: shapes of its inputs and the nodes that TensorFlow's gradient makes
    "add same": (arithmetic.add, ([2, 3], [2, 3]), ""),
    "add row": (arithmetic.add, ([2, 3], [3]), "Shape Shape_1 Sum/reduction_indices Sum Reshape"),
    "add unknown rows": (arithmetic.add, ([None, 3], [3]), "Shape Shape_1 Sum/reduction_indices Sum Reshape"),
    "add unknown": (
        arithmetic.add,
        ([None, 3], [None, 3]),
        "Shape Shape_1 BroadcastGradientArgs Sum Reshape Sum_1 Reshape_1",
    ),
    "sub same": (arithmetic.subtract, ([2], [2]), "Neg"),
    "mul same": (arithmetic.multiply, ([2], [2]), "Mul Mul_1"),
    "mul scalar": (arithmetic.multiply, ([2], []), "Mul Mul_1 Shape Shape_1 Sum/reduction_indices Sum Reshape"),
    "div": (arithmetic.realdiv, ([2], [2]), "RealDiv Neg RealDiv_1 RealDiv_2 mul Shape Shape_1"),
    "squared": (arithmetic.squared_difference, ([2], [2]), "scalar Mul sub mul_1 Neg"),
    "matmul": (matmul.matmul, ([2, 3], [3, 4]), "MatMul MatMul_1"),
    "sum": (reduce.reduce_sum, ([2, 3],), "Reshape/shape Reshape Const Tile"),
    "sum unknown": (reduce.reduce_sum, ([None, 3],), "Reshape/shape Reshape Shape Tile"),
    "mean": (reduce.reduce_mean, ([2, 3],), "Reshape/shape Reshape Const Tile Const_1 truediv"),
    "sum of rows": (
        lambda x: reduce.reduce_sum(x, axis=1),
        ([2, 3],),
        "Maximum/x Maximum/y Maximum floordiv/x floordiv Reshape/shape Reshape Tile/multiples Tile",
    ),
    "square": (unary.square, ([2],), "Const Mul Mul_1"),
    "abs": (unary.abs, ([2],), "Sign mul"),
    "tanh": (unary.tanh, ([2],), "TanhGrad"),
    "max": (arithmetic.maximum, ([2], [2]), "zeros_like GreaterEqual SelectV2 SelectV2_1 Shape Shape_1"),
}


@pytest.mark.parametrize("case", GRADIENT_NODES)
def test_nodes_of_gradients(case: str) -> None:
    function, shapes, expected = GRADIENT_NODES[case]
    with Graph().as_default() as graph:
        inputs = [creation.placeholder(dt.float32, shape) for shape in shapes]
        gradients(function(*inputs), inputs)
        made = [op.name.split("_grad/", 1)[1] for op in graph.get_operations() if "_grad/" in op.name]
    assert made == expected.split()


EDGES: list[tuple[Any, list[Any], list[Any]]] = [
    # function, inputs, gradients of the sum: TensorFlow defines them where no derivative exists
    (arithmetic.maximum, [[1.0, 2.0], [1.0, 3.0]], [[1, 0], [0, 1]]),
    (arithmetic.minimum, [[1.0, 2.0], [1.0, 3.0]], [[1, 1], [0, 0]]),
    (arithmetic.pow, [[0.0, -2.0, 3.0], [2.0, 2.0, 2.0]], [[0, -4, 6], [0, 0, 9 * np.log(3)]]),
    (unary.abs, [[-1.0, 0.0, 2.0]], [[-1, 0, 1]]),
    (unary.sqrt, [[0.0, 4.0]], [[np.inf, 0.25]]),
    (reduce.reduce_prod, [[0.0, 2.0, 3.0]], [[6, 0, 0]]),
    (reduce.reduce_max, [[2.0, 1.0, 2.0]], [[0.5, 0, 0.5]]),
    (cumulative.cumprod, [[2.0, 0.0, 3.0]], [[1, 0, 0]]),
    (arithmetic.floormod, [[7.0, -7.0], [2.0, 2.0]], [[1, 1], [-3, 4]]),
    (arithmetic.multiply_no_nan, [[2.0, 3.0], [0.0, 1.0]], [[0, 1], [2, 3]]),
]


@pytest.mark.parametrize("function, inputs, expected", EDGES)
def test_gradients_at_the_edges(function: Any, inputs: list[Any], expected: list[Any]) -> None:
    with Graph().as_default() as graph:
        tensors = [creation.constant(x) for x in inputs]
        grads = gradients(function(*tensors), tensors)
    for got, wanted in zip(Session(graph=graph).run(grads), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_clip_by_global_norm_keeps_slices_and_none() -> None:
    with Graph().as_default() as graph:
        slices = IndexedSlices(creation.constant([[3.0]]), creation.constant([1]))
        clipped, norm = clip.clip_by_global_norm([creation.constant([4.0]), None, slices], 1.0)
        assert clipped[1] is None
        assert clipped[2].indices is slices.indices
        values = Session(graph=graph).run([clipped[0], clipped[2].values, norm])
    np.testing.assert_allclose(np.concatenate([np.ravel(v) for v in values]), [0.8, 0.6, 5.0], rtol=1e-6)


def test_digamma_at_its_poles() -> None:
    with Graph().as_default() as graph:
        poles = special.digamma(creation.constant([0.0, -0.0, -1.0, -2.0]))
    assert np.isnan(Session(graph=graph).run(poles)).all()
