"""What a step sends waits in its outbox, and goes to each task in one message."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.errors import UnavailableError
from penstock.graph.opdef import op_of
from penstock.passes.ir import Node
from penstock.worker.outbox import Outbox
from penstock.worker.transfer import RecvCall, SendCall, flush_before


class Mail:
    """Routes that note what they deliver."""

    def __init__(self, lost: str = "") -> None:
        self.delivered: list[tuple[str, list[int], list[Any]]] = []
        self._routes = {task: self._route(task, lost) for task in ("a", "b")}

    def _route(self, task: str, lost: str) -> Any:
        def deliver(step: int, keys: Sequence[int], values: list[Any]) -> None:
            if task == lost:
                raise UnavailableError(f"{task} is lost")
            self.delivered.append((task, list(keys), list(values)))

        return SimpleNamespace(deliver=deliver)

    def __call__(self, task: str) -> Any:
        return self._routes[task]


def test_each_task_gets_one_message() -> None:
    mail = Mail()
    outbox = Outbox(1, mail)
    assert not outbox
    x, y, z, w = map(np.zeros, range(4))
    outbox.post("a", [1], [x])
    outbox.post("b", [2], [y])
    outbox.post("a", [3, 4], [z, w])
    assert outbox and not mail.delivered
    outbox.flush()
    assert mail.delivered == [("a", [1, 3, 4], [x, z, w]), ("b", [2], [y])]
    assert not outbox


@pytest.mark.parametrize("tasks", [("a", "b"), ("b", "a")])
def test_who_gets_most_gets_it_first(tasks: tuple[str, str]) -> None:
    mail = Mail()
    outbox = Outbox(1, mail)
    for task in tasks:
        outbox.post(task, [1], [np.zeros(10 if task == "a" else 1000)])
    outbox.flush()
    assert [task for task, _, _ in mail.delivered] == ["b", "a"]


def test_a_request_takes_the_tensors_along() -> None:
    mail, started = Mail(), list[Any]()
    outbox = Outbox(1, mail)
    for task in ("a", "b"):
        outbox.begin(task, lambda keys, values, task=task: started.append((task, list(keys), values)))
    outbox.post("a", [1], ["x"])
    outbox.flush()
    outbox.post("a", [2], ["y"])
    outbox.flush()
    assert sorted(started) == [("a", [1], ["x"]), ("b", [], [])]
    assert mail.delivered == [("a", [2], ["y"])]


def test_an_answer_takes_the_tensors_for_its_receiver() -> None:
    mail = Mail()
    outbox = Outbox(1, mail)
    outbox.post("a", [1], ["x"])
    outbox.post("b", [2], ["y"])
    assert outbox.take("a") == ([1], ["x"])
    assert outbox.take("a") == ((), [])
    assert outbox.flush_at_end() is None
    assert mail.delivered == [("b", [2], ["y"])]


def test_a_lost_task_is_an_error() -> None:
    outbox = Outbox(1, Mail(lost="a"))
    outbox.post("a", [1], ["x"])
    with pytest.raises(UnavailableError, match="a is lost"):
        outbox.flush()
    outbox.post("a", [1], ["x"])
    assert isinstance(outbox.flush_at_end(), UnavailableError)


class Owner:
    """Gives each edge a slot."""

    def source(self, edge: Any) -> int:
        return 0

    slot = source


def test_what_is_small_waits_for_work_that_takes_long_and_nothing_for_what_may_wait_for_others() -> None:
    attrs = {**dict.fromkeys(("recv_task", "send_task", "tensor_name"), "a"), "key": 0, "repeated": False}
    send = SendCall(Owner(), [Node("send", op_of("_Send"), attrs, (), [(Node("x", op_of("NoOp"), {}, ()), 0)])])
    recv = RecvCall(Owner(), [Node("recv", op_of("_Recv"), attrs, (tf.float32,))])
    small = SimpleNamespace(node=Node("small", op_of("Unique"), {}, ()))
    blocking = SimpleNamespace(node=Node("take", op_of("QueueDequeueV2"), {}, ()))
    segment = SimpleNamespace()
    for after, expected in [
        ([send], None),
        ([recv, segment], None),
        ([small, small, send], None),
        ([segment, send], Outbox.flush_large),
        ([small, segment], Outbox.flush_large),
        ([small, blocking], Outbox.flush),
        ([segment, blocking, send], Outbox.flush),
        ([segment, send, blocking], Outbox.flush_large),
    ]:
        assert flush_before(after, 0, at_end=False) is expected
    assert flush_before([small], 0, at_end=True) is None
    assert flush_before([small], 0, at_end=False) is Outbox.flush_large


def test_small_tensors_wait_with_a_patient_request_for_larger_ones() -> None:
    mail, started = Mail(), list[Any]()

    def begun() -> Outbox:
        started.clear()
        outbox = Outbox(1, mail)
        outbox.begin("a", lambda keys, values: started.append(list(keys)), is_patient=True)
        outbox.post("a", [1], [np.zeros(2)])
        outbox.flush_large()
        assert outbox and not started
        return outbox

    outbox = begun()
    outbox.post("a", [2], [np.zeros(1000)])
    outbox.flush_large()
    assert started == [[1, 2]] and not outbox
    for flush in (Outbox.flush, Outbox.flush_all):
        outbox = begun()
        flush(outbox)
        assert started == [[1]] and not outbox
    assert not mail.delivered


def test_a_patient_request_without_tensors_waits_until_the_step_can_do_nothing_more() -> None:
    started = list[Any]()
    outbox = Outbox(1, Mail())
    outbox.begin("a", lambda keys, values: started.append(list(keys)), is_patient=True)
    outbox.flush()
    outbox.flush_large()
    assert outbox and not started
    outbox.flush_all()
    assert started == [[]] and not outbox
