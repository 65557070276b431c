"""The examples, run as a user runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
DEADLINE = 90


def run(*command, code=0, deadline=DEADLINE):
    """Runs a program and returns its output: stderr if it should fail."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=deadline, env=environment
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def accuracy_in(output):
    found = re.search(r"(\d+) steps in [\d.]+ s, test accuracy ([\d.]+)%", output)
    assert found, output
    return int(found[1]), float(found[2])


def line_in(output):
    found = re.search(r"y = ([\d.]+) x \+ ([\d.]+)", output)
    assert found, output
    return float(found[1]), float(found[2])


def test_digits_learns():
    flags = ["--steps=200", "--batch_size=64", "--learning_rate=0.003"]
    steps, accuracy = accuracy_in(run(EXAMPLES / "digits.py", *flags))
    assert steps == 200
    assert accuracy >= 95


def test_digits_on_a_cluster_learns(tmp_path):
    cluster = ["-m", "penstock", "launch", "--ps=1", "--workers=2", f"--log-dir={tmp_path / 'logs'}"]
    output = run(*cluster, EXAMPLES / "digits_cluster.py", "--steps=250", f"--train_dir={tmp_path / 'train'}")
    steps, accuracy = accuracy_in(output)
    assert steps == 250 and accuracy >= 95
    assert "[worker:1] done, after" in output
    files = {path.name.partition(".")[0] for path in (tmp_path / "train").iterdir()}
    assert files == {"checkpoint", "events", "graph", "loss", "model"}


def test_the_bar_of_the_cluster_says_starting_until_there_is_a_loss(monkeypatch):
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import digits_cluster
digits_cluster.FLAGS(["program", "--steps=4"])
with digits_cluster.Report() as report:
    print("no step yet")
    report(1, 0.5)
"""
    monkeypatch.setenv("PENSTOCK_TERMINAL_COLUMNS", "100")
    before, _, after = run("-c", code).partition("no step yet")
    assert "starting" in before and "nan" not in before
    assert "step 1/4  loss 0.500" in after


def test_a_task_without_a_cluster_says_how_to_start_one():
    assert "penstock launch examples/digits_cluster.py" in run(EXAMPLES / "digits_cluster.py", code=1)


@pytest.mark.timeout(240)
def test_a_jax_model_learns_in_one_process_and_on_a_cluster(tmp_path):
    program = [EXAMPLES / "jax_model.py", "--steps=200"]
    steps, accuracy = accuracy_in(run(*program))
    assert steps == 200 and accuracy >= 93
    cluster = ["-m", "penstock", "launch", "--ps=1", "--workers=2", f"--log-dir={tmp_path / 'logs'}"]
    output = run(*cluster, *program)
    steps, accuracy = accuracy_in(output)
    assert steps >= 200 and accuracy >= 90
    assert "[worker:1] step" in output


def test_linear_finds_the_line():
    assert line_in(run(EXAMPLES / "linear.py")) == pytest.approx((3, 2), abs=0.05)


def test_the_same_program_runs_as_a_tensorflow_script(tmp_path):
    """With `penstock run`, `import tensorflow` imports penstock; the program is unchanged otherwise."""
    script = tmp_path / "linear.py"
    source = (EXAMPLES / "linear.py").read_text()
    assert "import penstock.v1 as tf\n" in source
    script.write_text(source.replace("import penstock.v1 as tf\n", "import tensorflow as tf\n"))
    assert line_in(run("-m", "penstock", "run", script)) == pytest.approx((3, 2), abs=0.05)


@pytest.mark.timeout(240)
def test_cifar10_on_two_devices_learns_and_carries_on(tmp_path):
    flags = ["--towers=2", "--batch_size=16", f"--train_dir={tmp_path}"]
    losses = losses_in(run(EXAMPLES / "cifar10_multi_device.py", *flags, "--steps=41"))
    assert list(losses) == [0, 10, 20, 30, 40]
    assert losses[40] < losses[0] - 0.3  # after 20 steps a batch may still have nearly as much
    assert (tmp_path / "model.ckpt-41.index").exists()
    # One more step from the checkpoint, not from the beginning.
    assert losses_in(run(EXAMPLES / "cifar10_multi_device.py", *flags, "--steps=42"))[0] < losses[0] - 0.3


def test_programs_of_the_tutorial_find_their_cifar10_module(tmp_path, monkeypatch):
    script = tmp_path / "one_loss.py"
    script.write_text(
        "import tensorflow as tf, cifar10\n"
        "def main(_):\n"
        "    cifar10.maybe_download_and_extract()\n"
        "    images, labels = cifar10.distorted_inputs()\n"
        "    loss = cifar10.loss(cifar10.inference(images), labels)\n"
        "    with tf.train.MonitoredSession() as session:\n"
        "        print('step 0: loss %.3f' % session.run(loss))\n"
        "tf.app.run()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES), prepend=os.pathsep)
    flags = [f"--data_dir={tmp_path / 'data'}", "--batch_size=8", "--min_after_dequeue=20"]
    assert 3 < losses_in(run("-m", "penstock", "run", script, *flags))[0] < 6
    assert len(list((tmp_path / "data").glob("data_batch_*.bin"))) == 2


def losses_in(output):
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output)}
