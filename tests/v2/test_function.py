"""tf.function: traces, arguments, variables, effects, errors, lifetimes."""

from __future__ import annotations

import collections
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock import logging
from penstock.eager.runtime import runtime


def test_signatures_of_tuples_lists_and_dicts() -> None:
    spec = tf.TensorSpec([None], tf.float32)

    @tf.function(input_signature=[{"a": spec, "b": (spec, [spec])}])
    def total(s: Any) -> Any:
        return tf.reduce_sum(s["a"]) + tf.reduce_sum(s["b"][0]) + tf.reduce_sum(s["b"][1][0])

    assert float(total({"a": [1.0], "b": ([2.0, 3.0], [tf.ones([4])])})) == 10.0
    assert float(total({"a": tf.ones([7]), "b": ([2.0], [[1.0]])})) == 10.0
    assert total.experimental_get_tracing_count() == 1
    with pytest.raises(TypeError, match="does not fit"):
        total({"a": [1.0], "c": ([2.0], [[1.0]])})
    with pytest.raises(TypeError, match="does not fit"):
        total({"a": [[1.0]], "b": ([2.0], [[1.0]])})


def test_a_general_trace_serves_special_calls() -> None:
    traced = []

    @tf.function
    def double(x: Any) -> Any:
        traced.append(x.shape.as_list())
        return x * 2.0

    double.get_concrete_function(tf.TensorSpec([None, 2], tf.float32))
    double(tf.ones([3, 2]))
    double(tf.ones([4, 2]))
    double(tf.ones([3]))
    assert traced == [[None, 2], [3]]


def test_relaxed_shapes_keep_what_agrees() -> None:
    traced = []

    @tf.function(reduce_retracing=True)
    def rows(x: Any, y: Any) -> Any:
        traced.append((x.shape.as_list(), y.shape.as_list()))
        return tf.shape(x)[0] + tf.shape(y)[0]

    for n in (1, 2, 5):
        assert int(rows(tf.ones([n, 3]), tf.ones([4]))) == n + 4
    assert traced == [([1, 3], [4]), ([None, 3], [4])]


def test_many_traces_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text))
    same = tf.function(lambda x, n: x + n)
    for n in range(4):
        same(tf.constant(1), n)
    assert not told
    same(tf.constant(1), 4)
    assert len(told) == 1 and "5 out of the last 5 calls" in told[0] and "retracing" in told[0]
    for n in range(5, 20):
        same(tf.constant(1), n)
    assert len(told) == 2
    fresh = tf.function(lambda x, n: x + n)
    for n in range(20):
        for _ in range(4):
            fresh(tf.constant(1), n)
    assert len(told) == 2


def test_variables_as_arguments_share_a_trace() -> None:
    held = tf.Variable(10.0)
    traced = []

    @tf.function
    def update(v: Any, x: Any) -> Any:
        traced.append(1)
        v.assign_add(x)
        return v + held

    first, second = tf.Variable(1.0), tf.Variable(2.0)
    assert [float(update(v, tf.constant(1.0))) for v in (first, second, held, first)] == [12.0, 13.0, 22.0, 14.0]
    assert [float(v) for v in (first, second, held)] == [3.0, 3.0, 11.0]
    assert len(traced) == 1
    with tf.GradientTape() as tape:
        y = update(second, tf.constant(0.0)) * 5.0
    assert float(tape.gradient(y, second)) == 5.0


def test_arguments_that_are_one_variable_are_traced_apart() -> None:
    traced = []

    @tf.function
    def both(a: Any, b: Any) -> Any:
        traced.append(1)
        a.assign_add(1.0)
        b.assign_add(1.0)
        return a + b

    x, y = tf.Variable(0.0), tf.Variable(0.0)
    assert float(both(x, y)) == 2.0
    assert float(both(x, x)) == 6.0
    assert len(traced) == 2


def test_initial_values_may_depend_on_arguments() -> None:
    made: list[Any] = []

    @tf.function
    def scaled(x: Any) -> Any:
        if not made:
            made.append(tf.Variable(tf.reduce_mean(x) * 2.0))
            made.append(tf.Variable(lambda: tf.ones([2])))
        return x * made[0]

    assert scaled(tf.constant([1.0, 3.0])).numpy().tolist() == [4.0, 12.0]
    assert float(made[0]) == 4.0 and made[1].numpy().tolist() == [1.0, 1.0]
    made.clear()
    with pytest.raises(ValueError, match="no value"):
        tf.function(scaled.python_function).get_concrete_function(tf.TensorSpec([2], tf.float32))


def test_functions_in_functions_capture_symbolic_tensors() -> None:
    @tf.function
    def outer(x: Any) -> Any:
        y = x * 2.0
        inner = tf.function(lambda z: z + y)
        return inner(x) + inner(y)

    assert float(outer(tf.constant(1.0))) == 7.0
    assert float(outer(tf.constant(2.0))) == 14.0
    traced = []

    @tf.function
    def shared(x: Any) -> Any:
        traced.append(1)
        return x + 1.0

    assert float(tf.function(lambda x: shared(x) * 2.0)(tf.constant(1.0))) == 4.0
    assert float(shared(tf.constant(1.0))) == 2.0
    assert len(traced) == 1


def test_results_of_every_kind() -> None:
    Pair = collections.namedtuple("Pair", "a b")

    @tf.function
    def many(x: Any) -> Any:
        array = tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * 2.0)
        return {"t": Pair(x, None), "s": tf.IndexedSlices(x[None], tf.constant([3])), "l": [x, (x,)], "a": array}

    found = many(tf.constant(1.5))
    assert isinstance(found["t"], Pair) and found["t"].b is None and float(found["t"].a) == 1.5
    assert isinstance(found["s"], tf.IndexedSlices) and found["s"].indices.numpy().tolist() == [3]
    assert isinstance(found["l"][1], tuple)
    assert found["a"].stack().numpy().tolist() == [1.5, 3.0]


def test_structured_signature_and_its_text() -> None:
    f = tf.function(lambda x, y=2, *, k=1.0: {"a": x * y})
    concrete = f.get_concrete_function(tf.TensorSpec([None], tf.int32))
    assert concrete.structured_input_signature == ((tf.TensorSpec([None], tf.int32, "x"), 2), {"k": 1.0})
    text = concrete.pretty_printed_signature()
    assert "x (POSITIONAL_OR_KEYWORD): TensorSpec(shape=(None,), dtype=tf.int32" in text
    assert "k (KEYWORD_ONLY): Literal[1.0]" in text
    assert text == f.pretty_printed_concrete_signatures()
    assert concrete.output_shapes["a"].as_list() == [None]


def test_nested_placeholders_have_names() -> None:
    f = tf.function(lambda s, *args: s["a"] + args[0])
    concrete = f.get_concrete_function({"a": tf.constant(1.0), "b": [tf.constant(2.0)]}, tf.constant(1.0))
    args, _ = concrete.structured_input_signature
    assert (args[0]["a"].name, args[0]["b"][0].name, args[1].name) == ("s_a", "s_b_0", "args_0")


def test_an_error_names_the_line() -> None:
    @tf.function
    def pick(x: Any, i: Any) -> Any:
        return tf.gather(x, i)  # here

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"return tf.gather\(x, i\)  # here"):
        pick(tf.constant([1, 2]), tf.constant(5))
    assert pick(tf.constant([1, 2]), tf.constant(1)).numpy() == 2


def test_effects_happen_though_the_result_does_not_need_them() -> None:
    v = tf.Variable(0)

    @tf.function
    def count(n: Any) -> Any:
        for i in tf.range(n):
            if i % 2 == 0:
                v.assign_add(i)
        tf.cond(v > 100, lambda: v.assign(0), lambda: v.assign_add(1))

    assert count(tf.constant(5)) is None
    assert int(v) == 7


def test_device_scopes_reach_into_functions() -> None:
    seen = []

    @tf.function
    def where(x: Any) -> Any:
        y = x + 1.0
        seen.append(y.op.device)
        return y

    with tf.device("CPU:0"):
        where(tf.constant(1.0))
    assert "CPU:0" in seen[0].upper()


def test_threads_share_a_function() -> None:
    v = tf.Variable(0)
    traced = []

    @tf.function
    def add(x: Any) -> Any:
        traced.append(1)
        return v.assign_add(x)

    errors: list[BaseException] = []
    gate = threading.Barrier(4)

    def work() -> None:
        try:
            gate.wait(60)
            for _ in range(50):
                add(tf.constant(1))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and int(v) == 200 and len(traced) == 1


def collected(reference: Callable[[], Any]) -> bool:
    gc.collect()
    return reference() is None


def test_functions_and_variables_free_their_memory() -> None:
    def run() -> tuple[Any, ...]:
        v = tf.Variable(np.ones(1000, np.float32))
        f = tf.function(lambda x: v * x)
        with tf.GradientTape() as tape:
            y = f(tf.constant(2.0)) + v
        tape.gradient(y, v)
        v.assign_add(v)
        f.get_concrete_function(tf.TensorSpec([], tf.float32))
        return weakref.ref(v), weakref.ref(f), weakref.ref(f.get_concrete_function(tf.constant(1.0)).graph)

    run()
    gc.collect()
    runtime.free()
    before = len(runtime.worker.devices[0].resources.items()), len(runtime.worker._graphs)
    references = run()
    assert all(collected(reference) for reference in references)
    runtime.free()
    # Things of other tests may be freed meanwhile.
    after = len(runtime.worker.devices[0].resources.items()), len(runtime.worker._graphs)
    assert after[0] <= before[0] and after[1] <= before[1]


def test_methods_do_not_keep_their_objects() -> None:
    class Model:
        def __init__(self) -> None:
            self.v = tf.Variable(1.0)

        @tf.function
        def call(self, x: Any) -> Any:
            return self.v * x

    model = Model()
    assert float(model.call(tf.constant(3.0))) == 3.0
    method = model.call
    reference = weakref.ref(model)
    del model
    assert collected(reference)
    with pytest.raises(ReferenceError, match="gone"):
        method(tf.constant([1.0]))


def test_functions_run_eagerly_on_request() -> None:
    seen = []
    f = tf.function(lambda x: seen.append(tf.executing_eagerly()) or x + 1)
    tf.config.run_functions_eagerly(True)
    try:
        assert int(f(tf.constant(1))) == 2 and tf.config.functions_run_eagerly()
    finally:
        tf.config.run_functions_eagerly(False)
    f(tf.constant(1))
    assert seen == [True, False]


def test_a_function_runs_in_a_graph_of_a_session() -> None:
    f = tf.function(lambda x: x * 2.0)
    with tf.compat.v1.Graph().as_default():
        y = f(tf.constant(3.0))
        with tf.compat.v1.Session() as session:
            assert session.run(y) == 6.0


def test_sparse_arguments() -> None:
    traced = []

    @tf.function(input_signature=[tf.SparseTensorSpec([None, 3], tf.float32)])
    def total(s: Any) -> Any:
        traced.append(1)
        return tf.sparse.reduce_sum(s)

    assert float(total(tf.SparseTensor([[0, 1]], [2.0], [2, 3]))) == 2.0
    assert float(total(tf.SparseTensor([[0, 1], [4, 2]], [2.0, 3.0], [5, 3]))) == 5.0
    assert len(traced) == 1


def test_control_dependencies_around_a_call_in_a_function() -> None:
    v = tf.Variable(0)
    inner = tf.function(lambda: v.read_value())

    @tf.function
    def outer() -> Any:
        with tf.control_dependencies([v.assign(3)]):
            return inner()

    assert int(outer()) == 3


def test_calls_of_a_known_form_take_structures_and_arrays() -> None:
    @tf.function
    def weighted(pair: Any, scale: Any, names: Any = None) -> Any:
        return pair["a"] * scale + pair["b"][0]

    one, two = np.float32([1, 2]), np.float32([10, 20])
    for count in (1, 2, 3):
        found = weighted({"b": [two * count], "a": one}, tf.constant(2.0))
        np.testing.assert_allclose(found, 2 * one + two * count)
    np.testing.assert_allclose(weighted({"a": one, "b": [two]}, tf.constant(3.0)), 3 * one + two)
    np.testing.assert_allclose(weighted({"a": tf.constant(one), "b": [two]}, tf.constant(2.0)), 2 * one + two)
    assert weighted.experimental_get_tracing_count() == 1
    # Another structure, type, shape or Python value is another trace.
    for pair, scale in (
        ({"a": one, "b": (two,)}, tf.constant(2.0)),
        ({"a": one.astype("f8"), "b": [two.astype("f8")]}, tf.constant(2.0, tf.float64)),
        ({"a": one[:1], "b": [two[:1]]}, tf.constant(2.0)),
        ({"a": one, "b": [two]}, 2),
    ):
        for _ in range(2):
            found = weighted(pair, scale)
            np.testing.assert_allclose(found, 2 * pair["a"] + pair["b"][0])
            assert found.dtype.as_numpy_dtype == pair["a"].dtype
    assert weighted.experimental_get_tracing_count() == 5
    np.testing.assert_allclose(weighted({"a": one, "b": [two]}, 3), 3 * one + two)
    assert weighted.experimental_get_tracing_count() == 6


def test_none_is_the_same_argument_in_each_call() -> None:
    double = tf.function(lambda x, mask=None: x * 2 if mask is None else x * mask)
    for given in (tf.constant(1.0), [1.0], np.float32(1.0)):
        double(given)
        before = double.experimental_get_tracing_count()
        double(given)
        double(given, None)
        double(given, mask=None)
        assert double.experimental_get_tracing_count() == before


def test_results_do_not_change_with_the_arrays_that_were_given() -> None:
    same = tf.function(lambda x: (x, tf.reshape(x, [2, 2])))
    for _ in range(3):
        given = np.float32([1, 2, 3, 4])
        found = same(given)
        given[:] = 0
        np.testing.assert_array_equal(found[0], [1, 2, 3, 4])
        np.testing.assert_array_equal(found[1], [[1, 2], [3, 4]])


def test_tapes_see_calls_of_a_known_form() -> None:
    v = tf.Variable([1.0, 2.0])
    loss = tf.function(lambda x: tf.reduce_sum(v * x))
    for count in (1.0, 2.0, 3.0):
        given = np.float32([count, count])
        with tf.GradientTape() as tape:
            value = loss(given)
        np.testing.assert_array_equal(tape.gradient(value, v), given)


def test_a_signature_casts_arrays_in_each_call() -> None:
    half = tf.function(lambda x: x / 2, input_signature=[tf.TensorSpec([None], tf.float32)])
    for _ in range(2):
        assert half(np.array([1.0, 3.0])).dtype is tf.float32


def test_a_tensor_may_be_used_in_many_calls() -> None:
    x, y = tf.constant(np.arange(512.0, dtype="f")), tf.Variable(tf.zeros([512]))

    @tf.function
    def step(x: Any) -> Any:
        for _ in range(40):  # too many nodes for NumPy
            y.assign_add(x)
        return tf.reduce_sum(y)

    total = float(np.arange(512.0).sum())
    assert [float(step(x)) for _ in range(3)] == pytest.approx([40 * total, 80 * total, 120 * total])
