"""Whole models that TensorFlow wrote, imported and trained: the values are TensorFlow's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef

import penstock.v1 as tf

ROWS = {row["id"]: row for row in json.loads((GOLDEN / "graphdef_runs" / "models.json").read_text())}


def graph_def(row: dict[str, Any]) -> GraphDef:
    """The graph, with all on one device: the models are placed on tasks of a cluster."""
    content = (GOLDEN / row["folder"] / f"{row['id']}.pb").read_bytes()
    proto = MetaGraphDef.FromString(content).graph_def if row["meta"] else GraphDef.FromString(content)
    for node in proto.node:
        node.device = ""
    return proto


def operations(names: list[str]) -> list[Any]:
    return [tf.get_default_graph().get_operation_by_name(name) for name in names]


def check_runs(row: dict[str, Any], session: tf.Session) -> None:
    if row["init"]:
        session.run(operations(row["init"]), row["init_feeds"])
    for run in row["runs"]:
        names = list(run["values"])
        fetched = session.run([*names, *operations(run["targets"])], run["feeds"])
        for name, value in zip(names, fetched, strict=False):
            np.testing.assert_allclose(np.asarray(value), run["values"][name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("name", list(ROWS))
def test_values_are_those_of_tensorflow(name: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph_def(ROWS[name]), name="")
        check_runs(ROWS[name], session)


SAVED = {n: ("save/control_dependency:0", 1) for n in ROWS if n.startswith("metagraph")}
SAVED["cluster_replica_setter"] = ("save/Identity:0", 2)  # one shard for each parameter server, merged


@pytest.mark.parametrize("name", list(SAVED))
def test_save_and_restore_nodes_work(name: str, tmp_path: Path) -> None:
    row, (saving, shards) = ROWS[name], SAVED[name]
    prefix = str(tmp_path / "model.ckpt")
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph_def(row), name="")
        check_runs(row, session)
        assert session.run(saving, {"save/Const:0": prefix}) == prefix.encode()
    data = [f"model.ckpt.data-{i:05d}-of-{shards:05d}" for i in range(shards)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*data, "model.ckpt.index"]
    last = row["runs"][-1]["values"]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(graph_def(row), name="")
        session.run(operations(["save/restore_all"]), {"save/Const:0": prefix})
        for tensor, value in last.items():
            np.testing.assert_allclose(session.run(tensor), value, 1e-5, 1e-6, err_msg=tensor)
