"""`penstock scale` on a real Slurm: tasks that join get a node of the allocation."""

from __future__ import annotations

import re

import pytest
from launch.elastic_training import alone, check_losses, ended, finish_at, more_steps, run_sequence, runs, scale, trains
from launch.launching import finish, wait_until
from launch.slurm_cluster import needs_slurm

from penstock.train.checkpoint_state import latest_checkpoint

pytestmark = [needs_slurm, pytest.mark.long, pytest.mark.timeout(500)]


def test_training_goes_on_as_if_undisturbed(launch_on_slurm, tmp_path):
    found = run_sequence(launch_on_slurm, tmp_path, [(2, 4), (1, 2)], sync=True)
    check_losses(found, alone(tmp_path, len(found)))


def test_a_node_dies_after_tasks_have_joined(slurm, launch_on_slurm, tmp_path):
    """All tasks start again, with the record and with addresses that are new; training ends with the right step."""
    process = trains(launch_on_slurm, tmp_path, sync=False)
    more_steps(tmp_path, 0, 1)
    assert scale(tmp_path, "--ps", 2, "--workers", 3).returncode == 0
    more_steps(tmp_path, 0, 1, 2, count=60)  # there is a checkpoint with the variables that have moved
    said = ""
    while not (joined := re.search(r"ps:1 on (n\d), at", said)):
        said += process.stderr.readline()
    slurm.kill_node(joined[1])
    wait_until(lambda: "--- restart" in (tmp_path / "logs" / "worker-0.log").read_text())
    more_steps(tmp_path, 0, 1, 2, count=60)
    again = scale(tmp_path, "--ps", 1)  # the record that all tasks were given is that of the first server
    assert again.returncode == 0 and "version 2" in again.stdout, again.stderr
    last = finish_at(tmp_path, more_steps(tmp_path, 0, 1, 2) + 10)
    err = ended(process)
    assert f"node {joined[1]} is lost" in err and re.search(r"moving .*ps:1 to n\d", err)
    assert int(latest_checkpoint(str(tmp_path / "train")).rpartition("-")[2]) >= last


def test_a_job_that_has_no_room_for_more_tasks_goes_on(launch_on_slurm, tmp_path):
    within = ("salloc", "--quiet", "--no-kill", "--nodes=3", "--ntasks=3", "--cpus-per-task=2")
    options = ["--cpus", "2", "--log-dir", tmp_path / "logs"]
    process = launch_on_slurm("begin()\nprint('runs', flush=True)\nhear('over')", options=options, within=within)
    runs(tmp_path, "runs")
    found = scale(tmp_path, "--workers", 3)
    assert found.returncode == 1
    assert "there is no room for worker:2: it needs 2 CPUs" in found.stderr and "Nothing has changed" in found.stderr
    (tmp_path / "over.told").touch()
    assert finish(process)[0] == 0
