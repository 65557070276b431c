"""The examples with Keras models on parameter servers, launched as a user launches them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from keras_models import keras  # noqa: F401  skips these tests where there is no Keras
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_examples import EXAMPLES, run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["ps_keras_fit", pytest.param("ps_custom_loop", marks=pytest.mark.long)])
def test_keras_models_learn_on_parameter_servers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_DIR", str(tmp_path / "train"))
    cluster = ["--ps=2", "--workers=2", "--chief", "--evaluator", "--grace=200", f"--log-dir={tmp_path / 'logs'}"]
    output = run("-m", "penstock", "launch", *cluster, EXAMPLES / f"{name}.py", deadline=280)
    assert "[chief:0] trained, final" in output
    if name == "ps_custom_loop":  # its table is cut in two, one part on each parameter server
        assert re.findall(r"part_(\d) \(4, 64\) is on /job:ps/replica:0/task:(\d)", output) == [("0", "0"), ("1", "1")]
    found = re.search(r"\[evaluator:0\] (\d) checkpoints evaluated, final accuracy ([\d.]+)", output)
    assert found and 1 <= int(found[1]) <= 5, output
    assert float(found[2]) > 0.95
    steps = [
        e.step for e in events_of(tmp_path / "train/log/evaluator/validation", "evaluation_accuracy_vs_iterations")
    ]
    assert len(steps) == int(found[1])
    assert steps == sorted(set(steps)) and steps[-1] == {"ps_keras_fit": 100, "ps_custom_loop": 80}[name]


def events_of(folder: Path, tag: str) -> list[Any]:
    """The events that a folder's files have under a tag."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return found.Tensors(tag)
