"""The program of a pod: `python -m penstock.launch.kubernetes.pod script args` runs a script as a task of its cluster.

The manifest has set the task's environment. The script runs in a process of its own, which gets SIGTERM when the pod
does, with its children; see `log.py` for the output.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing

from penstock.launch.cluster import Task
from penstock.launch.events import Ended, Events, Output, Signal, UnderWay
from penstock.launch.job import exit_code
from penstock.launch.kubernetes.log import LogWriter
from penstock.launch.processes import Processes
from penstock.progress import SERVES, STEPS


def main() -> None:
    """Runs the script in the arguments, to its end."""
    task = Task("task", 0)  # it is the only one here
    entry = [sys.executable, "-m", "penstock.launch.task", str(os.getpid())]
    log = LogWriter(1)
    with Events() as events, closing(Processes(events, events.post)) as processes, events.signals():
        processes.start(task, lambda pipe: [*entry, str(pipe), *sys.argv[1:]], os.environ)
        while True:
            for event in events.next(None):
                match event:
                    case Output(_, stream, data):
                        log.output(stream, data)
                    case UnderWay(_, serves):
                        log.mark(SERVES if serves else STEPS)
                    case Signal(number):
                        processes.signal(task, number)
                        # A stopped process would not handle the signal.
                        processes.signal(task, signal.SIGCONT)
                    case Ended(_, code, why):
                        log.output("stderr", f"penstock launch: the task {why}\n".encode() if why else b"")
                        log.mark(str(code).encode())
                        sys.exit(exit_code(code))


if __name__ == "__main__":
    main()
