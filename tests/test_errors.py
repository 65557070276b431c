"""The exceptions: one per status code, with TensorFlow's constructor, and safe to send."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from penstock import errors

TYPES = {
    1: "CancelledError",
    2: "UnknownError",
    3: "InvalidArgumentError",
    4: "DeadlineExceededError",
    5: "NotFoundError",
    6: "AlreadyExistsError",
    7: "PermissionDeniedError",
    8: "ResourceExhaustedError",
    9: "FailedPreconditionError",
    10: "AbortedError",
    11: "OutOfRangeError",
    12: "UnimplementedError",
    13: "InternalError",
    14: "UnavailableError",
    15: "DataLossError",
    16: "UnauthenticatedError",
}


@pytest.mark.parametrize(("code", "name"), TYPES.items(), ids=TYPES.values())
def test_each_code_has_its_class(code: int, name: str) -> None:
    cls = getattr(errors, name)
    assert errors.exception_type_from_error_code(code) is cls
    assert errors.error_code_from_exception_type(cls) == code
    error = cls(None, None, "what happened")
    assert isinstance(error, errors.OpError)
    assert (error.error_code, error.message, str(error)) == (code, "what happened", "what happened")
    assert error.op is error.node_def is error.op_name is None


def test_codes_outside_the_tree() -> None:
    with pytest.raises(KeyError):
        errors.exception_type_from_error_code(99)
    assert errors.error_code_from_exception_type(KeyError) == errors.UNKNOWN


def test_base_class_takes_its_code() -> None:
    error = errors.OpError(None, None, b"bytes too", errors.ABORTED)
    assert (error.error_code, error.message) == (errors.ABORTED, "bytes too")


def test_op_may_be_an_operation_a_name_or_none() -> None:
    node = SimpleNamespace(name="fc/w")
    assert errors.NotFoundError(node, None, "m").op_name == "fc/w"
    by_name = errors.NotFoundError(None, "fc/w", "m")
    assert (by_name.op, by_name.op_name) == (None, "fc/w")
    op = SimpleNamespace(name="fc/w", definition="train.py:29, in build_model")
    error = errors.NotFoundError(node, op, "no such key")
    assert error.op is op
    assert error.node_def is node
    assert error.message == "no such key"
    assert str(error) == "no such key\n\nThe op 'fc/w' is defined at train.py:29, in build_model"


def test_subclasses_keep_the_code_of_their_parent() -> None:
    class Preempted(errors.AbortedError):
        pass

    assert Preempted(None, None, "m").error_code == errors.ABORTED
    assert errors.error_code_from_exception_type(Preempted) == errors.ABORTED
    assert errors.exception_type_from_error_code(errors.ABORTED) is errors.AbortedError


def test_pickle_keeps_everything_but_the_operation() -> None:
    op = SimpleNamespace(name="fc/w", definition="")
    error = pickle.loads(pickle.dumps(errors.DataLossError(None, op, "bad checksum")))
    assert type(error) is errors.DataLossError
    assert (error.op_name, error.message, error.error_code) == ("fc/w", "bad checksum", errors.DATA_LOSS)


def test_from_the_wire() -> None:
    error = errors.error_from_code(errors.OUT_OF_RANGE, "queue is empty", "q/dequeue")
    assert type(error) is errors.OutOfRangeError
    assert (error.op_name, error.message) == ("q/dequeue", "queue is empty")
    unknown = errors.error_from_code(77, "from the future")
    assert type(unknown) is errors.UnknownError
    assert (unknown.error_code, unknown.op_name) == (77, None)
