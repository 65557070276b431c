"""Small programs as people wrote them for TensorFlow 1, run unmodified: the loss must fall."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"

# What is left of the loss at the end, at most.
FALLS_TO = {
    "autoencoder": 0.5,
    "cnn_monitored": 0.6,
    "linear_regression": 0.1,
    "mnist_softmax": 0.3,
    "rnn_classifier": 0.7,
    "seq2seq": 0.4,
    "slim_model": 0.5,
    "tfrecords_supervisor": 0.8,
    "word2vec": 0.8,
}


def test_every_program_is_in_the_table():
    assert {path.stem for path in PROGRAMS.glob("*.py")} == set(FALLS_TO)


@pytest.mark.parametrize("program", sorted(FALLS_TO))
def test_program(program, tmp_path):
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", str(PROGRAMS / f"{program}.py"), f"--out={tmp_path}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(value) for value in re.findall(r"^loss ([-+.\de]+)", done.stdout, re.MULTILINE)]
    assert len(losses) >= 2, done.stdout
    assert losses[-1] < FALLS_TO[program] * losses[0], losses
