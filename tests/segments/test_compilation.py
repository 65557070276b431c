"""The log of compilations, jax's events about them, and the thread that compiles in the background."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments import compilation
from penstock.segments.compilation import (
    Compilation,
    Compilations,
    Program,
    Total,
    elsewhere,
    in_background,
    noted,
    this_thread,
)
from penstock.segments.segment import Segment

DEADLINE = 60.0


@pytest.fixture(autouse=True)
def _own_program(nothing_on_disk, exact_tier):
    yield
    this_thread.program, this_thread.traced = None, (None, ())


def jitted():
    def segment(x):
        return x * 2 + 1

    return jax.jit(segment)


def test_a_log_counts_and_adds_up_by_segment():
    log = Compilations()
    for name, seconds in (("a", 1.0), ("b", 2.0), ("a", 0.5)):
        log.record(Compilation(name, "exact", "float32[2]", seconds, time.time() - seconds))
    assert (log.count, log.seconds) == (3, 3.5)
    assert log.by_segment() == {"a": Total(2, 1.5), "b": Total(1, 2.0)}
    assert [c.segment for c in log.recent()] == ["a", "b", "a"]


def test_a_log_tells_those_of_the_last_seconds():
    log = Compilations()
    log.record(Compilation("old", "exact", "", 1.0, time.time() - 100))
    log.record(Compilation("long", "exact", "", 100.0, time.time() - 100))
    assert [c.segment for c in log.recent(60)] == ["long"]


def test_a_log_keeps_the_last_records_and_all_totals(monkeypatch):
    monkeypatch.setattr(compilation, "MAX_RECORDS", 3)
    log = Compilations()
    for i in range(5):
        log.record(Compilation(f"s{i}", "exact", "", 1.0 + i, 0.0))
    assert [c.segment for c in log.recent()] == ["s2", "s3", "s4"]
    assert log.count == 5
    assert set(log.by_segment()) == {"s2", "s3", "s4"}  # the slowest ones


def test_threads_lose_no_records():
    log = Compilations()

    def add():
        for _ in range(200):
            log.record(Compilation("s", "exact", "", 1.0, 0.0))

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert (log.count, log.seconds, log.by_segment()["s"].count) == (1600, 1600.0, 1600)


def test_a_compilation_is_put_down_to_the_program_that_is_called():
    log, function = Compilations(), jitted()
    this_thread.program = Program(log, "fc/MatMul")
    function(np.ones(3))
    function(np.ones(3))
    function(np.ones(4))
    [first, second] = log.recent()
    assert (first.segment, first.kind, first.in_background, first.error) == ("fc/MatMul", "exact", False, "")
    assert first.seconds > 0 and abs(first.began - time.time()) < DEADLINE
    assert log.count == 2 and log.seconds == first.seconds + second.seconds


def test_a_program_may_be_compiled_ahead():
    log = Compilations()
    lowered = jitted().lower(np.ones(5))
    with Program(log, "fc", kind="padded").compiling():
        lowered.compile()
    assert [(c.segment, c.kind) for c in log.recent()] == [("fc", "padded")]
    assert this_thread.program is None


def test_shapes_of_a_trace_that_failed_are_not_those_of_the_next_program():
    log = Compilations()
    lowered = jitted().lower(np.ones(7))
    this_thread.traced = Program(log, "failed", ["a", "b"]), ["float32[1]", "float32[2]"]
    with Program(log, "fc", ["x"]).compiling():
        lowered.compile()
    assert [(c.segment, c.shapes) for c in log.recent()] == [("fc", "")]


def test_a_trace_that_is_not_compiled_is_not_that_of_the_program_called_last(monkeypatch):
    """Its shapes are not those of the program that is compiled next, which may have been traced before."""
    segments, make = [], Segment.__init__
    monkeypatch.setattr(Segment, "__init__", lambda self, *given: segments.append(self) or make(self, *given))
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
        session.run(x + y, {x: [1.0], y: [2.0]})
        session.run(x * 2.0, {x: [1.0]})
    two_inputs, last = segments
    assert this_thread.program is last.program
    jax.eval_shape(two_inputs.traced(()), [], [], [np.ones(3), np.ones(3)], [], None)
    assert this_thread.traced == (None, ())


def test_single_operations_of_jax_are_no_segments():
    log = Compilations()
    this_thread.program = Program(log, "fc")
    before = elsewhere().count
    jax.jit(lambda x: x + 17)(np.ones(19))
    assert log.count == 0
    assert elsewhere().count == before + 1
    assert elsewhere().recent()[-1].kind == "operation"


def test_a_segment_tells_its_worker_what_it_compiled():
    with tf.Graph().as_default(), tf.Session() as session:
        log = session._master.tasks.default.worker.compilations
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        y = tf.matmul(x, [[1.0], [2.0]], name="product")
        for rows in (3, 3, 4):
            session.run(y, {x: np.ones((rows, 2))})
        assert [(c.segment, c.kind, c.shapes) for c in log.recent()] == [
            ("product", "exact", "float32[3, 2]"),
            ("product", "exact", "float32[4, 2]"),
        ]


def test_values_from_elsewhere_need_no_other_code(tmp_path):
    # Large enough that the value is kept as a jax array.
    with tf.Graph().as_default(), tf.device("/cpu:0"), tf.Session() as session:
        w = tf.get_variable("w", [40, 40])
        train = w.assign_sub(0.1 * w)
        saver = tf.train.Saver()
        session.run(w.initializer)
        session.run(train.op)
        log = session._master.tasks.default.worker.compilations
        compiled = log.by_segment()["w/read"]
        saver.restore(session, saver.save(session, str(tmp_path / "model")))
        session.run(train.op)
        session.run(train.op)
        assert log.by_segment()["w/read"] == compiled


def test_a_program_is_told_which_placeholder_keeps_it_slow(monkeypatch):
    told = []
    monkeypatch.setattr(compilation.logging, "warning", told.append)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], name="batch/images")
        y = tf.placeholder(tf.float32, [], name="rate")
        z = x * y
        for size in range(1, 12):
            session.run(z, {x: np.ones(size), y: 1.0})
    [message] = told
    assert "shapes of 'batch/images', at last float32[6], float32[7], float32[8], float32[9];" in message


def test_what_a_thread_compiles_can_be_noted():
    this_thread.program = Program(Compilations(), "fc")
    function = jitted()
    with noted() as outer:
        with noted() as inner:
            function(np.ones(3))
        function(np.ones(4))
        function(np.ones(4))
    assert (len(inner), len(outer)) == (1, 1)
    function(np.ones(5))
    assert len(outer) == 1


def test_jobs_run_in_the_background_one_after_the_other():
    log, order, names = Compilations(), [], set()
    release = threading.Event()

    def job(i):
        release.wait(DEADLINE)
        order.append(i)
        names.add(threading.current_thread().name)
        with Program(log, f"s{i}").compiling():
            jitted().lower(np.ones(i + 1)).compile()

    for i in range(3):
        in_background(lambda i=i: job(i), f"s{i}", log)
    assert not compilation.wait_idle(0.0)
    release.set()
    assert compilation.wait_idle(DEADLINE)
    assert order == [0, 1, 2] and len(names) == 1
    assert [(c.segment, c.in_background) for c in log.recent()] == [("s0", True), ("s1", True), ("s2", True)]


def test_a_job_that_fails_is_recorded_and_the_next_one_runs(caplog):
    log, ran = Compilations(), threading.Event()

    def fail():
        raise ValueError("no such shape")

    in_background(fail, "fc/MatMul", log)
    in_background(ran.set, "next", log)
    assert compilation.wait_idle(DEADLINE) and ran.is_set()
    [record] = log.recent()
    assert (record.segment, record.error, record.in_background) == ("fc/MatMul", "ValueError: no such shape", True)


def test_the_background_keeps_nothing_alive():
    import gc
    import weakref

    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    in_background(lambda held=held: None, "s", Compilations())
    assert compilation.wait_idle(DEADLINE)
    del held
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(sys.platform != "linux", reason="priorities by thread are Linux's")
def test_the_background_has_a_low_priority():
    import os

    found = []
    in_background(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())), "s")
    assert compilation.wait_idle(DEADLINE)
    assert found == [compilation.BACKGROUND_PRIORITY]


_EXITS = """
import sys, threading
import jax, jax.numpy as jnp
from penstock.segments import compilation

began = threading.Event()

def slow(x):
    if {tracing}:
        began.set()
    for i in range({steps}):
        x = jnp.sin(x) @ jnp.cos(x).T + i
    return x

def job():
    if {tracing}:
        jax.jit(slow).lower(jnp.ones((64, 64)))
    else:
        lowered = jax.jit(slow).lower(jnp.ones((64, 64)))
        began.set()
        lowered.compile()
    print("finished")

compilation.in_background(job, "slow")
compilation.in_background(lambda: print("next"), "next")
assert began.wait(60)
print("leaving")
sys.exit(3)
"""


@pytest.mark.parametrize(("tracing", "steps"), [(True, 10**7), (False, 300)])
def test_a_process_may_end_while_its_background_compiles(tracing, steps):
    script = _EXITS.format(tracing=tracing, steps=steps)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE * 2)
    assert (done.returncode, done.stdout, done.stderr) == (3, "leaving\n", "")


_FINALISES = """
import sys, threading
from penstock.segments import compilation

began = threading.Event()

class Heavy:
    def __del__(self):
        for _ in range(100_000):
            began.set()

def job():
    while True:
        Heavy()

compilation.in_background(job, "heavy")
assert began.wait(60)
sys.exit(3)
"""


def test_a_process_ends_quietly_while_its_background_runs_finalisers():
    done = subprocess.run([sys.executable, "-c", _FINALISES], capture_output=True, text=True, timeout=DEADLINE * 2)
    assert (done.returncode, done.stderr) == (3, "")
