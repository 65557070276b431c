"""Small programs as people wrote them for TensorFlow 1, run unmodified: the loss must fall."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"

# The largest allowed loss at the end, as a share of the first.
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


# The same for programs of a parameter server and two workers, with the arguments they are launched with.
CLUSTERS = {
    "replicated_mlp, freely": (0.5, ["--train_steps=150"]),
    "replicated_mlp, in step": (0.5, ["--train_steps=100", "--sync"]),
}


def test_every_program_is_in_the_table():
    launched = {name.partition(",")[0] for name in CLUSTERS}
    assert {path.stem for path in PROGRAMS.glob("*.py")} == FALLS_TO.keys() | launched


def output_of(command, program, folder, *args):
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command, str(PROGRAMS / f"{program}.py"), f"--out={folder}", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses_in(output, task=""):
    losses = [float(value) for value in re.findall(rf"^{task}loss ([-+.\de]+)", output, re.MULTILINE)]
    assert len(losses) >= 2, output
    return losses


@pytest.mark.parametrize("program", sorted(FALLS_TO))
def test_program(program, tmp_path):
    losses = losses_in(output_of(["run"], program, tmp_path))
    assert losses[-1] < FALLS_TO[program] * losses[0], losses


@pytest.mark.parametrize("case", CLUSTERS)
def test_program_on_a_cluster(case, tmp_path):
    most, args = CLUSTERS[case]
    launch = ["launch", "--ps=1", "--workers=2", "--max-restarts=0", "--grace=60", f"--log-dir={tmp_path / 'logs'}"]
    output = output_of(launch, case.partition(",")[0], tmp_path, *args)
    losses = losses_in(output, r"\[worker:0\] ")
    assert losses[-1] < most * losses[0], losses
    wanted = int(re.search(r"\d+", args[0])[0])
    steps = {int(task): int(step) for task, step in re.findall(r"worker (\d): \d+ steps .* global step (\d+)", output)}
    # Two asynchronous workers may both be in their last step.
    assert set(steps) == {0, 1} and all(wanted <= step <= wanted + 1 for step in steps.values()), output
    assert (tmp_path / "log" / "checkpoint").exists()
