"""Checkpoints of variables on parameter servers: written by the coordinator, read by any number of shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distribute.golden import Clusters, clusters, namespace

import penstock as tf
from penstock.checkpoint.bundle import BundleReader

_GOLDEN = Path(__file__).parent.parent / "golden" / "distribute"
_ROWS = np.arange(26, dtype=np.float32).reshape(13, 2)


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


def made(known: Clusters, folder: Path, shards: int, factor: float) -> Any:
    """The objects of the golden checkpoint, with a table in `shards` parts on the parameter servers."""
    row = {"workers": 1, "ps": 3, "partitioner": f"FixedShardsPartitioner({shards})", "coordinator": "none"}
    strategy = namespace(row, known, folder)["strategy"]
    with strategy.scope():
        table = tf.Variable(_ROWS * factor, name="table")
        step = tf.Variable(int(7 * factor), dtype=tf.int64, name="step")
    bias = tf.Variable([1.5 * factor, -2.0 * factor], name="bias")
    assert "ps" in step.device and len(table.variables) == shards
    return tf.train.Checkpoint(bias=bias, step=step, table=table)


def check(checkpoint: Any) -> None:
    """Asserts that the objects have the values of the golden checkpoint."""
    assert np.asarray(tf.convert_to_tensor(checkpoint.table)).tolist() == _ROWS.tolist()
    assert int(checkpoint.step) == 7 and checkpoint.bias.numpy().tolist() == [1.5, -2.0]


@pytest.mark.parametrize("is_async", [False, True])
def test_written_in_the_form_of_tensorflow(known: Clusters, tmp_path: Path, is_async: bool) -> None:
    checkpoint = made(known, tmp_path, 5, 1.0)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=is_async)
    path = checkpoint.write(tmp_path / "sharded", options=options)
    if is_async:
        # Values are those of the call, whatever happens before the file is there.
        for shard in checkpoint.table.variables:
            shard.assign(tf.zeros_like(shard))
        checkpoint.step.assign(0)
    checkpoint.sync()
    golden = json.loads((_GOLDEN / "checkpoint.json").read_text())
    expected = {bytes.fromhex(e["key_hex"]) if "key_hex" in e else e["key"].encode() for e in golden["entries"]}
    reader = BundleReader(path)
    assert set(reader.entries) == expected
    check(made_restored(known, tmp_path, path, 2))


def made_restored(known: Clusters, folder: Path, path: Any, shards: int) -> Any:
    checkpoint = made(known, folder, shards, 0.0)
    checkpoint.read(path).assert_consumed()
    return checkpoint


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_reads_the_checkpoint_of_tensorflow(known: Clusters, tmp_path: Path, shards: int) -> None:
    check(made_restored(known, tmp_path, _GOLDEN / "ckpt" / "sharded", shards))


def test_a_program_without_a_cluster_reads_it(known: Clusters, tmp_path: Path) -> None:
    path = made(known, tmp_path, 3, 1.0).write(tmp_path / "sharded")
    local = tf.train.Checkpoint(
        bias=tf.Variable([0.0, 0.0]), step=tf.Variable(0, dtype=tf.int64), table=tf.Variable(_ROWS * 0.0)
    )
    local.read(path).assert_consumed()
    check(local)
