"""Errors tell where the failed op was defined, and tracebacks show only the program's lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock import frames

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60
HINT = "(Frames of penstock and jax are left out. PENSTOCK_FULL_TRACEBACK=1 shows them.)\n"


@pytest.fixture(autouse=True)
def own_graph() -> Any:
    with tf.Graph().as_default():
        yield


def place(mark: str, name: str) -> str:
    """The line of this file that ends with a comment, in the form of error messages."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return frames.place(FrameSummary(__file__, found, name, lookup_line=False))


def fails(fetch: Any, feeds: dict[Any, Any]) -> tf.errors.OpError:
    with tf.Session() as session, pytest.raises(tf.errors.OpError) as caught:
        session.run(fetch, feeds)
    return caught.value


def product(x: Any, w: Any) -> Any:
    return tf.matmul(x, w, name="product")  # here


SMALL, LARGE = np.ones([2, 3], np.float32), np.ones([4, 5], np.float32)


def matrices() -> tuple[Any, Any, dict[Any, Any]]:
    x, w = (tf.placeholder(tf.float32, [None, None]) for _ in range(2))
    return x, w, {x: SMALL, w: LARGE}


def test_an_op_knows_the_frames_that_made_it() -> None:
    op = product(tf.ones([2, 3]), tf.ones([3, 2])).op
    *_, caller, last = op.traceback
    assert (last.filename, frames.place(last)) == (__file__, place("here", "product"))
    assert last.line == 'return tf.matmul(x, w, name="product")  # here'
    assert caller.name == "test_an_op_knows_the_frames_that_made_it"
    assert not [f for f in op.traceback if f.filename.startswith(str(ROOT / "penstock") + os.sep)]
    # Only a bounded number of frames of a deep stack is kept: the innermost ones.
    deep = recurse(100)
    assert len(deep.traceback) == frames.MOST_FRAMES
    assert deep.traceback[-1].name == "recurse"


def recurse(depth: int) -> Any:
    return recurse(depth - 1) if depth else tf.constant(1.0).op


def test_an_error_says_where_its_op_is_defined() -> None:
    x, w, feeds = matrices()
    error = fails(product(x, w), feeds)
    text = str(error)
    assert f"The op 'product' is defined at {place('here', 'product')}\n    return tf.matmul(x, w" in text
    assert "called at" in text and "test_an_error_says_where_its_op_is_defined" in text
    assert "defined at" not in error.message
    placeholder = str(fails(x + 1.0, {}))
    assert "The op 'Placeholder' is defined at" in placeholder and ", in <genexpr>" in placeholder


def in_loop(x: Any, w: Any) -> Any:
    return tf.while_loop(
        lambda i, _: i < 2,
        lambda i, _: (i + 1, product(x, w)),
        [0, tf.ones([2, 5])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None])],
    )


BODIES = {
    "cond": lambda x, w: tf.cond(tf.placeholder_with_default(True, []), lambda: product(x, w), lambda: x),
    "while_loop": in_loop,
    "map_fn": lambda x, w: tf.map_fn(lambda _: product(x, w), tf.placeholder_with_default([1.0, 2.0], [None])),
    "a cond in a loop": lambda x, w: tf.map_fn(
        lambda row: tf.cond(row > 0, lambda: product(x, w), lambda: w), tf.placeholder_with_default([1.0, 2.0], [None])
    ),
}


@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
def test_an_op_in_a_body_is_found_there(make: Any) -> None:
    x, w, feeds = matrices()
    tf.identity(x, name="product")  # a node of the same name outside is not the one in the body
    text = str(fails(make(x, w), feeds))
    assert f"The op 'product' is defined at {place('here', 'product')}" in text, text


@pytest.mark.parametrize("on_host", [False, True])
def test_a_check_in_a_body_is_found_there(on_host: bool) -> None:
    def body(i: Any, total: Any) -> Any:
        if on_host:
            total = tf.reshape(tf.py_func(lambda value: value, [total], tf.float32), [])
        return i + 1, tf.gather([1.0, 2.0], i + 5, name="picked") + total  # picked here

    text = str(fails(tf.while_loop(lambda i, _: i < 2, body, [tf.placeholder_with_default(0, []), 0.0]), {}))
    assert f"The op 'picked' is defined at {place('picked here', 'body')}" in text, text


def test_the_function_of_a_dataset_is_found() -> None:
    def picked(i: Any) -> Any:
        return tf.gather([1.0, 2.0], i + 7)  # of a dataset

    element = tf.data.Dataset.range(3).map(picked).make_one_shot_iterator().get_next()
    assert f"is defined at {place('of a dataset', 'picked')}" in str(fails(element, {}))


def test_a_gradient_names_the_forward_op() -> None:
    p = tf.placeholder(tf.float32, [None, 2])
    flat = tf.reshape(p, [-1, 2], name="flat")  # forward
    wrong = tf.placeholder_with_default(np.ones([3, 2], np.float32), [None, 2])
    found = tf.gradients(flat, p, grad_ys=wrong)[0]  # backward
    text = str(fails(found, {p: np.ones([2, 2])}))
    name = "test_a_gradient_names_the_forward_op"
    of = f"(gradient of 'flat', defined at {place('forward', name)})"
    assert f"is defined at {place('backward', name)} {of}" in text, text
    assert found.op._original_op is flat.op and flat.op._original_op is None


def test_an_error_that_is_caught_has_few_frames_of_the_engine(monkeypatch: Any) -> None:
    monkeypatch.setenv("PENSTOCK_FULL_TRACEBACK", "0")
    x, w, feeds = matrices()
    y = product(x, w)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError) as run:
        session.run(y, feeds)
    assert [frame.name for frame in run.traceback[1:]] == [] and run.value.__cause__ is None

    def broken(op: Any) -> str:
        raise KeyError(op.name)

    with pytest.raises(ValueError) as built:
        tf.matmul(tf.ones([2, 3]), tf.ones([4, 5]))
    assert [frame.name for frame in built.traceback[1:]] == ["matmul"] and built.value.__cause__ is None
    with pytest.raises(KeyError) as inside, tf.device(broken):
        tf.no_op()
    assert [frame.name for frame in inside.traceback[-2:]] == ["no_op", "broken"]


# ------------------------------------------------------------------------------- what a program prints when it fails

SCRIPT = """\
import sys
import numpy as np
import penstock.v1 as tf

def build_model(x, w):
    return tf.matmul(x, w, name="product")

def broken(value):
    raise KeyError("of the program")

x = tf.placeholder(tf.float32, [None, 3])
w = tf.placeholder(tf.float32, [None, None])
y = build_model(x, w)
if sys.argv[1] == "build":
    tf.matmul(x, tf.ones([4, 5]), name="wrong")
elif sys.argv[1] == "monitored":
    with tf.train.MonitoredSession() as session:
        session.run(y, {x: np.ones([2, 3]), w: np.ones([4, 5])})
elif sys.argv[1] == "thread":
    from threading import Thread
    thread = Thread(target=lambda: tf.get_variable("v", [2]) + tf.get_variable("v", [3]), name="worker")
    thread.start()
    thread.join()
    sys.exit(1)
with tf.Session() as session:
    if sys.argv[1] == "run":
        session.run(y, {x: np.ones([2, 3]), w: np.ones([4, 5])})
    session.run(tf.py_func(broken, [1.0], tf.float32, name="python"))
"""
PRODUCT = (
    "penstock.errors.InvalidArgumentError: MatMul 'product' with inputs of shape [2, 3], [4, 5]: Matrix "
    "size-incompatible: In[0]: [2, 3], In[1]: [4, 5]\n\nThe op 'product' is defined at train.py:6, in build_model\n"
    '    return tf.matmul(x, w, name="product")\n  called at train.py:13, in <module>\n'
)


def trace(path: Path, line: int, code: str, name: str = "<module>") -> str:
    return f'Traceback (most recent call last):\n  File "{path}", line {line}, in {name}\n    {code}\n'


def run_script(tmp_path: Path, kind: str, full: str = "0", entry: tuple[str, ...] = ()) -> str:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT), *sys.path])
    env = {**os.environ, "PYTHONPATH": paths, "PENSTOCK_FULL_TRACEBACK": full, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *entry, str(script), kind]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 1
    # Python 3.13 marks the failing part of a line.
    return "".join(line for line in done.stderr.splitlines(True) if set(line.strip()) - set("^~") or line == "\n")


@pytest.mark.parametrize("entry", [(), ("-m", "penstock", "run")], ids=["python", "penstock run"])
def test_a_program_sees_its_own_lines_and_the_error(tmp_path: Path, entry: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    call = "session.run(y, {x: np.ones([2, 3]), w: np.ones([4, 5])})"
    assert run_script(tmp_path, "run", entry=entry) == trace(script, 27, call) + PRODUCT + HINT


def test_a_monitored_session_and_a_build_error_show_their_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    call = "session.run(y, {x: np.ones([2, 3]), w: np.ones([4, 5])})"
    assert run_script(tmp_path, "monitored").endswith(trace(script, 18, call) + PRODUCT + HINT)
    built = "ValueError: Dimensions must be equal, but are 3 and 4 for 'wrong' (op: 'MatMul') with input shapes: "
    call = 'tf.matmul(x, tf.ones([4, 5]), name="wrong")'
    assert run_script(tmp_path, "build") == trace(script, 15, call) + built + "[?,3], [4,5].\n" + HINT


def test_an_error_of_the_program_inside_the_engine_keeps_its_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = run_script(tmp_path, "python")
    assert text.startswith(trace(script, 9, 'raise KeyError("of the program")', "broken"))
    assert trace(script, 28, 'session.run(tf.py_func(broken, [1.0], tf.float32, name="python"))') in text
    assert text.count("Traceback") == 2 and "penstock/" not in text.replace(str(tmp_path), "")


def test_a_thread_shows_the_lines_of_the_program_too(tmp_path: Path) -> None:
    text = run_script(tmp_path, "thread")
    assert text.startswith("Exception in thread worker:\n") and text.endswith(HINT)
    assert f'  File "{tmp_path / "train.py"}", line 21, in <lambda>\n' in text
    assert "penstock/" not in text.replace(str(tmp_path), "")


def test_all_frames_are_shown_if_asked_for(tmp_path: Path) -> None:
    text = run_script(tmp_path, "run", full="1")
    assert str(ROOT / "penstock" / "session.py") in text and "direct cause" in text and HINT not in text
