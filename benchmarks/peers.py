"""Compares penstock with TensorFlow: the same programs, on loopback, in turns; the best of several rounds counts.

make bench-peers TENSORFLOW=/path/to/python     a Python that has TensorFlow 2, in an environment of its own
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).with_name("peer_programs.py")
LIMIT = 240  # seconds for one run

# name, parameter servers, workers, arguments
RUNS = [
    ("mlp, 1 worker", 1, 1, ["--program", "mlp"]),
    ("mlp, 2 workers, asynchronous", 1, 2, ["--program", "mlp"]),
    ("mlp, 2 workers, synchronous", 1, 2, ["--program", "mlp", "--sync"]),
    ("bulk, 64 MB", 1, 1, ["--program", "bulk", "--mb", "64"]),
    ("bulk, 256 MB", 1, 1, ["--program", "bulk", "--mb", "256"]),
    ("embedding, 2 parameter servers", 2, 1, ["--program", "embedding", "--steps", "200"]),
    ("100 small variables", 1, 1, ["--program", "deep"]),
]


def free_addresses(count: int) -> list[str]:
    """Free addresses on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for each in sockets:
        each.close()
    return addresses


def run(library: str, python: str, ps: int, workers: int, arguments: list[str]) -> dict[str, float]:
    """Runs one job. Returns what its workers measured; rates of single workers are added up."""
    addresses = free_addresses(ps + workers)
    hosts = ["--ps_hosts", ",".join(addresses[:ps]), "--worker_hosts", ",".join(addresses[ps:])]
    environment = {**os.environ, "LIBRARY": library}
    tasks = [("ps", i) for i in range(ps)] + [("worker", i) for i in range(workers)]
    started = []
    try:
        for job, index in tasks:
            command = [python, str(PROGRAMS), "--job_name", job, "--task_index", str(index), *hosts, *arguments]
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
        measured = [json.loads(p.communicate(timeout=LIMIT)[0].splitlines()[-1]) for p in started[ps:]]
    finally:
        for process in started:
            process.kill()
            process.wait()
    figures = {"per_s": max(m["steps_per_s"] for m in measured)} if "steps_per_s" in measured[0] else {}
    if "first_step_s" in measured[0]:
        figures["starts_per_s"] = 1 / max(m["first_step_s"] for m in measured)
    for name in ("gb_per_s", "examples_per_s"):
        if name in measured[0]:
            figures[name] = sum(m[name] for m in measured)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", help="a Python with TensorFlow; without it only penstock is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="runs whose name begins so")
    args = parser.parse_args()
    pythons = {"penstock": sys.executable, **({"tensorflow": args.tensorflow} if args.tensorflow else {})}
    for name, ps, workers, arguments in RUNS:
        if not name.startswith(args.only):
            continue
        best: dict[str, dict[str, float]] = {library: {} for library in pythons}
        for _ in range(args.rounds):
            for library, python in pythons.items():
                for key, value in run(library, python, ps, workers, arguments).items():
                    best[library][key] = max(value, best[library].get(key, 0.0))
        for key, ours in best["penstock"].items():
            theirs = best.get("tensorflow", {}).get(key)
            ratio = f"   TensorFlow {theirs:10.2f}   ratio {ours / theirs:.2f}" if theirs else ""
            print(f"{name:32} {key:15} penstock {ours:10.2f}{ratio}", flush=True)


if __name__ == "__main__":
    main()
