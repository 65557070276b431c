"""Keras models on a cluster of processes come to the same losses as with Keras alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cluster.processes import DEADLINE, Cluster
from keras_models import tf
from leaks import leak_check

import penstock
from penstock.distribute.partitioners import MinSizePartitioner
from penstock.eager.cluster import disconnect

import keras_twins as twins  # isort: skip  # after penstock, which has Keras take its backend

DIGITS = str(files(penstock) / "data_files" / "digits.npz")


def _has_gpu() -> bool:
    return any(device.platform == "gpu" for device in jax.devices())


def _by_keras_alone(name: str, platforms: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, twins.__file__, name, DIGITS],
        env={**os.environ, "JAX_PLATFORMS": platforms, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout)
    return found


def _on_cluster(name: str, cluster: Cluster, servers: int) -> tuple[Any, list[float]]:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=MinSizePartitioner(max_shards=servers), synchronous=True
    )
    with strategy.scope():
        model = twins.MODELS[name]()
    x, y = twins.data(name, DIGITS)
    if name == "cnn":  # read by the worker
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(twins.BATCH).repeat()
        return model, twins.trained(model, dataset, steps_per_epoch=twins.STEPS)
    return model, twins.trained(model, x, y, batch_size=twins.BATCH)  # sent to it


@pytest.mark.timeout(300)
@pytest.mark.long
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("name", "servers"), [("cnn", 1), ("embedding", 2)])
def test_the_losses_are_those_of_keras_alone(tmp_path: Path, name: str, servers: int, platform: str) -> None:
    if platform == "gpu" and not _has_gpu():
        pytest.skip("needs a GPU")
    with leak_check(), Cluster(tmp_path, ps=servers, workers=1) as cluster:
        cluster.start(*(f"ps{i}" for i in range(servers)), mode="join")
        if platform == "gpu":
            cluster.settings["JAX_PLATFORMS"] = ""  # all that there are, for what starts from here on
        cluster.start("worker0")
        model, found = _on_cluster(name, cluster, servers)
        expected = _by_keras_alone(name, "" if platform == "gpu" else "cpu")
        np.testing.assert_allclose(found, expected, atol=1e-3)
        assert found[-1] < 0.8 * found[0]
        assert int(model.optimizer.iterations.numpy()) == twins.EPOCHS * twins.STEPS
        devices = {weight.device for weight in model.trainable_variables}
        assert devices == {f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers)}
        workers = [d for d in tf.config.list_logical_devices() if "/job:worker" in d.name]
        assert {d.device_type for d in workers} == ({"CPU", "GPU"} if platform == "gpu" else {"CPU"})
        disconnect()
