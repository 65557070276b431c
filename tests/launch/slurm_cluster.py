"""A real Slurm of three nodes on loopback, as processes of this user: munged, slurmctld, and a slurmd for each node."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from launch.launching import DEADLINE, wait_until

from penstock.launch.free_ports import free_ports

NODES = ("n0", "n1", "n2")
PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
COMMANDS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol")

CONFIG = """
ClusterName=penstock
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=requeue_setup_env_fail
ReturnToService=2
SlurmdTimeout=60
MessageTimeout=5
KillWait=2
MinJobAge=300
MailProg=/bin/true
{nodes}
PartitionName=main Nodes=n[0-2] Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """The command of Slurm that is not installed; empty if all are."""
    return next((name for name in COMMANDS if shutil.which(name, path=PATHS) is None), "")


needs_slurm = pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: no {missing()}")


class SlurmCluster:
    """Runs while it is a context; `environment` is for commands of Slurm."""

    def __init__(self) -> None:
        # Not a folder of pytest: the path of a socket must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-slurm-"))
        self.environment = {**os.environ, "PATH": PATHS, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SlurmCluster:
        controller, *ports = free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000"
            for name, port in zip(NODES, ports, strict=True)
        )
        user = pwd.getpwuid(os.getuid()).pw_name
        config = CONFIG.format(controller=controller, folder=self.folder, user=user, nodes=nodes)
        Path(self.environment["SLURM_CONF"]).write_text(config)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        files = {"key-file": key, **{f"{each}-file": self.folder / f"munge.{each}" for each in ("pid", "log", "seed")}}
        options = [f"--{option}={path}" for option, path in files.items()]
        try:
            self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *options)
            wait_until(lambda: (self.folder / "munge.socket").exists())
            self._start("slurmctld", "-D")
            for node in NODES:
                self.start_node(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._daemons.values()):
            process.terminate()
        for process in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *args: str, called: str = "") -> None:
        with (self.folder / f"{called or name}.out").open("ab") as out:
            command = [shutil.which(name, path=PATHS), *args]
            self._daemons[called or name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def run(self, *command: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def runs(self, node: str) -> bool:
        """Tells if a node has not been killed."""
        return node in self._daemons

    def state(self, node: str) -> str:
        """The state of a node, as `sinfo` calls it; a star at its end means that it does not answer."""
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-n", node, "-o", "%T"], env=self.environment, capture_output=True, text=True
        )
        return done.stdout.strip()

    def start_node(self, node: str) -> None:
        """Starts a node and waits until it can be used."""
        self._start("slurmd", "-D", "-N", node, called=node)

        wait_until(lambda: self.state(node) in ("idle", "mixed"))

    def kill_node(self, node: str) -> None:
        """Kills a node with all that runs there, as a power cut would."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        # The steps go before their tasks: none may tell that a task has ended.
        tasks = self.processes(node)
        # Programs beside the tasks know the folder of the launcher, which is on another machine.
        folders = {_credentials(task) for task in tasks if "penstock.launch.task" in _command(task)}
        for pid in {_parent(task) for task in tasks if _name(_parent(task)) == "slurmstepd"} | set(tasks):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A power cut would empty the memory in which they are.
        for folder in filter(None, folders):
            shutil.rmtree(folder, ignore_errors=True)

    def processes(self, node: str) -> list[int]:
        """The processes of tasks on a node."""
        marks = [f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.folder}".encode()]
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                environ = path.read_bytes()
                if all(mark in environ for mark in marks):
                    found.append(int(path.parent.name))
        return found


def _credentials(pid: int) -> str:
    """The directory in memory that a task has for its credentials; empty if it has none."""
    try:
        found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0PENSTOCK_CREDENTIALS=/dev/shm/")[1:]
    except OSError:
        return ""
    return "/dev/shm/" + found[0].partition(b"\0")[0].decode() if found else ""


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
