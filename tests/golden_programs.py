"""Golden programs: small programs and their results in TensorFlow.

A test loads a file under `tests/golden/`, runs each program with its own `tf` and compares:

    @pytest.mark.parametrize("row", load("semantics/queues.json")["cases"], ids=lambda row: row["id"])
    def test_queues(row):
        check(row, tf)
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden"
# Labels out of range are an error on a CPU, where these were recorded, and NaN on a GPU.
ON_CPU = ("runtime_sparse_xent_range", "sparse_xent_labels")


def load(relative_path: str) -> dict[str, Any]:
    """The golden file at `relative_path` under `tests/golden/`."""
    data: dict[str, Any] = json.loads((GOLDEN / relative_path).read_text())
    return data


def parameters(relative_path: str, later: dict[str, str]) -> list[Any]:
    """The programs of a golden file as parameters of a test.

    `later` has the reasons why rows cannot agree yet. Such a row must fail: once it agrees, remove it from the table.
    """
    rows = {row["id"]: row for row in load(relative_path)["cases"]}
    assert later.keys() <= rows.keys(), f"{relative_path} has no {sorted(later.keys() - rows.keys())}"
    marks = {name: [pytest.mark.xfail(strict=True, reason=f"needs {why}")] for name, why in later.items()}
    return [pytest.param(row, id=name, marks=marks.get(name, [])) for name, row in rows.items()]


def err(function: Any, *args: Any, **kwargs: Any) -> str | None:
    """The class name of the call's exception, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
    return None


def err_msg(function: Any, *args: Any, **kwargs: Any) -> list[str] | None:
    """The class name and first message line of the call's exception, or None."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error).split("\n", 1)[0]]
    return None


def run_program(row: dict[str, Any], tf: Any, **names: Any) -> Any:
    """Runs the program with `tf` (and `names`) in scope. Returns its variable `result`, or None."""
    namespace: dict[str, Any] = {"tf": tf, "np": np, "err": err, "err_msg": err_msg, **names}
    np.random.seed(0)
    with contextlib.ExitStack() as scopes:
        if hasattr(tf, "Graph"):
            scopes.enter_context(tf.Graph().as_default())
        if row["id"] in ON_CPU:
            scopes.enter_context(tf.device("/cpu:0"))
        exec(compile(row["program"], f"<golden program {row['id']}>", "exec"), namespace)
    return namespace.get("result")


def view(value: Any) -> Any:
    """`value` as the golden files write it: tuples and arrays as lists, bytes as latin-1, dtypes as names."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {str(view(key)): view(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [view(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(view, value))
    if isinstance(value, np.generic):
        return str(value) if value.dtype.kind == "V" else view(value.item())
    if isinstance(value, np.ndarray):
        return view(value.astype(np.float64).tolist() if value.dtype.kind == "V" else value.tolist())
    if isinstance(value, complex):
        return {"re": value.real, "im": value.imag}
    if hasattr(value, "as_list"):  # a TensorShape
        return None if value.rank is None else value.as_list()
    if hasattr(value, "as_datatype_enum"):
        return value.name
    return str(value)


def difference(actual: Any, expected: Any, where: str = "result", rtol: float = 1e-5, atol: float = 1e-6) -> str | None:
    """Describes how two JSON views differ, or None. A `[class name, message]` pair matches by class name alone."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if actual.keys() != expected.keys():
            return f"{where}: keys {sorted(actual)} instead of {sorted(expected)}"
        pairs = [(f"{where}[{key!r}]", actual[key], expected[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(actual) != len(expected):
            return f"{where}: {len(actual)} items instead of {len(expected)}: {actual!r} instead of {expected!r}"
        if _is_error(expected) and _is_error(actual):
            actual, expected = actual[:1], expected[:1]
        pairs = [(f"{where}[{i}]", a, e) for i, (a, e) in enumerate(zip(actual, expected, strict=True))]
    elif _is_number(expected) and _is_number(actual):
        same = actual == expected or math.isclose(actual, expected, rel_tol=rtol, abs_tol=atol)
        same = same or (math.isnan(actual) and math.isnan(expected))
        return None if same else f"{where}: {actual!r} instead of {expected!r}"
    else:
        # bool is an int in Python, but True does not match 1.
        # TensorFlow's class is called SymbolicTensor since 2.14, and the name shows in what programs print.
        wanted = expected.replace("SymbolicTensor", "Tensor") if isinstance(expected, str) else expected
        same = type(actual) is type(expected) and actual == wanted
        return None if same else f"{where}: {actual!r} instead of {expected!r}"
    return next((found for name, a, e in pairs if (found := difference(a, e, name, rtol, atol))), None)


def check(row: dict[str, Any], tf: Any, atol: float = 1e-6, **names: Any) -> None:
    """Runs the program of `row`; asserts that it returns or raises what TensorFlow did. `atol` as in `difference`."""
    if "raises" in row:
        expected = row["raises"]["exception"]
        try:
            result = run_program(row, tf, **names)
        except Exception as error:
            assert type(error).__name__ == expected, f"{row['id']}: raised {error!r} instead of {expected}"
            return
        raise AssertionError(f"{row['id']}: gave {result!r} instead of raising {expected}")
    found = difference(view(run_program(row, tf, **names)), row.get("result"), atol=atol)
    assert found is None, f"{row['id']}: {found}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_error(value: list[Any]) -> bool:
    """True if `value` is a result of `err_msg`, whose messages are not compared."""
    return len(value) == 2 and all(isinstance(v, str) for v in value) and value[0].endswith(("Error", "Exception"))
