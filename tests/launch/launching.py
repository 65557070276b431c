"""Common parts of the launcher's tests: the beginning of each script, and waiting for the end."""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 100
# For tasks: this penstock, and whatever else the tests were given.
PATHS = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

TASK = """
import json, os, signal, subprocess, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
me, index = task["type"], task["index"]
here = os.path.dirname(__file__)
def wait():
    print("waiting", flush=True)
    time.sleep(600)
def tell(what):
    "Tell the other tasks; False if that was done before."
    try:
        open(f"{here}/{what}.told", "x").close()
        return True
    except FileExistsError:
        return False
def begin():
    "What a server and a session do."
    from penstock import progress
    progress.under_way()
def hear(what):
    while not os.path.exists(f"{here}/{what}.told"): time.sleep(0.02)
"""


def marked(mark):
    """The running processes that have the mark in their environment."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                if mark.encode() in (each / "environ").read_bytes():
                    found.append((each.name, (each / "cmdline").read_bytes()))
            except OSError:
                pass
    return found


def finish(process):
    """Exit code, lines on stdout in order of their text, stderr."""
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, sorted(out.splitlines()), err


def wait_until(found, seconds=DEADLINE):
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return result
