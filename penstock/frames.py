"""Finds the program's frames in a stack: where ops are defined, and tracebacks without the engine's frames.

A frame is the engine's if its file belongs to penstock, to jax, or to a library between them and the program.
PENSTOCK_FULL_TRACEBACK=1 keeps tracebacks whole.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Only the innermost frames are kept: in a model that is built by deep recursion each op would cost its depth.
MOST_FRAMES = 20
_MAX_SHOWN = 8
_NOTE = "(Frames of penstock and jax are left out. PENSTOCK_FULL_TRACEBACK=1 shows them.)"

# Files of converted code: by line the file, line and function of the program that it stands for.
generated: dict[str, dict[int, tuple[str, int, str]]] = {}

Frames = tuple[CodeType | int, ...]  # code objects and offsets of their instructions, alternating, innermost first


def _folders() -> tuple[str, ...]:
    own = os.path.dirname(__file__)
    # Found without importing them, since a program may need neither.
    specs = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "absl", "malt")]
    origins = [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin]
    return tuple(folder + os.sep for folder in (own, *origins))


_FOLDERS = _folders()
_FILES = frozenset((contextlib.__file__, runpy.__file__))
_engine_files: dict[str, bool] = {}


def is_engine(filename: str) -> bool:
    """Tells if frames of a file are hidden from the user.

    >>> is_engine(__file__), is_engine("train.py")
    (True, False)
    """
    known = _engine_files.get(filename)
    if known is None:
        known = filename.startswith(("<frozen ", *_FOLDERS)) or filename in _FILES
        _engine_files[filename] = known
    return known


def user_frames() -> Frames:
    """The program's frames in the caller's stack. It is called for each op, so it formats nothing yet."""
    found: list[CodeType | int] = []
    frame = sys._getframe(1)
    engine = _engine_files
    while frame is not None:
        code = frame.f_code
        # Uses the dict directly: a call would cost more than all else here.
        known = engine.get(code.co_filename)
        if not (is_engine(code.co_filename) if known is None else known):
            found.append(code)
            found.append(frame.f_lasti)
            if len(found) >= 2 * MOST_FRAMES:
                break
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


def summaries(frames: Frames) -> list[traceback.FrameSummary]:
    """Frames as a traceback lists them, outermost first; converted code as the lines of the program."""
    found: list[traceback.FrameSummary] = []
    inner: CodeType | None = None
    for code, offset in zip(frames[::2], frames[1::2], strict=True):
        assert isinstance(code, CodeType) and isinstance(offset, int)
        line = next(itertools.islice(code.co_positions(), offset // 2, None))[0]
        origin = code.co_filename, line, code.co_name
        if code.co_filename in generated:
            origin = generated[code.co_filename].get(line or 0, origin)
            # A block of a function is a function inside it there: the program has one frame for both.
            is_around = inner is not None and inner.co_qualname.startswith(f"{code.co_qualname}.<locals>.")
            if is_around and origin[2] == found[-1].name:
                continue
            inner = code
        found.append(traceback.FrameSummary(*origin, lookup_line=False))
    return found[::-1]


def place(frame: traceback.FrameSummary) -> str:
    """A frame in one line: `train.py:29, in build_model`."""
    try:
        near = os.path.relpath(frame.filename)
    except OSError:  # the working directory of the process was removed
        near = os.pardir
    name = frame.filename if near.startswith(os.pardir) else near
    return f"{name}:{frame.lineno}, in {frame.name}"


def definition(frames: Frames) -> str:
    """Describes where an op was defined: the line with its text, and the calls that led there; empty if unknown."""
    if not frames:
        return ""
    *callers, last = summaries(frames)
    text = [place(last), *([f"    {last.line}"] if last.line else [])]
    text += [f"  called at {place(frame)}" for frame in callers[::-1][:_MAX_SHOWN]]
    return "\n".join(text)


# Tracebacks


def keeps_full_tracebacks() -> bool:
    """Tells if tracebacks should stay whole."""
    return os.environ.get("PENSTOCK_FULL_TRACEBACK", "0") not in ("", "0")


def folded(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the engine's frames; None if there are no others."""
    kept = []
    while trace is not None:
        if not is_engine(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for each in reversed(kept):
        result = TracebackType(result, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return result


def leaves_engine(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator for an entry point of the engine: errors that leave it have only the program's frames."""

    @functools.wraps(function)
    def entered(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not keeps_full_tracebacks():
                fold(error)
                error.__traceback__ = folded(error.__traceback__)
                _note(error)
            raise  # this adds no frame

    return entered


def fold(error: BaseException) -> None:
    """Removes the engine's frames from an error and its causes. A cause without other frames is dropped."""
    for each in _chain(error):
        rest = folded(each.__traceback__)
        if rest is not None:
            if _has_engine_inside(each.__traceback__):
                _note(error)
            each.__traceback__ = rest
        cause = _next(each)
        if cause is not None and _is_of_engine(cause):
            # An earlier one may come from the program's own code, such as that of a `py_func`.
            each.__cause__ = next((one for one in _chain(cause) if not _is_of_engine(one)), None)


def _note(error: BaseException) -> None:
    if _NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_NOTE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that Python shows before it; each is looked up only when it is needed."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = _next(each)


def _next(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_of_engine(error: BaseException) -> bool:
    return error.__traceback__ is not None and folded(error.__traceback__) is None


def _has_engine_inside(trace: TracebackType | None) -> bool:
    """Tells if the program called the engine; code that runs the program, such as `penstock run`, does not count."""
    of_engine = (is_engine(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace))
    return any(itertools.dropwhile(bool, of_engine))


def install() -> None:
    """Makes uncaught errors appear without the engine's frames. Hooks that are already installed are kept."""
    before, before_in_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if keeps_full_tracebacks():
            before(kind, error, trace)
            return
        if kind is KeyboardInterrupt and error.args:
            print(error, file=sys.stderr)  # the message is complete in itself, like that of a server
            return
        fold(error)
        before(kind, error, error.__traceback__)

    def hook_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not keeps_full_tracebacks():
            fold(args.exc_value)
            found = (args.exc_type, args.exc_value, args.exc_value.__traceback__, args.thread)
            args = threading.ExceptHookArgs(found)
        before_in_thread(args)

    sys.excepthook, threading.excepthook = hook, hook_in_thread
