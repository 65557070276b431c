"""arg_scope: default arguments for functions inside a `with` block.

>>> with arg_scope([conv2d, fully_connected], activation_fn=None):
...     net = conv2d(images, 64, [3, 3])
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Scope = dict[str, dict[str, Any]]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[Scope] = [{}]


_stack = _Stack()
_arguments: dict[str, list[str]] = {}  # for each decorated function, its arguments with a default


def current_arg_scope() -> Scope:
    """The current defaults, by function."""
    return _stack.scopes[-1]


def arg_scope_func_key(op: Any) -> str:
    """The key of a function in a scope."""
    return str(getattr(op, "_key_op", str(op)))


def has_arg_scope(func: Any) -> bool:
    """Tells if `func` was decorated with `add_arg_scope`."""
    return arg_scope_func_key(func) in _arguments


def arg_scoped_arguments(func: Any) -> list[str]:
    """The arguments of `func` that a scope can set."""
    if not has_arg_scope(func):
        raise ValueError(f"{func} is not decorated with @add_arg_scope.")
    return _arguments[arg_scope_func_key(func)]


def add_arg_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates `func` so that `arg_scope` can set defaults of its arguments."""
    key = f"{func.__module__}.{func.__qualname__}@{id(func)}"

    @functools.wraps(func)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        defaults = current_arg_scope().get(key)
        return func(*args, **({**defaults, **kwargs} if defaults else kwargs))

    parameters = inspect.signature(func).parameters.values()
    _arguments[key] = [p.name for p in parameters if p.default is not p.empty]
    scoped._key_op = key  # type: ignore[attr-defined]
    return scoped


@contextmanager
def arg_scope(list_ops_or_scope: Any, **kwargs: Any) -> Iterator[Scope]:
    """Sets default arguments of the given functions inside the block, in addition to those of outer blocks.

    The yielded scope can be given instead of functions, to use the same defaults again:

    >>> with slim.arg_scope([slim.conv2d], padding="SAME") as scope: ...
    >>> with slim.arg_scope(scope): ...
    """
    if isinstance(list_ops_or_scope, dict):
        if kwargs:
            raise ValueError("arg_scope: a scope that is used again takes no further arguments.")
        new: Scope = list_ops_or_scope.copy()
    else:
        if not isinstance(list_ops_or_scope, Iterable):
            raise TypeError(
                f"arg_scope: expected a list of functions or a scope, received {type(list_ops_or_scope).__name__}."
            )
        new = current_arg_scope().copy()
        for op in list_ops_or_scope:
            key = arg_scope_func_key(op)
            if not has_arg_scope(op):
                raise ValueError(f"{op} is not decorated with @add_arg_scope, so arg_scope cannot set its arguments.")
            new[key] = {**new.get(key, {}), **kwargs}
    _stack.scopes.append(new)
    try:
        yield new
    finally:
        _stack.scopes.pop()
