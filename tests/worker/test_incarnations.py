"""Devices tell their processes apart, whatever seed a program has set."""

from __future__ import annotations

import random

from penstock.worker.devices import local_devices


def test_devices_leave_the_random_numbers_of_programs_alone() -> None:
    found = []
    for _ in range(2):
        random.seed(1)
        before = random.getstate()
        found.append(local_devices()[0].incarnation)
        assert random.getstate() == before
    assert found[0] != found[1]
