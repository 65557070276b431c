"""How long training pauses while parameter servers and workers join and leave: with 100 MB of state, on loopback.

python benchmarks/elastic.py                    1 to 3 to 2 parameter servers, 2 to 4 to 3 workers
python benchmarks/elastic.py --megabytes 400

`held` is how long the first parameter server has steps held. `gap` is the longest time from the end of a step of the
chief to that of its next one around the change: it includes that the graphs are placed anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "cluster" / "elastic.py"
LIMIT = 300.0  # seconds for anything that should happen
AFTER = 15  # steps after a change that count for it


def steps(log: Path) -> list[float]:
    """The times between the steps of a worker so far."""
    text = log.read_text() if log.exists() else ""
    return [float(each) for each in re.findall(r"^step \d+ loss \S+ after ([\d.]+)$", text, re.M)]


def wait_for_steps(log: Path, count: int) -> list[float]:
    """Waits until a worker has made that many steps."""
    end = time.monotonic() + LIMIT
    while len(found := steps(log)) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"'{log}' has {len(found)} of {count} steps after {LIMIT:g} s.")
        time.sleep(0.05)
    return found


def measure(sync: bool, megabytes: int, sequence: list[tuple[int, int]]) -> None:
    """Trains, and scales the job to each pair of numbers in turn."""
    kind = "synchronous" if sync else "asynchronous"
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        settings = {"folder": folder, "sync": sync, "megabytes": megabytes, "checkpoints": False}
        env = {**os.environ, "XDG_RUNTIME_DIR": folder, "ELASTIC": json.dumps(settings), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "penstock"]
        launch = [*command, "launch", "--ps", "1", "--workers", "2", "--log-dir", str(logs), str(PROGRAM)]
        nowhere = subprocess.DEVNULL
        with subprocess.Popen(launch, env=env, stdout=nowhere, stderr=nowhere) as job:
            try:
                chief = logs / "worker-0.log"
                usual = sorted(wait_for_steps(chief, 60)[30:])
                print(f"{kind}, {megabytes} MB: a step takes {1000 * usual[len(usual) // 2]:.0f} ms", flush=True)
                for ps, workers in sequence:
                    before = len(steps(chief))
                    scale = [*command, "scale", "--ps", str(ps), "--workers", str(workers)]
                    done = subprocess.run(scale, env=env, capture_output=True, text=True, timeout=LIMIT, check=True)
                    after = len(steps(chief))
                    gap = max(wait_for_steps(chief, after + AFTER)[before : after + AFTER])
                    said = done.stdout.splitlines()[-1]
                    held = re.search(r"held for ([\d.]+)", said)
                    moved = re.search(r"\(([\d.]+ MB)\)", said)
                    print(
                        f"  to {ps} parameter servers, {workers} workers: moved {moved[1] if moved else 'nothing':>8}, "
                        f"held {held[1] if held else '?'} s, gap {gap:.2f} s",
                        flush=True,
                    )
            finally:
                job.terminate()
                job.wait(LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    args = parser.parse_args()
    for sync in (False, True):
        measure(sync, args.megabytes, [(3, 2), (2, 2), (2, 4), (2, 3), (1, 2)])


if __name__ == "__main__":
    main()
