"""py_func: a Python function on NumPy arrays as a node of the graph."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from penstock.graph.arrays import array_of
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op


class _Callback:
    """A registered function. Its graph keeps it alive, not the registry, since a lambda often holds the graph."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


_CALLBACKS: weakref.WeakValueDictionary[str, _Callback] = weakref.WeakValueDictionary()
_numbers = itertools.count()

# Maps errors of the function to errors of the step; any other becomes an UnknownError.
_ERRORS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    # Of a session that the function uses: they tell of other tasks, and a new session may help.
    *((kind, kind) for kind in (AbortedError, CancelledError, DeadlineExceededError, UnavailableError)),
)


def call_back(values: list[Any], token: str, types: list[DType]) -> list[Any]:
    """Calls the function of a token, and checks its results."""
    callback = _CALLBACKS.get(token)
    if callback is None:
        raise InvalidArgumentError(
            f"callback {token} is not in this process: py_func runs only where its graph was built"
        )
    try:
        result = callback.function(*[v[()] if isinstance(v, np.ndarray) and v.ndim == 0 else v for v in values])
    except Exception as error:
        raise as_op_error(error) from error
    results = list(result) if isinstance(result, (tuple, list)) else [] if result is None and not types else [result]
    if len(results) != len(types):
        raise InvalidArgumentError(f"{token} returns {len(results)} values, but expects {len(types)}")
    return [_checked(value, wanted, i, token) for i, (value, wanted) in enumerate(zip(results, types, strict=True))]


def as_op_error(error: Exception) -> OpError:
    """The error of a step for an error of the function."""
    kind = next((kind for cause, kind in _ERRORS if isinstance(error, cause)), UnknownError)
    return kind(f"{type(error).__name__}: {error}")


def _checked(value: Any, wanted: DType, position: int, token: str) -> np.ndarray:
    try:
        array, found = array_of(np.asarray(value))
    except TypeError as error:
        raise InvalidArgumentError(f"{position}-th value returned by {token}: {error}") from error
    if found is not wanted:
        raise InvalidArgumentError(
            f"{position}-th value returned by {token} is {found.name}, but expects {wanted.name}"
        )
    return array


@op("PyFunc", "list(Tin) -> output: list(Tout)", host=True, stateful=True, no_gradient=True)
def py_func_op(input: list[Any], *, token: str, Tin: list[DType], Tout: list[DType]) -> list[Any]:
    return call_back(input, token, Tout)


@op("PyFuncStateless", "list(Tin) -> output: list(Tout)", host=True, no_gradient=True)
def py_func_stateless(input: list[Any], *, token: str, Tin: list[DType], Tout: list[DType]) -> list[Any]:
    return call_back(input, token, Tout)


def register_callback(function: Callable[..., Any]) -> str:
    """Makes a function known to nodes of the default graph, by a token. It lives as long as the graph."""
    callback = _Callback(function)
    token = f"pyfunc_{next(_numbers)}"
    _CALLBACKS[token] = callback
    get_default_graph().held.append(callback)
    return token


def callback_of(token: str) -> Any:
    """The function of a token."""
    return _CALLBACKS[token].function


def py_func(func: Callable[..., Any], inp: Any, Tout: Any, stateful: bool = True, name: str | None = None) -> Any:
    """Calls `func` with the NumPy values of `inp`; the results have types `Tout`. It runs in this process only.

    >>> tf.py_func(lambda x: np.sinh(x), [x], tf.float32)
    """
    if not callable(func):
        raise ValueError(f"py_func: func must be callable, received {func!r}.")
    several = isinstance(Tout, (list, tuple))
    if get_default_graph().is_eager:
        found = func(*[np.asarray(convert_to_tensor(x)) for x in inp])
        tensors = [convert_to_tensor(x) for x in (found if isinstance(found, (list, tuple)) else [found])]
        return tensors if len(tensors) != 1 else tensors[0]
    token = register_callback(func)
    declaration = py_func_op if stateful else py_func_stateless
    results = declaration(list(inp), token=token, Tout=[as_dtype(t) for t in (Tout if several else [Tout])], name=name)
    return results if several or not isinstance(results, list) else results[0]


def numpy_function(
    func: Any = None, inp: Any = None, Tout: Any = None, stateful: bool = True, name: str | None = None
) -> Any:
    """The later name of `py_func`."""
    return py_func(func, inp, Tout, stateful, name)
