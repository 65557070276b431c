"""`tf.logging`: one logger named 'penstock', silent below warnings until `tf.app.run` or the program says otherwise.

>>> set_verbosity(INFO)
>>> info("step %d", 3)      # on stderr: INFO:penstock:step 3
>>> set_verbosity(WARN)
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from typing import Any

DEBUG = logging.DEBUG
INFO = logging.INFO
WARN = logging.WARNING
ERROR = logging.ERROR
FATAL = logging.CRITICAL


class _OwnHandler(logging.Handler):
    """Writes to the current stderr, as long as the program has not set up logging itself."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        # A program that configured the root logger gets our records there; writing them here too would show
        # every line twice.
        if logging.getLogger().handlers:
            return
        try:
            # One call per line, so that lines of several threads do not mix.
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        sys.stderr.flush()


_lock = threading.Lock()
_calls: Counter[tuple[str, int, str]] = Counter()


def get_logger() -> logging.Logger:
    """The standard logger that this module uses.

    >>> get_logger().name
    'penstock'
    """
    logger = logging.getLogger("penstock")
    with _lock:
        if not any(isinstance(handler, _OwnHandler) for handler in logger.handlers):
            logger.addHandler(_OwnHandler())
    return logger


def set_verbosity(v: int | str) -> None:
    """Show messages of level `v` and above: `set_verbosity(INFO)`."""
    get_logger().setLevel(v)


def show_infos() -> None:
    """Show INFO and above, unless the program has set a verbosity. `tf.app.run` calls this first."""
    logger = get_logger()
    if logger.level == logging.NOTSET:
        logger.setLevel(INFO)


def get_verbosity() -> int:
    """The lowest level that is shown."""
    return get_logger().getEffectiveLevel()


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at `level`: `log(INFO, "loss %.3f", loss)`."""
    get_logger().log(level, msg, *args, **_from_caller(kwargs))


def debug(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at DEBUG."""
    get_logger().debug(msg, *args, **_from_caller(kwargs))


def info(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at INFO."""
    get_logger().info(msg, *args, **_from_caller(kwargs))


def warn(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at WARN."""
    get_logger().warning(msg, *args, **_from_caller(kwargs))


warning = warn


def error(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at ERROR."""
    get_logger().error(msg, *args, **_from_caller(kwargs))


def fatal(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at FATAL. The program continues."""
    get_logger().critical(msg, *args, **_from_caller(kwargs))


def vlog(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at a numeric `level`, with the same numbers as elsewhere in this module."""
    get_logger().log(level, msg, *args, **_from_caller(kwargs))


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log the first of every `n` calls from one line of a program: `log_every_n(INFO, "step %d", 100, step)`."""
    if _count_call(msg) % n == 0:
        get_logger().log(level, msg, *args, **_from_caller({}))


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log only the first `n` calls from one line of a program: `log_first_n(WARN, "odd shape %s", 1, shape)`."""
    if _count_call(msg) < n:
        get_logger().log(level, msg, *args, **_from_caller({}))


def log_if(level: int, msg: Any, condition: Any, *args: Any) -> None:
    """Log when `condition` holds: `log_if(ERROR, "lost %d", lost > 0, lost)`."""
    if condition:
        get_logger().log(level, msg, *args, **_from_caller({}))


def TaskLevelStatusMessage(msg: Any) -> None:
    """Log `msg` at ERROR, so that it shows at every verbosity."""
    get_logger().error(msg, **_from_caller({}))


def flush() -> None:
    """Flush all logged lines."""
    for handler in get_logger().handlers:
        handler.flush()


def _from_caller(kwargs: dict[str, Any]) -> dict[str, Any]:
    # The record should name the program's line, one frame above this module's.
    return {**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1}


def _count_call(msg: Any) -> int:
    """The number of times that the calling line of the program has logged `msg`."""
    frame = sys._getframe(2)
    # The message is part of the key: two calls may share a line.
    key = (frame.f_code.co_filename, frame.f_lineno, str(msg))
    with _lock:
        before = _calls[key]
        _calls[key] += 1
    return before
