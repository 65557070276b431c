"""tf.test: a TestCase that runs graphs and compares arrays, and functions that describe the machine."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import unittest
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import text_format

from penstock import app
from penstock.autodiff import gradients
from penstock.client.device_lib import list_local_devices
from penstock.errors import OpError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.operation import Operation
from penstock.graph.sessions import get_default_session
from penstock.graph.typing import TensorLike
from penstock.session import Session


def gpu_device_name() -> str:
    """The first GPU, '/device:GPU:0', or '' without one.

    >>> with tf.device(tf.test.gpu_device_name()): ...
    """
    found = [device for device in list_local_devices() if device.device_type == "GPU"]
    return f"/device:GPU:{found[0].name.rpartition(':')[2]}" if found else ""


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Tells if a GPU can be used.

    >>> data_format = "NCHW" if tf.test.is_gpu_available() else "NHWC"
    """
    return bool(gpu_device_name())


def is_built_with_cuda() -> bool:
    """Tells if CUDA devices can be used, which depends on the installed jax."""
    return is_gpu_available()


def get_temp_dir() -> str:
    """A directory for the files of tests."""
    return os.environ.get("TEST_TMPDIR") or tempfile.gettempdir()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the tests of the program's main module: `if __name__ == "__main__": tf.test.main()`."""
    app.run(lambda args: unittest.main(argv=list(args)), argv)


def assert_equal_graph_def(actual: Any, expected: Any, checkpoint_v2: bool = False) -> None:
    """Raises AssertionError unless two GraphDefs have the same nodes, in any order."""
    ours, theirs = ({node.name: node for node in graph.node} for graph in (actual, expected))
    if ours.keys() != theirs.keys():
        missing, extra = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
        raise AssertionError(f"The graphs have other nodes: missing {missing}, more than expected {extra}.")
    for name, node in ours.items():
        if node != theirs[name]:
            raise AssertionError(f"Node '{name}' differs:\n{node}\nexpected:\n{theirs[name]}")


def compute_gradient(
    x: TensorLike,
    x_shape: Any,
    y: TensorLike,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Any:
    """The Jacobian of `y` by `x`, by `tf.gradients` and by finite differences, for each x if there are several.

    Runs in the default session.
    """
    session = _session()
    if init_targets is not None:
        session.run(init_targets)
    xs, shapes, values = (x, x_shape, x_init_value) if isinstance(x, list) else ([x], [x_shape], [x_init_value])
    feeds = dict(extra_feed_dict or {})
    start = [
        np.random.uniform(size=tuple(shape)) if values is None or values[i] is None else np.array(values[i])
        for i, shape in enumerate(shapes)
    ]
    start = [np.asarray(value, each.dtype.as_numpy_dtype) for value, each in zip(start, xs, strict=True)]
    feeds.update(zip(xs, start, strict=True))
    size = int(np.prod(tuple(y_shape), dtype=np.int64))
    seed = convert_to_tensor(np.zeros(tuple(y_shape), y.dtype.as_numpy_dtype))
    slopes = gradients(y, xs, grad_ys=seed)
    results = []
    for each, value, slope in zip(xs, start, slopes, strict=True):
        exact = np.zeros((value.size, size), value.dtype)
        for column in range(size if slope is not None else 0):
            unit = np.zeros(size, seed.dtype.as_numpy_dtype)
            unit[column] = 1
            exact[:, column] = np.ravel(session.run(convert_to_tensor(slope), {**feeds, seed: unit.reshape(y_shape)}))
        differences = np.zeros_like(exact)
        for row in range(value.size):
            sides = []
            for sign in (1, -1):
                moved = value.copy().reshape(-1)
                moved[row] += sign * delta
                sides.append(np.ravel(session.run(y, {**feeds, each: moved.reshape(value.shape)})))
            differences[row] = (sides[0] - sides[1]) / (2 * delta)
        results.append((exact, differences))
    return results if isinstance(x, list) else results[0]


def compute_gradient_error(
    x: TensorLike,
    x_shape: Any,
    y: TensorLike,
    y_shape: Any,
    x_init_value: Any = None,
    delta: float = 1e-3,
    init_targets: Any = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> float:
    """The largest difference between the two Jacobians of `compute_gradient`."""
    found = compute_gradient(x, x_shape, y, y_shape, x_init_value, delta, init_targets, extra_feed_dict)
    pairs = found if isinstance(found, list) else [found]
    return float(max(np.max(np.abs(exact - differences), initial=0.0) for exact, differences in pairs))


def _session() -> Any:
    session = get_default_session()
    if session is None:
        raise ValueError("There is no default session. Put the call into `with tf.Session():`.")
    return session


class TestCase(unittest.TestCase):
    """A unittest.TestCase in which each test starts with an empty default graph.

    >>> class AddTest(tf.test.TestCase):
    ...     def testAdd(self):
    ...         with self.test_session():
    ...             self.assertAllEqual(tf.add([1], 2), [3])
    """

    __test__ = False  # not a test for pytest, but subclasses are

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in vars(cls):
            cls.__test__ = True

    def setUp(self) -> None:
        super().setUp()
        self._kept: tuple[Graph, Session] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        graph = Graph().as_default()
        graph.__enter__()
        self.addCleanup(graph.__exit__, None, None, None)

    def tearDown(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
        if self._folder is not None:
            self._folder.cleanup()
        super().tearDown()

    def get_temp_dir(self) -> str:
        """A directory for this test alone, removed after it."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(dir=get_temp_dir())
        return self._folder.name

    @contextlib.contextmanager
    def session(
        self, graph: Graph | None = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """A new session as the default one."""
        with Session(graph=graph or get_default_graph(), config=config) as session:
            yield session

    @contextlib.contextmanager
    def cached_session(
        self, graph: Graph | None = None, config: Any = None, use_gpu: bool = False, force_gpu: bool = False
    ) -> Iterator[Session]:
        """The same session each time within a test, so that variables keep their values."""
        graph = graph or get_default_graph()
        if self._kept is None or self._kept[0] is not graph:
            if self._kept is not None:
                self._kept[1].close()
            self._kept = graph, Session(graph=graph, config=config)
        with graph.as_default(), self._kept[1].as_default():
            yield self._kept[1]

    def test_session(self, *args: Any, **kwargs: Any) -> Any:
        """Same as `cached_session`; most tests use this name."""
        if self.id().endswith(".test_session"):
            self.skipTest("Its name makes it look like a test.")
        return self.cached_session(*args, **kwargs)

    def evaluate(self, tensors: Any) -> Any:
        """The values of `tensors` in the default session."""
        return _session().run(tensors)

    def _array(self, value: Any) -> np.ndarray:
        return np.asarray(value if isinstance(value, np.ndarray) else self._plain(value))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._plain(each) for each in value]
        return self.evaluate(value) if hasattr(value, "graph") else value

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Fails unless shapes and all elements are the same."""
        left, right = self._array(a), self._array(b)
        if "O" in (left.dtype.kind, right.dtype.kind) or "U" in (left.dtype.kind, right.dtype.kind):
            left, right = (np.vectorize(_as_bytes, otypes=[object])(each) for each in (left, right))
        np.testing.assert_array_equal(left, right, err_msg=msg or "", strict=False)
        self.assertEqual(left.shape, right.shape, msg)

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None) -> None:
        """Fails unless all elements are close; lists, tuples and dicts are compared part by part."""
        if isinstance(a, Mapping):
            self.assertEqual(set(a), set(b), msg)
            for key in a:
                self.assertAllClose(a[key], b[key], rtol, atol, msg)
            return
        try:
            left, right = self._array(a), self._array(b)
        except ValueError:  # a list of arrays of different shapes
            for one, other in zip(a, b, strict=True):
                self.assertAllClose(one, other, rtol, atol, msg)
            return
        if "e" in (left.dtype.char, right.dtype.char):
            rtol, atol = max(rtol, 1e-3), max(atol, 1e-3)
        self.assertEqual(left.shape, right.shape, msg)
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol, err_msg=msg or "")

    def assertNear(self, f1: Any, f2: Any, err: float, msg: str | None = None) -> None:
        """Fails unless |f1 - f2| <= err."""
        self.assertLessEqual(abs(f1 - f2), err, msg)

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: str | None = None) -> None:
        """Fails unless all pairs of elements are within `err`."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for one, other in zip(farray1, farray2, strict=True):
            self.assertNear(float(one), float(other), err, msg)

    def assertShapeEqual(self, np_array: np.ndarray, tf_tensor: Any, msg: str | None = None) -> None:
        """Fails unless the array has the static shape of the tensor."""
        self.assertEqual(list(np_array.shape), tf_tensor.get_shape().as_list(), msg)

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """Fails unless the array or tensor has the type."""
        found = target.dtype if hasattr(target, "dtype") else np.asarray(target).dtype
        self.assertEqual(as_dtype(found).base_dtype, as_dtype(expected_dtype))

    def assertProtoEquals(self, expected_message_maybe_ascii: Any, message: Any, msg: str | None = None) -> None:
        """Fails unless the messages are equal; the expected one may be given as text."""
        expected = expected_message_maybe_ascii
        if isinstance(expected, str):
            expected = text_format.Parse(expected, type(message)())
        self.assertEqual(expected, message, msg)

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """Fails unless `actual` begins with `expected_start`."""
        self.assertTrue(actual.startswith(expected_start), msg or f"{actual!r} does not start with {expected_start!r}")

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(self, exception_type: Any, expected_err_re_or_predicate: Any) -> Iterator[None]:
        """Fails unless the block raises an error of this type that matches a pattern, or a function of it."""
        wanted = expected_err_re_or_predicate
        with self.assertRaises(exception_type) as caught:
            yield
        error = caught.exception
        if callable(wanted):
            matches = wanted(error)
        else:
            text = error.message if isinstance(error, OpError) else str(error)
            if isinstance(error, OpError) and isinstance(error.op, Operation):
                text += f"\nCaused by op: {error.op.name}"
            matches = re.search(wanted, text)
        self.assertTrue(matches, f"The error does not match {wanted!r}: {error}")

    def assertRaisesOpError(self, expected_err_re_or_predicate: Any) -> Any:
        """Like assertRaisesWithPredicateMatch, for any OpError."""
        return self.assertRaisesWithPredicateMatch(OpError, expected_err_re_or_predicate)


def _as_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
