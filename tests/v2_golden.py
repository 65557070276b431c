"""Runs golden programs of the V2 API: small programs, each with what it gave in TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import penstock as tf

_FOLDER = Path(__file__).parent / "golden"


def skip_beside_a_gpu(row: str, names_devices: frozenset[str]) -> None:
    """Skips a program that shows the names of devices, which were those of a machine without a GPU."""
    if row in names_devices and jax.default_backend() != "cpu":
        pytest.skip("it shows the devices of a machine without a GPU")


def cases(path: str) -> list[dict[str, Any]]:
    """The rows of a golden file, such as `v2/eager`."""
    rows: list[dict[str, Any]] = json.loads((_FOLDER / f"{path}.json").read_text())["cases"]
    return rows


def err(function: Any, *args: Any, **kwargs: Any) -> str | None:
    """The name of the class of what a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:  # whatever it is, the program wants its name
        return type(error).__name__
    return None


def err_msg(function: Any, *args: Any, **kwargs: Any) -> list[str] | None:
    """The class and the first line of the message of what a call raises, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, (str(error).splitlines() or [""])[0]]
    return None


def run(case: dict[str, Any], folder: Path, namespace: dict[str, Any] | None = None) -> Any:
    """Runs a program as a module of its own, and returns the `result` that it leaves."""
    source = folder / "golden_program.py"
    source.write_text(case["program"])
    spec = importlib.util.spec_from_file_location("golden_program", source)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["golden_program"] = module
    vars(module).update(tf=tf, np=np, err=err, err_msg=err_msg, **(namespace or {}))
    np.random.seed(0)
    tf.random.set_seed(0)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["golden_program"]
    return getattr(module, "result", None)


def check(case: dict[str, Any], folder: Path, namespace: dict[str, Any] | None = None) -> None:
    """Runs a program, and asserts that it gives or raises what it did in TensorFlow."""
    if "raises" not in case:
        found = run(case, folder, namespace)
        assert agree(found, case["result"]), f"gave {view(found)!r}, TensorFlow {case['result']!r}"
        return
    expected = case["raises"]["exception"]
    try:
        found = run(case, folder, namespace)
    except Exception as error:
        kinds = [c.__name__ for c in type(error).__mro__]
        assert expected in kinds, f"raised {error!r}, TensorFlow {case['raises']}"
        return
    raise AssertionError(f"gave {view(found)!r}, TensorFlow raised {case['raises']}")


def view(value: Any) -> Any:
    """A result as JSON has it."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(k): view(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [view(v) for v in value]
    if isinstance(value, tf.SparseTensor):
        return {part: view(getattr(value, part)) for part in ("indices", "values", "dense_shape")}
    if isinstance(value, tf.RaggedTensor):
        return view(value.to_list())
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return view(value.tolist())
    if isinstance(value, np.generic):
        return view(value.item())
    if isinstance(value, complex):
        return {"re": value.real, "im": value.imag}
    if isinstance(value, tf.TensorShape):
        return None if value.rank is None else value.as_list()
    if isinstance(value, tf.DType):
        return value.name
    return value


def agree(found: Any, expected: Any) -> bool:
    """Tells if a result is the recorded one: numbers within float32's accuracy, messages by their class alone."""
    found = view(found)
    if _is_message(expected) and _is_message(found):
        return bool(found[0] == expected[0])
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(agree(f, e) for f, e in zip(found, expected, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(agree(found[k], expected[k]) for k in expected)
        )
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-6) or (found != found and expected != expected)
    return type(found) is type(expected) and bool(found == expected)


def _is_message(value: Any) -> bool:
    """Tells if a value is what `err_msg` gives: the name of a class of errors, and a message."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, str) for v in value)
        and value[0].endswith(("Error", "Exception", "Iteration", "Warning"))
    )
