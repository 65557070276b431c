"""The program of each process of a launched cluster: `python -m penstock.launch.task LAUNCHER_PID PIPE script args`.

Little is imported before the script, since a cluster starts as fast as its slowest task.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from penstock import progress
from penstock.launch.program import Program

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def end_with(launcher: int) -> None:
    """Ends this process when its launcher dies, even by SIGKILL (Linux; elsewhere only if it is already dead)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # It may have died before the call above.
    if os.getppid() != launcher:
        sys.exit(f"penstock launch: the launcher (process {launcher}) is gone, so this task does not start.")


def main() -> None:
    """Runs the script in the arguments as a task of the launcher, whose process id and pipe come first."""
    launcher, pipe, script, *args = sys.argv[1:]
    end_with(int(launcher))
    progress.report_to(int(pipe))
    Program(Path(script), tuple(args)).run()


if __name__ == "__main__":
    main()
