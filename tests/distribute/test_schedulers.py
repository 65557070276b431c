"""The resolvers for Slurm and Kubernetes are as in TensorFlow, and what is wrong is said by name."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from distribute.names import tf
from golden_programs import load

from penstock.distribute.slurm import counts_of, nodes_of

resolvers = tf.distribute.cluster_resolver
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers may set CUDA_VISIBLE_DEVICES; the value from before is restored."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def _slurm(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], **arguments: Any) -> Any:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return resolvers.SlurmClusterResolver(**arguments)


# TensorFlow sorts the nodes by their names. Slurm numbers tasks in the order of its list, where n9 comes before n10.
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=row["id"],
            marks=[pytest.mark.xfail(strict=True, reason="sorted names")] if row["id"] == "ranges" else [],
        )
        for row in load("distribute/slurm.json")["cases"]
    ],
)
def test_slurm_as_tensorflow(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if "error" in row:
        with pytest.raises(Exception) as caught:
            _slurm(monkeypatch, row["environment"], **row["arguments"])
        assert type(caught.value).__name__ == row["error"][0]
        return
    resolver = _slurm(monkeypatch, row["environment"], **row["arguments"])
    cluster = resolver.cluster_spec().as_dict()
    assert cluster == row["cluster"]
    assert list(resolver.get_task_info()) == row["task"] == [resolver.task_type, resolver.task_id]
    assert resolver.master() == row["master"]
    assert resolver.master(next(iter(cluster)), 0) == row["master_of"]
    assert resolver.master(rpc_layer="x") == row["master_rpc"]
    assert resolver.num_accelerators() == row["accelerators"]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == row["visible"]
    assert resolver.rpc_layer == row["rpc_layer"]


def test_tasks_are_numbered_in_the_order_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = _slurm(monkeypatch, {**SLURM, "CUDA_VISIBLE_DEVICES": "4,5"}, jobs={"worker": 3, "ps": 1})
    assert resolver.cluster_spec().as_dict() == {"ps": ["n9:8888"], "worker": ["n9:8889", "n10:8888", "n10:8889"]}
    assert resolver.master() == "grpc://n10:8889"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5"  # the second task of its node


def test_a_node_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = _slurm(monkeypatch, {**SLURM, "CUDA_VISIBLE_DEVICES": ""})
    assert resolver.num_accelerators() == {"GPU": 0}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("a[1,3-4]b[1-2]", ["a1b1", "a1b2", "a3b1", "a3b2", "a4b1", "a4b2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_lists_of_nodes(text: str, wanted: list[str]) -> None:
    assert nodes_of(text) == wanted


@pytest.mark.parametrize("text", ["", ",", "n1,", "n[1", "n1]", "n[]", "n[1-2-3]", "n[a]", "n[1,]"])
def test_lists_of_nodes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="received"):
        nodes_of(text)


@pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "1,", "-1"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"look like '2,1\(x3\)', received"):
        counts_of(text)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "4"}, "names 2 nodes, and numbers of tasks on 1"),
        ({"SLURM_STEP_NUM_TASKS": "3"}, "have 3 tasks and the nodes .* have 4, but Slurm has started 3"),
        ({"SLURM_PROCID": "4"}, "of which this is number 4"),
        ({"SLURM_PROCID": "-1"}, "SLURM_PROCID must be a number, received '-1'"),
    ],
)
def test_steps_that_cannot_be(changed: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((RuntimeError, ValueError), match=says):
        _slurm(monkeypatch, {**SLURM, "CUDA_VISIBLE_DEVICES": "", **changed})


def _pod(name: str, address: str, phase: str = "Running") -> Any:
    status = SimpleNamespace(phase=phase, host_ip=address, pod_ip="1.2.3.4")
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=status)


class Pods:
    """Answers as the client of the Kubernetes package."""

    PODS = {
        "job-name=tensorflow": [_pod("b", "10.0.0.2"), _pod("a", "10.0.0.1")],
        "role=ps": [_pod("p", "10.0.0.9")],
        "late=yes": [_pod("q", "10.0.0.8", "Pending")],
        "more=yes": [_pod("0", "10.0.0.5")],
    }

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        return SimpleNamespace(items=self.PODS[label_selector])


def test_kubernetes_as_tensorflow() -> None:
    resolver = resolvers.KubernetesClusterResolver(override_client=Pods())
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    assert resolver.master() == ""
    assert resolver.master("worker", 1) == "grpc://10.0.0.2:8470"
    assert resolver.master("worker", 1, "x") == "x://10.0.0.2:8470"
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.master() == "grpc://10.0.0.1:8470"


def test_kubernetes_jobs_with_several_labels() -> None:
    labels = {"ps": ["role=ps"], "worker": ["job-name=tensorflow", "more=yes"]}
    resolver = resolvers.KubernetesClusterResolver(labels, 2222, override_client=Pods())
    wanted = {"ps": ["10.0.0.9:2222"], "worker": ["10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.5:2222"]}
    assert resolver.cluster_spec().as_dict() == wanted


def test_a_pod_that_does_not_run() -> None:
    resolver = resolvers.KubernetesClusterResolver({"worker": ["late=yes"]}, override_client=Pods())
    with pytest.raises(RuntimeError, match="pod 'q', which has the label 'late=yes', is in the phase 'Pending'"):
        resolver.cluster_spec()


def test_without_the_kubernetes_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match="pip install kubernetes"):
        resolvers.KubernetesClusterResolver()
