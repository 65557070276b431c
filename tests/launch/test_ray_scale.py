"""`penstock scale` on a real Ray: tasks get nodes when they join, also from Ray's autoscaler, and give them back."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from launch.elastic_training import alone, check_losses, ended, finish_at, more_steps, run_sequence, scale, trains
from launch.launching import finish, wait_until
from launch.ray_nodes import LONG, AutoscaledCluster, groups_left, needs_ray, until

from penstock.train.checkpoint_state import latest_checkpoint

pytestmark = [needs_ray, pytest.mark.long, pytest.mark.timeout(500)]


def test_training_goes_on_as_if_undisturbed(ray_nodes, launch_on_ray, tmp_path):
    found = run_sequence(launch_on_ray, tmp_path, [(2, 4), (1, 2)], sync=True)
    check_losses(found, alone(tmp_path, len(found)))
    assert groups_left(ray_nodes) == set()


def test_a_node_dies_after_tasks_have_joined(ray_nodes, launch_on_ray, tmp_path):
    """All tasks start again, with the record and with addresses that are new; training ends with the right step."""
    process = trains(launch_on_ray, tmp_path, sync=False)
    more_steps(tmp_path, 0, 1)
    assert scale(tmp_path, "--ps", 2).returncode == 0
    more_steps(tmp_path, 0, 1, count=60)  # there is a checkpoint with the variables that have moved
    said = ""
    while not (found := re.search(r"ps:1 on node (\S+), at", said)):
        said += process.stderr.readline()
    ray_nodes.kill_node(found[1])
    wait_until(lambda: "--- restart" in (tmp_path / "logs" / "worker-0.log").read_text(), LONG)
    more_steps(tmp_path, 0, 1, count=60)
    again = scale(tmp_path, "--ps", 1)  # the record that all tasks were given is that of the first server
    assert again.returncode == 0 and "version 2" in again.stdout, again.stderr
    last = finish_at(tmp_path, more_steps(tmp_path, 0, 1) + 10)
    err = ended(process)
    assert f"ps:1 was lost with its actor on node {found[1]}" in err and re.search(r"moving .*ps:1 to node", err)
    assert int(latest_checkpoint(str(tmp_path / "train")).rpartition("-")[2]) >= last
    assert groups_left(ray_nodes) == set()


def test_no_node_comes(ray_nodes, launch_on_ray, tmp_path):
    text = "begin()\nprint('runs', flush=True)\nhear('over')"
    process = launch_on_ray(text, options=["--wait", 5, "--log-dir", tmp_path / "logs"])
    for _ in range(3):
        until(process, "runs")
    found = scale(tmp_path, "--workers", 6)
    assert found.returncode == 1
    assert "the job keeps 1 parameter server and 2 workers: worker:" in found.stderr
    assert "found no place on the Ray cluster within 5 s: worker:" in found.stderr
    assert "needs 1 CPU, and there is no room for it beside the other tasks. The nodes have: " in found.stderr
    (tmp_path / "over.told").touch()
    code, _, err = finish(process)
    assert code == 0, err
    assert "failed once" not in err
    assert groups_left(ray_nodes) == set()


NODES_THERE = """
import ray
ray.init(log_to_driver=False)
print(*[node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]])
"""


def test_the_autoscaler_brings_a_node_and_takes_it_away(launch, tmp_path):
    with AutoscaledCluster() as cluster:
        there = {**cluster.environment, "RAY_ADDRESS": cluster.address}

        def nodes() -> int:
            command = [sys.executable, "-c", NODES_THERE]
            env = {**os.environ, **there}
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LONG, check=True)
            return len(done.stdout.split())

        def launch_there(text, *args, options=(), env=(), **more):
            return launch(text, *args, options=["--on", "ray", *options], env={**there, **dict(env)}, **more)

        process = trains(launch_there, tmp_path, sync=False)
        more_steps(tmp_path, 0, 1)
        assert nodes() == 1
        found = scale(tmp_path, "--workers", 4)
        assert found.returncode == 0, found.stderr
        assert nodes() == 2
        more_steps(tmp_path, 0, 1, 2, 3)
        assert scale(tmp_path, "--workers", 2).returncode == 0
        wait_until(lambda: nodes() == 1, LONG)
        finish_at(tmp_path, more_steps(tmp_path, 0, 1) + 10)
        err = ended(process)
        assert re.search(r"worker:2 on node 127\.0\.0\.1\d, at", err) and "failed once" not in err, err
        assert groups_left(cluster) == set()
