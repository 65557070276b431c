"""Compiled programs on disk: the next process finds them; they are written atomically, bounded, and checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.errors import InvalidArgumentError
from penstock.segments import program_cache
from penstock.segments.program_cache import ProgramCache

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 120.0

# A program with random numbers, a constant that is an argument, control flow, an update and a slot.
_PROGRAM = """
import json
import numpy as np
import penstock.v1 as tf
from penstock.segments.compilation import elsewhere, wait_idle

tf.set_random_seed(1)
x = tf.placeholder(tf.float32, [None, 3])
w = tf.get_variable("w", [3, 2])
h = tf.nn.dropout(tf.matmul(x, w), keep_prob=0.5)
h = tf.cond(tf.reduce_sum(x) > 0, lambda: h, lambda: -h) + tf.reduce_sum(tf.constant(np.arange(5000.0, dtype="f")))
loss = tf.reduce_mean(h * h)
train = tf.train.AdamOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(3):
        value, _ = session.run([loss, train], {x: np.ones((4, 3))})
    log = session._master.tasks.default.worker.compilations
    kept = session.run(w)
assert wait_idle(60)
print(json.dumps([log.count + elsewhere().count, log.loaded + elsewhere().loaded, kept.tolist()]))
"""

_SMALL_PROGRAM = """
import json
import penstock.v1 as tf

with tf.Session() as session:
    session.run(tf.tanh(tf.placeholder_with_default([1.0, 2.0], [None])))
    log = session._master.tasks.default.worker.compilations
print(json.dumps([log.count, log.loaded, []]))
"""


def start(folder, program=_PROGRAM, **environment):
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    settings = {**os.environ, "PYTHONPATH": paths, "PENSTOCK_CACHE_DIR": str(folder)}
    settings |= {"PENSTOCK_TIER": "exact", **environment}
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings)


def result(process):
    """The numbers of programs compiled and loaded, the variable at the end, and the output."""
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return (*json.loads(out), err)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder that a first process has filled, a copy of it, and the process's result."""
    folder = tmp_path_factory.mktemp("programs")
    made = result(start(folder))
    return folder, shutil.copytree(folder, tmp_path_factory.mktemp("copy") / "programs"), made


@pytest.fixture
def filled(first):
    """The folder restored from its copy. It must have the same path, which is part of jax's keys."""
    folder, copy, _ = first
    shutil.rmtree(folder)
    return shutil.copytree(copy, folder)


def test_a_second_process_compiles_nothing(first, filled):
    compiled, loaded, value, _ = first[-1]
    assert compiled > 0
    assert result(start(filled)) == (0, compiled + loaded, value, "")


def test_processes_that_begin_together_share_a_folder(first, tmp_path):
    together = [start(tmp_path) for _ in range(2)]
    assert all(result(process)[2:] == first[-1][2:] for process in together)
    assert result(start(tmp_path))[0] == 0


def test_damaged_programs_are_compiled_anew(first, filled):
    files = sorted(filled.glob("*-cache"))
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-10])
    for file in files[2:]:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.write_bytes(data)
    compiled, _, value, said = result(start(filled))
    assert (compiled, value) == (len(files), first[-1][2])
    assert said.count("is damaged") == len(files) and "Traceback" not in said
    assert result(start(filled))[0] == 0


def test_it_can_be_turned_off(tmp_path):
    compiled, loaded, _, _ = result(start("", _SMALL_PROGRAM, HOME=str(tmp_path)))
    assert compiled > 0 and loaded == 0
    assert [path.name for path in tmp_path.iterdir() if path.name != ".nv"] == []  # a folder of the GPU driver


def test_a_folder_that_cannot_be_used_is_told_of_once(tmp_path):
    (tmp_path / "file").write_text("")
    compiled, _, _, said = result(start(tmp_path / "file" / "folder", _SMALL_PROGRAM))
    assert compiled > 0 and said.count("PENSTOCK_CACHE_DIR") == 1


def test_the_limit_holds_at_the_start(filled):
    for i in range(20):
        (filled / f"old-{i}-cache").write_bytes(bytes(1 << 20))
        os.utime(filled / f"old-{i}-cache", (1e9, 1e9))
    assert result(start(filled, PENSTOCK_CACHE_BYTES=str(5 << 20)))[0] == 0
    assert sum(file.stat().st_size for file in filled.iterdir()) <= 5 << 20


def test_those_used_least_recently_go_first(tmp_path):
    cache = ProgramCache(str(tmp_path))
    for i, key in enumerate("abcd"):
        cache.put(key, bytes(100))
        file = next(tmp_path.glob(f"{key}-*"))
        os.utime(file, (1e9 + i, 1e9 + i))
    assert cache.get("a") == bytes(100)
    ProgramCache(str(tmp_path), 250).trim()
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, False, True]


def test_what_was_left_unfinished_goes(tmp_path):
    old, new = tmp_path / "x-unfinished", tmp_path / "y-unfinished"
    other = tmp_path / "notes.txt"
    for file in (old, new, other):
        file.write_text("")
        os.utime(file, (1e9, 1e9))
    os.utime(new, (time.time(), time.time()))
    ProgramCache(str(tmp_path), 0).trim()
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_readers_find_all_of_it_or_nothing(tmp_path):
    caches = [ProgramCache(str(tmp_path)) for _ in range(4)]
    value = os.urandom(1 << 20)
    found: list[bytes | None] = []

    def use(cache):
        for i in range(20):
            cache.put("key", value)
            found.append(cache.get("key"))
            if i % 5 == 4:
                cache.trim()

    threads = [threading.Thread(target=use, args=(cache,)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(found) == 80 and all(each == value for each in found)
    assert [file.name.endswith("-cache") for file in tmp_path.iterdir()] == [True]


def test_a_folder_that_goes_away_is_told_of_once(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(program_cache.logging, "warning", lambda *args: told.append(args))
    cache = ProgramCache(str(tmp_path / "folder"))
    (tmp_path / "folder").rmdir()
    for _ in range(3):
        cache.put("key", b"value")
        assert cache.get("key") is None
    assert len(told) == 1


def test_a_limit_is_a_number(monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "1 GB")
    with pytest.raises(InvalidArgumentError, match=r"PENSTOCK_CACHE_BYTES must be .* received '1 GB'"):
        program_cache._max_bytes()


def test_tasks_with_other_numbers_of_threads_compile_for_themselves(tmp_path):
    """XLA divides large work among the threads that it had when it compiled."""
    few, many = (start(tmp_path, _SMALL_PROGRAM, NPROC=threads) for threads in ("1", "3"))
    assert result(few)[1] == result(many)[1] == 0
    assert result(start(tmp_path, _SMALL_PROGRAM, NPROC="3"))[1] > 0


@pytest.mark.parametrize(("before", "threads"), [("jax.devices()", "None"), ("", "1")])
def test_threads_are_not_chosen_once_xla_has_started(before, threads):
    """A task with threads that XLA does not have would keep its programs in another's place."""
    program = f"import os, jax; {before}\nfrom penstock.worker.devices import use_threads\nuse_threads(1)\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment.pop("NPROC", None)
    command = [sys.executable, "-c", program + "print(os.environ.get('NPROC'))"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert ran.stdout.strip() == threads
