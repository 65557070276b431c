"""A real Ray cluster on this machine: a head without CPUs, and nodes that each have a loopback address of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from launch.launching import ROOT, marked, wait_until

from penstock.launch.free_ports import free_ports

LONG = 200.0  # seconds
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: penstock[ray]")
NODES = ("127.0.0.3", "127.0.0.4", "127.0.0.5")
_HEAD = "127.0.0.2"  # Ray takes 127.0.0.1 for another name of the machine's own address
_PATIENCE = 100.0  # seconds
_HIDE = 'mount -t tmpfs none "$0" && exec "$@"'


def can_hide() -> bool:
    """Tells if this user can hide a folder from a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "--mount", "sh", "-c", _HIDE, folder, "true"]
        try:
            return subprocess.run(command, capture_output=True, timeout=_PATIENCE).returncode == 0
        except OSError:
            return False


class RayCluster:
    """Runs while it is a context; `environment` is for programs that use it."""

    _hosts: Sequence[str] = NODES

    def __init__(self) -> None:
        # Not a folder of pytest: the path of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-ray-"))
        port = next(port for port in free_ports(1000) if port >= 20000)  # Ray's workers have those below
        self.address = f"{_HEAD}:{port}"
        # Nothing is stored in the home directory, and nobody else can use the cluster.
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._mark = f"PENSTOCK_TEST_NODE={uuid.uuid4()}"
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RayCluster:
        port = self.address.partition(":")[2]
        try:
            options = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
            self._start(_HEAD, sys.executable, *options, *self._head_options())
            for host in self._hosts:
                self.start_node(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _head_options(self) -> list[str]:
        return ["--num-cpus=0"]

    def __exit__(self, *_: object) -> None:
        for host in [*self._nodes]:
            self.kill_node(host)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_node(self, host: str, python: str = sys.executable, hidden: Path | None = None) -> None:
        """Starts a node with two CPUs, unless it runs, and waits until it belongs to the cluster.

        It does not see what is in a folder that is `hidden`.
        """
        if host not in self._nodes:
            before = ["unshare", "--mount", "sh", "-c", _HIDE, str(hidden)] if hidden else []
            self._start(host, python, f"--address={self.address}", "--num-cpus=2", before=before)

    def kill_node(self, host: str) -> None:
        """Kills a node with all that runs there, as a power cut would."""
        process = self._nodes.pop(host)
        # Ray's processes are in its session, tasks in sessions of their own.
        tasks = [int(pid) for pid, _ in marked(f"{self._mark}-{host}")]
        folders = {_credentials(pid) for pid in tasks}
        for pid in {*tasks, *_session(process.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(_PATIENCE)
        # A power cut would empty the memory in which they are.
        for folder in filter(None, folders):
            shutil.rmtree(folder, ignore_errors=True)

    def tasks(self) -> list[bytes]:
        """The programs of tasks that run on nodes."""
        found = [command for host in self._nodes for _, command in marked(f"{self._mark}-{host}")]
        return [command for command in found if b"penstock.launch" in command]

    def _start(self, host: str, python: str, *options: str, before: Sequence[str] = ()) -> None:
        name, value = self._mark.split("=")
        environment = {**os.environ, **self.environment, name: f"{value}-{host}", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        # A Python of its own has a penstock of its own.
        environment["PYTHONPATH"] = str(ROOT) if python == sys.executable else ""
        command = [
            *before,
            python,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            f"--node-ip-address={host}",
            *options,
        ]
        log = self.folder / f"{host}.out"
        for _ in range(3):  # a busy machine may be too slow for Ray's own deadline
            with log.open("wb") as out:
                self._nodes[host] = process = subprocess.Popen(
                    [*command, "--disable-usage-stats", "--object-store-memory=100000000"],
                    env=environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            wait_until(lambda p=process: p.poll() is not None or b"block forever" in log.read_bytes(), _PATIENCE)
            if process.poll() is None:
                return
            self.kill_node(host)
        raise AssertionError(log.read_text())


class AutoscaledCluster(RayCluster):
    """A head with three CPUs, and nodes that Ray's autoscaler brings and takes away."""

    _hosts = ()

    def _head_options(self) -> list[str]:
        provider = {"type": "external", "module": "tests.launch.autoscaled_nodes.Nodes", "disable_node_updaters": True}
        commands = [f"{part}setup_commands" for part in ("", "head_", "worker_")]
        commands += ["initialization_commands", "head_start_ray_commands", "worker_start_ray_commands"]
        config = {
            "cluster_name": "penstock",
            "max_workers": 2,
            "idle_timeout_minutes": 0.05,
            "provider": {**provider, "disable_launch_config_check": True, "head": _HEAD, "address": self.address},
            "available_node_types": {
                "head": {"resources": {}, "node_config": {}, "max_workers": 0},
                "extra": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
            },
            "head_node_type": "head",
            "auth": {},
            "file_mounts": {},
            "cluster_synced_files": [],
            **{name: [] for name in commands},
        }
        path = self.folder / "autoscaler.json"
        path.write_text(json.dumps(config))
        return ["--num-cpus=3", f"--autoscaling-config={path}"]


def _session(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(path.parent.name))
    return found


def _credentials(pid: int) -> str:
    """The directory in memory that a task has for its credentials; empty if it has none."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0PENSTOCK_CREDENTIALS=/dev/shm/")[1:]
    except OSError:
        return ""
    return "/dev/shm/" + found[0].partition(b"\0")[0].decode() if found else ""


GROUPS = """
import ray
ray.init(log_to_driver=False)
print([group["state"] for group in ray.util.placement_group_table().values()])
"""


def groups_left(cluster: RayCluster) -> set[str]:
    """The states of placement groups that are not removed."""
    there = {**os.environ, **cluster.environment, "RAY_ADDRESS": cluster.address}
    done = subprocess.run([sys.executable, "-c", GROUPS], env=there, capture_output=True, text=True, timeout=LONG)
    return set(re.findall(r"'(\w+)'", done.stdout)) - {"REMOVED"}


def until(process: subprocess.Popen[str], shown: str) -> str:
    """Reads the lines of a launcher until one has that text."""
    lines = iter(process.stdout.readline, "")
    return next(line for line in lines if shown in line)
