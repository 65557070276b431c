"""Fixtures that write scripts, and launch them, here, on Ray and on Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from launch.launching import DEADLINE, PATHS, TASK, marked, wait_until
from launch.ray_nodes import NODES, RayCluster
from launch.slurm_cluster import NODES as SLURM_NODES
from launch.slurm_cluster import SlurmCluster

GONE_SECS = 30.0


@pytest.fixture
def script(tmp_path):
    def write(text, name="program.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def launch(script, tmp_path):
    """Starts `penstock launch` on a script with the text above in front. Afterwards no process of it may be left."""
    mark = f"PENSTOCK_TEST_MARK={uuid.uuid4()}"
    name, value = mark.split("=")
    here = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""}
    environment = {**os.environ, name: value, "PYTHONPATH": PATHS, "COLUMNS": "200", **here}
    started = []

    def start(text, *args, options=(), env=(), stdout=subprocess.PIPE, within=()):
        path = text if isinstance(text, Path) else script(TASK + text)
        command = [*within, sys.executable, "-m", "penstock", "launch", *map(str, options), str(path), *args]
        # A signal that is ignored here (under nohup, in the background) would be ignored in the child.
        before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)}
        try:
            process = subprocess.Popen(
                command, env={**environment, **dict(env)}, stdout=stdout, stderr=subprocess.PIPE, text=True
            )
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        started.append(process)
        return process

    yield start
    late = [process for process in started if process.poll() is None]
    for process in started:
        if process in late:
            process.kill()
        process.communicate(timeout=DEADLINE)
    assert not late, "a launcher still ran"
    # What a launcher has killed before it ended, or the kernel after it was killed, may need a moment to be gone.
    deadline = time.monotonic() + GONE_SECS
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for each, _ in left:
        os.kill(int(each), signal.SIGKILL)
    assert left == []


@pytest.fixture(scope="module")
def ray_cluster():
    with RayCluster() as found:
        yield found


@pytest.fixture
def ray_nodes(ray_cluster):
    """The cluster with all its nodes; no test leaves a task on them."""
    for host in NODES:
        ray_cluster.start_node(host)
    yield ray_cluster
    wait_until(lambda: ray_cluster.tasks() == [])


@pytest.fixture
def launch_on_ray(ray_nodes, launch):
    """Launches on the cluster."""

    def start(text, *args, options=(), env=(), **more):
        there = {**ray_nodes.environment, "RAY_ADDRESS": ray_nodes.address, **dict(env)}
        return launch(text, *args, options=["--on", "ray", *options], env=there, **more)

    return start


@pytest.fixture(scope="module")
def slurm_cluster():
    with SlurmCluster() as found:
        yield found


@pytest.fixture
def slurm(slurm_cluster):
    """The cluster with all its nodes; no test leaves a process on them."""
    yield slurm_cluster
    slurm_cluster.run("scancel", "--user", str(os.getuid()))
    for node in SLURM_NODES:
        if not slurm_cluster.runs(node):
            slurm_cluster.start_node(node)
    wait_until(lambda: slurm_cluster.run("squeue", "--noheader") == "")
    wait_until(lambda: not any(slurm_cluster.processes(node) for node in SLURM_NODES))


@pytest.fixture
def launch_on_slurm(slurm, launch):
    """Launches in an allocation of the three nodes."""

    def start(text, *args, options=(), env=(), within=("salloc", "--quiet", "--no-kill", "--nodes=3"), **more):
        there = {**slurm.environment, **dict(env)}
        return launch(text, *args, options=["--on", "slurm", *options], env=there, within=within, **more)

    return start
