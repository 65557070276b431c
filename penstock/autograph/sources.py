"""Errors of converted code with the lines of the program, which the converted code stands for."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from malt.impl.api import StagingError
from malt.pyct.error_utils import ErrorMetadataBase

from penstock.errors import InaccessibleTensorError, OperatorNotAllowedInGraphError, OpError
from penstock.frames import is_engine, keeps_full_tracebacks


class _Place(ErrorMetadataBase):  # type: ignore[misc]
    """The stack of an error in terms of the program, and its message."""

    def create_exception(self, source_error: Exception) -> Exception:
        kind = type(source_error)
        if isinstance(source_error, OpError):
            return kind(source_error.node_def, source_error.op, self.get_message())
        if kind in (InaccessibleTensorError, OperatorNotAllowedInGraphError, StagingError):
            return kind(self.get_message())
        # As in TensorFlow, the classes that malt knows stay, and others, which may take other arguments, do not.
        found: Exception | None = super().create_exception(source_error)
        return StagingError(self.get_message()) if found is None else found


def note_place(error: Exception, function: Any, caller: CodeType) -> None:
    """Adds to an error where in the program `function` was; `caller` is the code that runs converted functions."""
    known = getattr(error, "ag_error_metadata", None)
    message = f"{type(error).__name__}: {error}" if known is None else None
    stack: Iterator[tuple[FrameType, int]] = itertools.islice(traceback.walk_tb(error.__traceback__), 1, None)
    if known is not None:
        # What comes after the next call is known already: a deep recursion must not be walked once per level.
        stack = itertools.takewhile(lambda entry: entry[0].f_code is not caller, stack)
    shown = (e for e in stack if keeps_full_tracebacks() or not is_engine(e[0].f_code.co_filename))
    frames = traceback.StackSummary.extract(shown)
    error.ag_error_metadata = _Place(frames, known, message, function.ag_source_map, caller.co_filename)  # type: ignore


def in_user_code(error: Exception) -> Exception:
    """The error as the program should see it: of the same class, with the lines of the program in the message."""
    place: _Place | None = getattr(error, "ag_error_metadata", None)
    return error if place is None else place.to_exception(error).with_traceback(error.__traceback__)
