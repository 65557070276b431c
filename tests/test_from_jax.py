"""Functions of JAX as nodes: values and gradients are jax's, in one process and on other tasks."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cluster.processes import Cluster
from jax import export
from leaks import leak_check

import penstock
import penstock.v1 as tf
from penstock.ops.control.jax_call import as_text, jax_call, read_module

FORM = jax.ShapeDtypeStruct
RANDOM = np.random.RandomState(0)
PARAMS = {
    "first": {"w": RANDOM.randn(4, 8).astype("f") / 2, "b": np.zeros(8, "f")},
    "last": {"w": RANDOM.randn(8, 3).astype("f") / 2, "b": np.zeros(3, "f")},
}
X = RANDOM.randn(6, 4).astype("f")


def mlp(params: Any, x: Any) -> Any:
    # jnp.zeros is of 32 bits here, as it is in a program without penstock.
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"] + jnp.zeros(8))
    return hidden @ params["last"]["w"] + params["last"]["b"]


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.fixture
def as_in_jax() -> Iterator[None]:
    """Computes what is expected with jax's own default precision."""
    with jax.enable_x64(False):
        yield


def run(fetches: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


def constants(tree: Any) -> Any:
    return jax.tree.map(tf.constant, tree)


def assert_close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


# Values and gradients


@pytest.mark.usefixtures("as_in_jax")
def test_values_are_those_of_jax() -> None:
    y = penstock.from_jax(mlp)(constants(PARAMS), tf.constant(X))
    assert (y.dtype, y.shape.as_list(), y.op.type, y.op.name) == (tf.float32, [6, 3], "JaxCall", "mlp")
    assert [op.type for op in y.graph.get_operations()].count("JaxCall") == 1
    assert_close(run(y), mlp(PARAMS, X))


@pytest.mark.usefixtures("as_in_jax")
def test_first_and_second_gradients_are_those_of_jax() -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(mlp(params, x) ** 2)

    def slope(params: Any, x: Any) -> Any:
        return jnp.sum(jax.grad(loss)(params, x)["first"]["w"] ** 2)

    params, x = constants(PARAMS), tf.constant(X)
    leaves, tree = jax.tree.flatten(params)
    first = tf.gradients(penstock.from_jax(loss)(params, x), [*leaves, x])
    second = tf.gradients(tf.reduce_sum(tf.square(first[leaves.index(params["first"]["w"])])), leaves)
    assert {g.op.type for g in (*first, *second)} == {"JaxCall"}
    *found, found_x, found_second = run([*first, second])
    expected, expected_x = jax.grad(loss, (0, 1))(PARAMS, X)
    assert_close(jax.tree.unflatten(tree, found), expected)
    assert_close(found_x, expected_x)
    assert_close(jax.tree.unflatten(tree, found_second), jax.grad(slope)(PARAMS, X))


def test_more_derivatives_than_were_exported() -> None:
    x = tf.constant(2.0)
    cube = lambda v: v**3  # noqa: E731
    for order in (0, 1, 3):
        y = penstock.from_jax(cube, vjp_order=order)(x)
        for _ in range(order):
            (y,) = tf.gradients(y, x)
        assert run(y) == [8, 12, None, 6][order]
        with pytest.raises(LookupError, match="has no gradient: its VJP was not exported: pass a higher vjp_order"):
            tf.gradients(y, x)
    with pytest.raises(ValueError, match="vjp_order must be 0 or more, received -1"):
        penstock.from_jax(cube, vjp_order=-1)


def test_complex_gradients_are_those_of_tensorflow() -> None:
    value = np.array([1 + 2j, 3 - 1j], np.complex64)
    z = tf.constant(value)
    theirs = penstock.from_jax(lambda z: jnp.abs(z * z * 1j) ** 2)(z)
    ours = tf.square(tf.abs(z * z * 1j))
    found, expected = run([tf.gradients(theirs, z), tf.gradients(ours, z)])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_integers_and_keys_have_no_gradient() -> None:
    def noisy(key: Any, rows: Any, table: Any) -> Any:
        drawn = jax.random.normal(key, table.shape, table.dtype)
        return (table + drawn)[rows], rows > 1

    key = np.array([3, 4], np.uint32)
    table = np.arange(12, dtype="f").reshape(4, 3)
    tensors = [tf.constant(key), tf.constant([1, 3, 3]), tf.constant(table)]
    picked, large = penstock.from_jax(noisy)(*tensors)
    assert (picked.dtype, large.dtype) == (tf.float32, tf.bool)
    gradients = tf.gradients(picked, tensors)
    assert gradients[:2] == [None, None]
    found = run([picked, large, gradients[2]])
    with jax.enable_x64(False):
        assert_close(found[:2], list(noisy(key, np.array([1, 3, 3]), table)))
    assert found[2][:, 0].tolist() == [0, 1, 0, 2]


def test_what_jax_cannot_differentiate_has_no_gradient() -> None:
    def halved(x: Any) -> Any:
        return jax.lax.while_loop(lambda v: v > 1, lambda v: v / 2, x)

    x = tf.constant(12.0)
    y = penstock.from_jax(halved)(x)
    assert run(y) == 0.75
    with pytest.raises(
        LookupError, match=r"'halved' \(JaxCall of halved\) .*jax cannot differentiate it \(Reverse-mode"
    ):
        tf.gradients(y, x)


# Structures


Pair = collections.namedtuple("Pair", "left right")


@functools.partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=["power"])
@dataclasses.dataclass
class Settings:
    scale: Any
    power: int


def test_arguments_and_results_in_pytrees() -> None:
    def model(pair: Pair, *more: Any, settings: Settings, extra: Any = None) -> Any:
        assert extra is None
        total = (pair.left + sum(more)) * settings.scale**settings.power
        return {"total": total, "pair": Pair(pair.right, [total.sum(), ()]), "none": None}

    call = penstock.from_jax(model)
    settings = Settings(tf.constant(2.0), 3)
    found = call(Pair(tf.constant([1.0, 2.0]), np.int32(7)), 1.0, tf.Variable(3.0), settings=settings)
    assert isinstance(found["pair"], Pair) and found["none"] is None and found["pair"].right[1] == ()
    values = run([found["total"], found["pair"].left, found["pair"].right[0]])
    assert_close(values, [[40.0, 48.0], 7, 88.0])
    # Other static data is another trace.
    once = call(Pair(tf.constant([1.0, 2.0]), np.int32(7)), settings=Settings(tf.constant(2.0), 1))
    assert_close(run(once["total"]), [2.0, 4.0])


def test_no_arguments_and_no_results() -> None:
    assert run(penstock.from_jax(lambda: jnp.arange(3))()).tolist() == [0, 1, 2]
    assert penstock.from_jax(lambda x: None)(tf.constant(1.0)) is None


def test_names_of_nodes() -> None:
    x = tf.constant(1.0)
    with tf.name_scope("outer"):
        assert penstock.from_jax(functools.partial(jnp.add, 1.0), name="plus")(x).op.name == "outer/plus"
    assert penstock.from_jax(functools.partial(mlp, PARAMS))(X).op.name == "mlp"
    assert penstock.from_jax(lambda x: x)(x).op.name == "lambda"


# Types


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int8", "uint8", "int32", "int64", "bool"]
)
def test_types_stay_as_they_are(dtype: str) -> None:
    x = tf.cast(tf.constant([0, 1, 1]), dtype)
    y = penstock.from_jax(lambda x: x[::-1])(x)
    assert y.dtype == x.dtype
    assert run(tf.cast(y, tf.int32)).tolist() == [1, 1, 0]


def test_64_bits_only_where_an_argument_has_them() -> None:
    ones = penstock.from_jax(lambda x: jnp.ones(2) * x)
    assert ones(tf.constant(1.0)).dtype == tf.float32
    assert ones(tf.constant(1.0, tf.float64)).dtype == tf.float64
    assert ones(tf.constant(1, tf.int64)).dtype == tf.float64


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (lambda: tf.constant("text"), r"from_jax\(f\): args\[0\]\['x'\] is of type string"),
        (lambda: object(), r"from_jax\(f\): args\[0\]\['x'\] is no tensor but <object"),
    ],
)
def test_arguments_that_jax_has_no_arrays_for(argument: Callable[[], Any], message: str) -> None:
    def f(tree: Any) -> Any:
        return tree["x"]

    with pytest.raises(TypeError, match=message):
        penstock.from_jax(f)({"x": argument()})


def test_results_that_are_no_tensors() -> None:
    with pytest.raises(TypeError, match=r"from_jax\(key\): it returns key<fry>"):
        penstock.from_jax(jax.random.key)(tf.constant(1))
    with pytest.raises(TypeError, match="from_jax takes a function, received 3"):
        penstock.from_jax(3)  # type: ignore[arg-type]


# Sizes that are not known


@pytest.mark.usefixtures("as_in_jax")
def test_unknown_batch_size() -> None:
    x = tf.placeholder(tf.float32, [None, 4])
    y = penstock.from_jax(mlp)(constants(PARAMS), x)
    gradient = tf.gradients(y, x)[0]
    assert (y.shape.as_list(), gradient.shape.as_list()) == ([None, 3], [None, 4])
    with tf.Session() as session:
        for count in (6, 2, 5, 6):
            found = session.run([y, gradient], {x: X[:count]})
            assert_close(found, [mlp(PARAMS, X[:count]), jax.grad(lambda x: mlp(PARAMS, x).sum())(X[:count])])


def test_unknown_sizes_that_must_be_equal() -> None:
    x, y = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None])
    outer = penstock.from_jax(lambda x, y: x[:, 0][:, None] * y)(x, y)
    error = penstock.from_jax(lambda x, y: x[:, 0] - y, name="error")(x, y)
    with tf.Session() as session:
        feeds = {x: np.ones((3, 2)), y: np.ones(2)}
        assert session.run(outer, feeds).shape == (3, 2)
        assert session.run(error, {x: np.ones((3, 2)), y: np.ones(3)}).tolist() == [0, 0, 0]
        with pytest.raises(tf.errors.InvalidArgumentError, match="'error' with inputs of shape"):
            session.run(error, feeds)


def test_functions_that_must_know_sizes_say_which_argument() -> None:
    def f(scale: Any, tree: Any) -> Any:
        return scale if tree["x"].shape[1] > 3 else tree["x"]

    x = tf.placeholder(tf.float32, [2, None])
    with pytest.raises(ValueError, match=r"from_jax\(f\): .*sizes of args\[1\]\['x'\] are unknown.*float32\[2, \?\]"):
        penstock.from_jax(f)(1.0, {"x": x})
    assert penstock.from_jax(f)(1.0, {"x": tf.ensure_shape(x, [2, 5])}).shape.as_list() == []
    with pytest.raises(ValueError, match=r"the rank of args\[1\]\['x'\] \('Placeholder.*'\) is not known"):
        penstock.from_jax(f)(1.0, {"x": tf.placeholder(tf.float32)})


def test_errors_of_the_function_name_it() -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    with pytest.raises(TypeError) as caught:
        penstock.from_jax(product)(np.ones((2, 3), "f"), y=np.ones((4, 5), "f"))
    assert "traced product for args[0]: float32[2, 3], kwargs['y']: float32[4, 5]" in "".join(caught.value.__notes__)


def test_callbacks_are_refused() -> None:
    def calls_back(x: Any) -> Any:
        return jax.pure_callback(np.sin, FORM(x.shape, x.dtype), x)

    with pytest.raises(ValueError, match=r"from_jax\(calls_back\): jax.export refuses it"):
        penstock.from_jax(calls_back)(tf.constant(1.0))


# Modules


def test_modules_are_for_all_platforms_where_jax_can() -> None:
    x = tf.constant(np.eye(3, dtype="f"))
    y = penstock.from_jax(jnp.linalg.cholesky)(x)
    assert [read_module(m).platforms for m in y.op.attrs["modules"]] == [("cpu", "cuda", "tpu")] * 3
    with tf.device("/cpu:0"):
        z = penstock.from_jax(lambda x: jax.scipy.linalg.schur(x)[0])(x)
    assert read_module(z.op.attrs["modules"][0]).platforms == ("cpu",)
    assert_close(run([y, z]), [np.eye(3), np.eye(3)])


def test_equal_functions_share_their_modules() -> None:
    def made() -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            return jnp.sin(x)

        return f

    first, second = (penstock.from_jax(made())(tf.constant(1.0)).op.attrs["modules"] for _ in range(2))
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert read_module(first[0]) is read_module(
        first[0].encode("utf-8", "surrogateescape").decode(errors="surrogateescape")
    )


def test_a_function_is_traced_once_for_equal_shapes() -> None:
    traced = []
    call = penstock.from_jax(lambda x: traced.append(x.shape) or x * 2)
    for shape in ([2], [2], [3], [2]):
        call(tf.ones(shape))
    assert traced == [(2,), (3,)]


def test_graph_def_and_back() -> None:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    y = penstock.from_jax(mlp)(constants(PARAMS), x)
    sent = y.graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default():
        (imported,) = tf.import_graph_def(tf.GraphDef.FromString(sent), return_elements=["mlp:0"], name="")
        x = imported.graph.get_tensor_by_name("x:0")
        assert imported.shape.as_list() == [None, 3]
        gradient = tf.gradients(tf.gradients(tf.reduce_sum(tf.square(imported)), x), x)[0]
        found = run([imported, gradient], {x: X})
        # An unknown size that is known to the importer is known after the node.
        (known,) = tf.import_graph_def(
            tf.GraphDef.FromString(sent), {"x": tf.constant(X)}, return_elements=["mlp:0"], name="known"
        )
        assert known.shape.as_list() == [6, 3]
        with pytest.raises(ValueError, match=r"input 4 must have shape \(\?, 4\) for 'bad/mlp' \(op: 'JaxCall'\)"):
            tf.import_graph_def(tf.GraphDef.FromString(sent), {"x": tf.constant(X.T)}, name="bad")

    with jax.enable_x64(False):
        slope = jax.grad(lambda x: (mlp(PARAMS, x) ** 2).sum())
        assert_close(found, [mlp(PARAMS, X), jax.grad(lambda x: slope(x).sum())(X)])


def test_in_loops_and_branches() -> None:
    grow = penstock.from_jax(lambda x: jnp.sinh(x))
    x = tf.constant(0.5)
    looped = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, grow(v)), [0, x])[1]
    chosen = tf.cond(x > 0, lambda: grow(x), lambda: x)
    found = run([looped, chosen, *tf.gradients(looped, x), *tf.gradients(chosen, x)])
    thrice = lambda x: jnp.sinh(jnp.sinh(jnp.sinh(x)))  # noqa: E731
    assert_close(found, [thrice(0.5), np.sinh(0.5), jax.grad(thrice)(0.5), np.cosh(0.5)])


# What comes from elsewhere is checked


def exported(function: Callable[..., Any], *forms: Any, **options: Any) -> Any:
    return export.export(jax.jit(function), platforms=["cpu"], **options)(*forms)


def forged() -> dict[str, tuple[Any, str]]:
    """Modules that a peer might send, and what is said of each."""
    scalar, vector = FORM((), np.float32), FORM((2,), np.float32)
    good = exported(lambda x: (x * 2,), scalar)
    callback = "xla_ffi_python_cpu_callback"
    dangerous = exported(
        lambda x: (jax.ffi.ffi_call(callback, scalar)(x, index=np.uint64(0)),),
        scalar,
        disabled_checks=[export.DisabledSafetyCheck.custom_call(callback)],
    )
    replaced = functools.partial(dataclasses.replace, good)
    return {
        "junk": (b"\x00\xff junk", "none that jax.export wrote"),
        "empty": (b"", "none that jax.export wrote"),
        "cut": (good.serialize()[:-200], "none that jax.export wrote"),
        "no code": (replaced(mlir_module_serialized=b"code").serialize(), "none that jax.export wrote"),
        "old": (replaced(calling_convention_version=3).serialize(), "calling convention 3"),
        "callback": (dangerous.serialize(), f"custom calls without guarantees of jax.export: {callback}"),
        "other code": (
            replaced(mlir_module_serialized=exported(lambda x: (x,), vector).mlir_module_serialized).serialize(),
            "declares",
        ),
        "devices": (replaced(nr_devices=2).serialize(), "for 2 devices"),
        "tree": (exported(lambda x: {"x": x}, scalar).serialize(), "tuples of arrays"),
        "types": (exported(lambda x: (x,), FORM((), np.int32)).serialize(), r"takes \['int32'\], but the node says"),
        "counts": (exported(lambda x: (x, x), scalar).serialize(), "returns"),
    }


@pytest.mark.parametrize("kind", list(forged()))
def test_modules_that_are_not_right(kind: str) -> None:
    module, message = forged()[kind]
    text = as_text(module)
    x = tf.placeholder(tf.float32, [])
    with tf.name_scope("built"), pytest.raises(ValueError, match=rf"{message}.* for 'built/sent' \(op: 'JaxCall'\)"):
        jax_call([x], modules=[text], Tout=[tf.float32], name="sent")
    y = penstock.from_jax(lambda x: x * 2, name="sent")(x)
    y.op.attrs["modules"] = (text,)  # as a partition from a peer, whose shapes nobody infers
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"JaxCall 'sent'.*{message}"):
        run(y, {x: 1.0})


def test_a_module_for_another_platform() -> None:
    y = penstock.from_jax(lambda x: x * 2, name="sent")(tf.placeholder_with_default(1.0, []))
    elsewhere = export.export(jax.jit(lambda x: (x * 2,)), platforms=["tpu"])(FORM((), np.float32))
    y.op.attrs["modules"] = (as_text(elsewhere.serialize()),)
    with pytest.raises(tf.errors.InvalidArgumentError, match="was exported for tpu, and this device is a"):
        run(y)


# Over tasks


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A parameter server and a worker, each a process that does nothing by itself."""
    with leak_check(), Cluster(tmp_path_factory.mktemp("servers"), workers=1) as cluster:
        cluster.start("ps0", "worker0", mode="join")
        for name in ("ps0", "worker0"):
            cluster[name].wait_for("serves")
        yield cluster


def trained(target: str, variables_on: str, model_on: str) -> tuple[float, Any]:
    """The loss and the parameters after some steps of a model of JAX whose parameters are variables."""
    with tf.Graph().as_default():
        x, labels = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
        with tf.device(variables_on):
            params = jax.tree.map_with_path(
                lambda path, v: tf.get_variable("_".join(k.key for k in path), initializer=v), PARAMS
            )
        with tf.device(model_on):
            logits = penstock.from_jax(mlp)(params, x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            train = tf.train.AdamOptimizer(0.05).minimize(loss)
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(20):
                session.run(train, {x: X, labels: [0, 1, 2, 0, 1, 2]})
            return session.run([loss, params], {x: X, labels: [0, 1, 2, 0, 1, 2]})


def test_a_model_trains_on_another_task(servers: Cluster) -> None:
    loss, params = trained(servers.target("worker0"), "/job:ps/task:0", "/job:worker/task:0")
    expected_loss, expected_params = trained("", "", "")
    assert loss < 0.5
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), params, expected_params)


def test_another_task_names_the_node_of_a_bad_module(servers: Cluster) -> None:
    with tf.device("/job:ps/task:0"):
        y = penstock.from_jax(lambda x: x * 2, name="sent")(tf.placeholder_with_default(1.0, []))
    y.op.attrs["modules"] = (as_text(b"\xff\x00 junk"),)
    with (
        tf.Session(servers.target("worker0")) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"JaxCall 'sent'.*none that jax.export wrote"),
    ):
        session.run(y)
