"""Padded programs on disk: a second process neither traces nor compiles them, and computes the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from penstock.jaxprs.digest import NoDigest, digest
from penstock.segments import stored_programs
from penstock.segments.program_cache import ProgramCache
from penstock.segments.stored_programs import StoredPrograms

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 120.0

# A program with any number of rows, an update, a loop and random numbers; it counts the padded programs that it makes.
_PROGRAM = """
import json
import sys
import numpy as np
import penstock.v1 as tf
from penstock.segments import traced
from penstock.segments.compilation import wait_idle

times = 0
made = traced.padded

def padded(*arguments):
    global times
    times += 1
    return made(*arguments)

traced.padded = padded
tf.set_random_seed(1)
x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable("w", [3, 3])
_, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.nn.relu(tf.matmul(h, w))), (0, x))
loss = tf.reduce_mean(tf.nn.dropout(h, keep_prob=0.5) ** 2)
train = tf.train.AdamOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for rows in range(2, 8):
        session.run(train, {x: np.ones((rows, 3))})
        assert wait_idle(60)
    print(json.dumps([times, "scipy.linalg" in sys.modules, session.run(w).tolist()]))
"""


def result(folder: Path) -> Any:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {"PYTHONPATH": paths, "PENSTOCK_CACHE_DIR": str(folder), "PENSTOCK_TIER": "padded"}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **settings}, timeout=DEADLINE)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_second_process_does_not_trace_padded_programs(tmp_path: Path) -> None:
    traced, _, trained = result(tmp_path)
    assert traced > 0
    again, has_linear_algebra, result_again = result(tmp_path)
    assert not again and not has_linear_algebra
    np.testing.assert_allclose(result_again, trained, rtol=1e-5)  # some steps of the first process ran in NumPy


@pytest.mark.parametrize("function", [jnp.tanh, jnp.linalg.cholesky], ids=["plain", "lapack"])
def test_a_stored_program_computes_as_the_one_it_was_made_of(
    function: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ProgramCache(str(tmp_path))
    monkeypatch.setattr(stored_programs, "kept", lambda: cache)
    matrix = np.array([[2, 1], [1, 2]], np.float32)
    jaxpr = jax.make_jaxpr(lambda unused, x: [function(x), x + 1])(matrix, matrix)
    forms = [jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)] * 2

    def made(*leaves: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*leaves)

    first = StoredPrograms(jaxpr, is_used=True)
    assert first.function((2,), made, forms) is not made and first.bounds() == []
    first.keep((2,))
    second = StoredPrograms(jaxpr, is_used=True)
    assert second.bounds() == [(2,)]
    stored = jax.jit(second.function((2,), _not_called, forms))
    with jax.default_device(jax.devices("cpu")[0]):
        for found, expected in zip(stored(matrix, matrix), made(matrix, matrix), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6)


def _not_called(*leaves: Any) -> Any:
    raise AssertionError("The program is stored.")


def of(function: Any, *arguments: Any) -> str:
    return digest(jax.make_jaxpr(function)(*arguments))


def test_equal_jaxprs_have_one_digest_and_others_do_not() -> None:
    x = np.ones(3, np.float32)
    same = [lambda x: jnp.sin(x) + 1, lambda other: jnp.sin(other) + 1]
    assert of(same[0], x) == of(same[1], x)
    others = [
        of(same[0], x.astype(np.int32)),
        of(same[0], np.ones(4, np.float32)),
        of(lambda x: jnp.sin(x) + 2, x),
        of(lambda x: jnp.cos(x) + 1, x),
        of(lambda x: x + jnp.sin(x), x),
        of(lambda x: x + np.arange(3), x),
        of(lambda x: x + np.arange(3) * 2, x),
        of(lambda x: x.reshape(1, 3), x),
        of(lambda x: x.reshape(3, 1), x),
        of(lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), x),
        of(lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x), x),
        of(lambda x: jax.nn.relu(x), x),
    ]
    assert len({of(same[0], x), *others}) == 1 + len(others)


def test_a_function_inside_has_no_digest() -> None:
    with pytest.raises(NoDigest):
        of(lambda x: jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((), np.float32), x), np.float32(1))
