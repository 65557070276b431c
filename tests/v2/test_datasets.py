"""Datasets with eager execution: iterators, functions that use them, and datasets that are made again elsewhere."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.data import nodes
from penstock.data.position import after
from penstock.data.specs import decoded
from penstock.eager.datasets import deserialized, serialized
from penstock.eager.iterators import placed_iterator
from penstock.eager.runtime import runtime
from penstock.kernel.waiting import from_handle

D = tf.data.Dataset


def values(dataset: Any) -> list[Any]:
    return [np.asarray(e).tolist() for e in dataset.as_numpy_iterator()]


# Iterating


def test_a_map_reads_the_current_value_of_a_variable() -> None:
    v = tf.Variable(1, dtype=tf.int64)
    dataset = D.range(3).map(lambda x: x + v)
    it = iter(dataset)
    assert int(next(it)) == 1
    v.assign(10)
    assert [int(x) for x in it] == [11, 12] and values(dataset) == [10, 11, 12]


def test_a_map_takes_tensors_from_outside() -> None:
    w = tf.constant([10, 20, 30], tf.int64)
    assert values(D.range(3).map(lambda i: tf.gather(w, i), num_parallel_calls=2)) == [10, 20, 30]


def test_the_functions_of_a_dataset_are_compiled_once() -> None:
    dataset = D.range(2).map(lambda x: x * 2)
    list(dataset)
    (function,) = [n.function.function for n in [from_handle(dataset._variant_tensor._value)]]
    kept = {key: body for key, body in function.derived.items() if key[0] == "callable"}
    list(dataset)
    list(dataset.batch(2))
    assert kept and {k: b for k, b in function.derived.items() if k[0] == "callable"} == kept


def test_an_iterator_that_nobody_uses_stops_its_threads_and_is_freed() -> None:
    gc.collect()
    runtime.free()
    resources = runtime.worker.devices[0].resources
    before = {key for key, _ in resources.items()}
    it = iter(D.range(10**9).map(lambda x: x + 1, num_parallel_calls=2).prefetch(2))
    next(it)
    assert any(t.name == "penstock-data" for t in threading.enumerate())
    del it
    gc.collect()
    runtime.free()
    late = time.monotonic() + 60
    while any(t.name == "penstock-data" for t in threading.enumerate()) and time.monotonic() < late:
        time.sleep(0.01)
    assert not any(t.name == "penstock-data" for t in threading.enumerate())
    assert {key for key, _ in resources.items()} <= before


def test_rows_of_sparse_tensors() -> None:
    sparse = tf.sparse.from_dense([[0, 4], [5, 0], [0, 0]])
    dataset = D.from_tensor_slices({"s": sparse, "i": [1, 2, 3]})
    found = [(tf.sparse.to_dense(e["s"]).numpy().tolist(), int(e["i"])) for e in dataset]
    assert found == [([0, 4], 1), ([5, 0], 2), ([0, 0], 3)]
    (batch,) = D.from_tensor_slices(sparse).batch(3)
    assert tf.sparse.to_dense(batch).numpy().tolist() == [[0, 4], [5, 0], [0, 0]]


def test_sparse_batches() -> None:
    (batch,) = D.range(1, 3).map(lambda x: tf.fill([x], x)).sparse_batch(2, [3])
    assert tf.sparse.to_dense(batch).numpy().tolist() == [[1, 0, 0], [2, 2, 0]]


@pytest.mark.parametrize(("size", "shift", "stride", "drop"), [(3, None, 1, False), (3, 1, 2, True), (2, 5, 1, False)])
def test_the_number_of_windows(size: int, shift: int | None, stride: int, drop: bool) -> None:
    for count in range(12):
        windows = D.range(count).window(size, shift, stride, drop)
        assert len(windows) == len(list(windows)), count


def test_rejection_resampling_balances_classes() -> None:
    labels = np.repeat([0, 1], [900, 100]).astype(np.int32)
    np.random.default_rng(0).shuffle(labels)
    found = [int(c) for c, _ in D.from_tensor_slices(labels).rejection_resample(lambda x: x, [0.5, 0.5], seed=3)]
    assert 0.3 < np.mean(found) < 0.7


def test_ragged_tensors_as_components() -> None:
    words = tf.ragged.constant([[[1], []], [], [[2, 3], [4], [5, 6, 7]]])
    assert words.ragged_rank == 2 and words.shape.as_list() == [3, None, None]
    dataset = D.from_tensor_slices({"w": words, "n": [1, 2, 3]})
    assert [(e["w"].to_list(), int(e["n"])) for e in dataset] == [
        ([[1], []], 1),
        ([], 2),
        ([[2, 3], [4], [5, 6, 7]], 3),
    ]
    (batch,) = dataset.batch(3)
    assert batch["w"].to_list() == words.to_list()
    counted = dataset.map(lambda e: tf.reduce_sum(e["w"].flat_values) + e["n"])
    assert values(counted) == [2, 2, 30]


def test_ragged_tensors_of_datasets_as_data() -> None:
    dataset = D.from_tensor_slices({"w": tf.ragged.constant([[[1], []], [], [[2, 3], [4], [5, 6, 7]]])}).batch(2)
    again = deserialized(serialized(dataset))
    assert again.element_spec == dataset.element_spec
    assert [e["w"].to_list() for e in again] == [[[[1], []], []], [[[2, 3], [4], [5, 6, 7]]]]


def test_ragged_batches_as_dense_tensors() -> None:
    rows = D.range(1, 4).map(lambda x: (tf.fill([x], x), x))
    (batch, numbers), *_ = rows.ragged_batch(3)
    assert numbers.numpy().tolist() == [1, 2, 3] and batch.row_lengths().numpy().tolist() == [1, 2, 3]
    assert batch.to_tensor(-1).numpy().tolist() == [[1, -1, -1], [2, 2, -1], [3, 3, 3]]
    assert batch.to_tensor(shape=[None, 2]).numpy().tolist() == [[1, 0], [2, 2], [3, 3]]

    @tf.function
    def padded(ragged: tf.RaggedTensor) -> Any:
        return ragged.to_tensor(), ragged

    dense, same = padded(batch)
    assert dense.numpy().tolist() == [[1, 0, 0], [2, 2, 0], [3, 3, 3]] and same.to_list() == batch.to_list()
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        tf.RaggedTensor.from_row_splits([1, 2], [0, 3])


# Functions


def test_functions_take_elements_of_an_iterator() -> None:
    it = iter(D.range(5).map(lambda x: x * 3))

    @tf.function
    def of_outside() -> Any:
        return next(it)

    @tf.function
    def of_argument(iterator: Any) -> Any:
        first = iterator.get_next()
        return first, iterator.get_next()

    assert int(of_outside()) == 0 and int(next(it)) == 3
    assert [int(x) for x in of_argument(it)] == [6, 9]
    assert int(of_outside()) == 12
    with pytest.raises(tf.errors.OutOfRangeError):
        of_outside()


def test_an_iterator_is_in_this_process_whatever_the_device() -> None:
    with tf.device("/job:worker/task:3/device:CPU:0"):
        it = iter(D.range(2))
    assert [int(x) for x in it] == [0, 1]


def test_a_function_makes_an_iterator_of_its_own() -> None:
    @tf.function
    def second(n: Any) -> Any:
        it = iter(D.range(n))
        next(it)
        return next(it)

    assert [int(second(tf.constant(n, tf.int64))) for n in (2, 5)] == [1, 1]


def test_optionals_in_functions() -> None:
    it = iter(D.range(2))

    @tf.function
    def following() -> Any:
        found = it.get_next_as_optional()
        return tf.cond(found.has_value(), lambda: found.get_value(), lambda: tf.constant(-1, tf.int64))

    assert [int(following()) for _ in range(3)] == [0, 1, -1]


def test_datasets_go_in_and_out_of_functions() -> None:
    @tf.function
    def make(n: Any) -> Any:
        return {"d": D.range(n).map(lambda x: x * 10), "n": n}

    @tf.function
    def total(dataset: Any) -> Any:
        return dataset.reduce(np.int64(0), lambda s, x: s + x)

    found = make(tf.constant(4, tf.int64))
    assert isinstance(found["d"], D) and values(found["d"]) == [0, 10, 20, 30]
    assert int(total(found["d"])) == 60 and int(total(D.range(3))) == 3


def test_a_loop_over_a_dataset_without_autograph_is_an_error() -> None:
    @tf.function(autograph=False)
    def loop() -> Any:
        total = tf.constant(0, tf.int64)
        for x in D.range(3):
            total += x
        return total

    with pytest.raises(ValueError, match="AutoGraph"):
        loop()


def test_specs_of_datasets_compare_by_their_elements() -> None:
    numbers, texts = tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)
    assert tf.data.DatasetSpec(numbers) == D.range(3).window(2).element_spec
    assert tf.data.DatasetSpec(numbers) != tf.data.DatasetSpec(texts)


# Made again


def pipeline() -> Any:
    shift = tf.constant([1, 2], tf.int64)
    rows = D.from_tensor_slices({"a": np.arange(6), "s": ["x", "y", "z", "u", "v", "w"]})
    moved = rows.map(lambda e: (e["a"] + tf.reduce_sum(shift), e["s"]))
    return moved.filter(lambda a, s: a > 4).flat_map(lambda a, s: D.from_tensors((a, s)).repeat(2)).batch(3)


READ_AGAIN = """
import sys
import penstock as tf
from penstock.eager.datasets import deserialized
assert tf.executing_eagerly()
dataset = deserialized(open(sys.argv[1], "rb").read())
print([(a.tolist(), s.tolist()) for a, s in dataset.as_numpy_iterator()])
"""


def test_a_dataset_is_made_again_in_another_process(tmp_path: Path) -> None:
    dataset = pipeline()
    here = [(a.tolist(), s.tolist()) for a, s in dataset.as_numpy_iterator()]
    data = serialized(dataset)
    again = deserialized(data)
    assert again.element_spec == dataset.element_spec and len(here) == 3
    assert [(a.tolist(), s.tolist()) for a, s in again.as_numpy_iterator()] == here
    (tmp_path / "dataset").write_bytes(data)
    command = [sys.executable, "-c", READ_AGAIN, str(tmp_path / "dataset")]
    there = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert there.stdout.strip() == str(here)


def test_effects_of_a_function_travel() -> None:
    v = tf.Variable(0, dtype=tf.int64)
    dataset = D.range(3).map(lambda x: v.assign_add(x) * 0 + x)
    it = placed_iterator(dataset, runtime.device_names[0])
    assert [int(x) for x in it] == [0, 1, 2] and int(v) == 3


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:3], lambda b: b"\xff" * 40, lambda b: b[:-5], lambda b: b"", lambda b: b[:4] + b"{}" + b[6:]],
)
def test_bytes_that_are_no_dataset(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(tf.errors.DataLossError):
        deserialized(damage(serialized(D.range(3).batch(2))))


@pytest.mark.parametrize("data", [[], ["tensor"], ["tensor", [1], 3], ["dict", []], "tensor", None, ["list", []]])
def test_structures_that_are_none(data: Any) -> None:
    with pytest.raises(ValueError, match="structure"):
        decoded(data)


def test_an_iterator_has_a_name_on_its_device() -> None:
    it = placed_iterator(pipeline(), runtime.device_names[0], "examples")

    @tf.function
    def following() -> Any:
        return next(it)

    numbers, texts = following()
    assert numbers.numpy().tolist() == [5, 5, 6] and texts.numpy().tolist() == [b"z", b"z", b"u"]
    assert [a.numpy().tolist() for a, _ in it] == [[6, 7, 7], [8, 8]]


# Positions


def test_a_position_is_restored_without_running_functions_again() -> None:
    calls = tf.Variable(0)

    def count(x: Any) -> Any:
        calls.assign_add(1)
        return x

    dataset = D.range(10).map(count).batch(2).prefetch(1)
    it = iter(D.range(10).map(count).batch(2))
    next(it), next(it)
    state = it._saved_state()
    assert int(calls) == 4
    new = iter(dataset)
    new._restore_state(state)
    assert next(new).numpy().tolist() == [4, 5]
    assert new._saved_state()["taken"] == 3
    del new, it


def test_a_failed_element_counts() -> None:
    dataset = D.range(4).map(lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - 1, tf.float32), "inf"))
    it = iter(dataset)
    next(it)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(it)
    new = iter(dataset)
    new._restore_state(it._saved_state())
    assert [float(x) for x in new] == [1.0, 0.5]


def test_a_position_of_something_else() -> None:
    it = iter(D.range(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="position"):
        it._restore_state({"epoch": np.asarray(1)})


def test_an_order_without_a_seed_goes_on_after_a_position() -> None:
    dataset = D.range(20).shuffle(20).repeat(2)
    list(dataset)
    it = iter(dataset)
    head = [int(next(it)) for _ in range(25)]
    state = it._saved_state()
    rest = [int(x) for x in it]
    it._restore_state(state)
    assert [int(x) for x in it] == rest and sorted(head[20:] + rest) == list(range(20))


AFTER = {
    "range": lambda: D.range(2, 20, 3),
    "down": lambda: D.range(9, 0, -2),
    "rows": lambda: D.from_tensor_slices(np.arange(7)),
    "map": lambda: D.range(7).map(lambda x: x + 1, num_parallel_calls=2),
    "batches": lambda: D.range(7).batch(2),
    "whole batches": lambda: D.range(7).batch(2, drop_remainder=True),
    "zip": lambda: D.zip((D.range(9), D.range(5))).map(lambda a, b: a + b),
    "filter": lambda: D.range(9).filter(lambda x: x > 3),
    "repeat": lambda: D.range(3).repeat(2),
    "flat_map": lambda: D.range(4).flat_map(lambda x: D.range(x)),
    "shuffle": lambda: D.range(9).shuffle(3, seed=1, reshuffle_each_iteration=False),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_comes_after_a_position(name: str) -> None:
    dataset = AFTER[name]()
    whole = values(dataset)
    for taken in range(len(whole) + 2):
        it = iter(dataset)
        it._restore_state({**it._saved_state(), "taken": np.asarray(taken)})
        assert [x.numpy().tolist() for x in it] == whole[taken:]


def test_after_a_position_only_the_rest_is_read() -> None:
    left = after(nodes.Batched(nodes.Range(0, 100, 1), 10, False), 3)
    assert isinstance(left, nodes.Batched) and isinstance(left.input, nodes.Range) and left.input.start == 30


# Files


def test_a_cache_is_a_checkpoint_with_tensorflows_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "c")
    list(D.zip((D.range(2), D.from_tensor_slices(["a", "b"]))).cache(path))
    assert [name for name, _ in tf.train.list_variables(path)] == ["      0_0", "      0_1", "      1_0", "      1_1"]
    assert [(int(a), b.numpy()) for a, b in D.zip((D.range(0), D.from_tensor_slices(["q"]))).cache(path)] == [
        (0, b"a"),
        (1, b"b"),
    ]


def test_a_cache_that_is_not_complete_leaves_no_files(tmp_path: Path) -> None:
    it = iter(D.range(3).cache(str(tmp_path / "c")))
    next(it)
    del it
    gc.collect()
    runtime.free()
    assert list(tmp_path.iterdir()) == []


def test_a_saved_dataset_that_is_damaged(tmp_path: Path) -> None:
    D.range(3).save(str(tmp_path))
    assert values(D.load(str(tmp_path))) == [0, 1, 2]
    (tmp_path / "dataset_spec.json").write_text('{"count": 3}')
    with pytest.raises(tf.errors.DataLossError, match="dataset_spec"):
        D.load(str(tmp_path))
    with pytest.raises(tf.errors.NotFoundError):
        D.load(str(tmp_path / "nowhere"))
