"""Datasets of ragged tensors where no golden program reaches: in files and in messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import penstock as tf
from penstock.eager.datasets import deserialized, serialized

D = tf.data.Dataset
CACHES = Path(__file__).parents[1] / "golden" / "v2" / "files" / "caches"  # TensorFlow has written them
WORDS = [[["a"], []], [], [["b", "c"], ["d"]]]


def other() -> tf.data.Dataset:
    """A dataset whose elements have the types of those of the cache, and other values."""
    return D.from_tensor_slices((tf.ragged.constant([[[9]]], dtype=tf.int32), [9])).batch(2)


def test_datasets_as_data() -> None:
    ragged = tf.ragged.constant(WORDS)
    for dataset in (
        D.from_tensor_slices({"w": ragged}).batch(2),
        D.from_tensors({"w": ragged}),
        D.from_tensors(0).map(lambda _: {"w": ragged}),
        D.from_tensors({"w": ragged}).unbatch().ragged_batch(3),
    ):
        again = deserialized(serialized(dataset))
        assert again.element_spec == dataset.element_spec
        assert [e["w"].to_list() for e in again] == [e["w"].to_list() for e in dataset]


def test_caches_of_tensorflow() -> None:
    (first, numbers), (last, _) = other().cache(str(CACHES / "ragged"))
    assert first.to_list() == [[[1], []], []] and last.to_list() == [[[2, 3], [4], [5, 6, 7]]]
    assert numbers.numpy().tolist() == [1, 2]
    rows = D.from_tensors(tf.sparse.from_dense([9])).cache(str(CACHES / "sparse"))
    assert [tf.sparse.to_dense(row).numpy().tolist() for row in rows] == [[0, 4], [5, 0], [0, 0]]


def test_a_cache_is_written_as_tensorflow_does(tmp_path: Path) -> None:
    ragged = tf.ragged.constant([[[1], []], [], [[2, 3], [4], [5, 6, 7]]])
    list(D.from_tensor_slices((ragged, [1, 2, 3])).batch(2).cache(str(tmp_path / "ragged")))
    ours, theirs = [[x.to_list() for x, _ in other().cache(str(f / "ragged"))] for f in (tmp_path, CACHES)]
    assert ours == theirs
    assert tf.train.list_variables(str(tmp_path / "ragged")) == tf.train.list_variables(str(CACHES / "ragged"))


def test_damage_of_a_cache_is_seen(tmp_path: Path) -> None:
    for name in ("ragged.index", "ragged.data-00000-of-00001"):
        shutil.copy(CACHES / name, tmp_path / name)
    data = tmp_path / "ragged.data-00000-of-00001"
    whole = data.read_bytes()
    dataset = other().cache(str(tmp_path / "ragged"))
    for at in np.linspace(0, len(whole) - 1, 30, dtype=int):
        data.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(tf.errors.DataLossError):
            list(dataset)


def test_datasets_in_elements_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="cannot be written"):
        list(D.range(4).window(2).cache(str(tmp_path / "c")))
