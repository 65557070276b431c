"""Work in parts is done once, by one thread or two, and its errors are raised."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import cores
from penstock.cores import in_parts

SECONDS = 30  # a deadline that only a hang reaches


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cores", lambda: 2)


@given(st.integers(0, 50), st.integers(0, 60), st.sampled_from([1, 2]))
def test_each_item_is_in_one_part(length: int, parts: int, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cores, "cores", lambda: count)
        found: list[tuple[int, int]] = []
        in_parts(lambda begin, end: found.append((begin, end)), length, parts)
    assert sorted(i for begin, end in found for i in range(begin, end)) == list(range(length))
    assert len(found) <= max(1, parts)


def test_two_threads_work_at_once(two_cores: None) -> None:
    both = threading.Barrier(2)
    in_parts(lambda begin, end: both.wait(SECONDS), 2, 2)
    assert not both.broken


def test_nobody_waits_for_a_busy_helper(two_cores: None) -> None:
    """Nor does it hold arrays of what is done: an update would have to copy a variable that somebody refers to."""
    started, go_on = threading.Barrier(3), threading.Event()
    array = np.zeros(4)
    held = weakref.ref(array)

    def occupy(begin: int, end: int) -> None:
        started.wait(SECONDS)
        assert go_on.wait(SECONDS)

    other = threading.Thread(target=in_parts, args=(occupy, 2, 2))
    other.start()
    started.wait(SECONDS)
    threads: list[int] = []

    def work(begin: int, end: int, array: np.ndarray = array) -> None:
        array[begin:end] += 1
        threads.append(threading.get_ident())

    in_parts(work, 4, 4)
    assert array.tolist() == [1] * 4
    del work, array
    assert held() is None
    go_on.set()
    other.join(SECONDS)
    assert threads == [threading.get_ident()] * 4


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind threads to cores")
def test_the_helper_of_a_bound_thread_runs_on_any_core(two_cores: None) -> None:
    every = os.sched_getaffinity(0)
    both, found = threading.Barrier(2), dict[int, set[int]]()

    def work(begin: int, end: int) -> None:
        both.wait(SECONDS)
        found[threading.get_ident()] = os.sched_getaffinity(0)

    def bound() -> None:
        os.sched_setaffinity(0, {min(every)})
        in_parts(work, 2, 2)

    thread = threading.Thread(target=bound)
    thread.start()
    thread.join(SECONDS)
    assert found.pop(thread.ident or 0) == {min(every)}
    assert list(found.values()) == [every]


def test_an_error_is_raised_after_all_parts(two_cores: None) -> None:
    done: list[int] = []

    def work(begin: int, end: int) -> None:
        if begin == 1:
            raise ValueError("part 1")
        done.append(begin)

    with pytest.raises(ValueError, match="part 1"):
        in_parts(work, 4, 4)
    assert sorted(done) == [0, 2, 3]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("900000 100000", 4), ("max 100000", 4), ("", 4)],
)
def test_a_container_limits_the_cores(
    limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "cpu.max"
    where.write_text(limit)
    monkeypatch.setattr(cores, "_LIMIT", where)
    monkeypatch.setattr(cores, "every_core", lambda: {0, 1, 2, 3})
    assert cores.cores.__wrapped__() == expected
    where.unlink()
    assert cores.cores.__wrapped__() == 4
