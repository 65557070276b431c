"""Ops that print values while a graph runs, formatted as TensorFlow does."""

from __future__ import annotations

import logging as python_logging
import pprint
import sys
import threading
from typing import Any

import numpy as np

from penstock import logging
from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.debugging.tensor_text import summary
from penstock.ops.string.join import string_format_op

# tf.Print


class _PrintCount:
    """Counts how often a Print node has printed, for `first_n`."""

    kind = "Print"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def next(self) -> int:
        """Counts one more print. Returns the number of those before it."""
        with self._lock:
            self._count += 1
            return self._count - 1

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


@op(
    "Print",
    "T, list(U) -> output: T",
    host=True,
    stateful=True,
    shape=shapes.unchanged,
    grad=lambda op, grad: [grad, *(None for _ in op.input_list[1:])],
)
def print_op(
    input: Any, data: list[Any], *, message: str = "", first_n: int = -1, summarize: int = 3, resource: Any
) -> Any:
    if first_n < 0 or resource(lambda name: _PrintCount()).next() < first_n:
        _write(message + "".join(f"[{summary(value, summarize)}]" for value in data), "stderr", "\n")
    return input


# tf.print

_LEVELS = {"log(info)": "info", "log(warning)": "warning", "log(error)": "error"}


def _write(text: str, stream: str, end: str) -> None:
    if stream in ("stdout", "stderr"):
        print(text, file=sys.stdout if stream == "stdout" else sys.stderr, end=end, flush=True)
    elif stream in _LEVELS:
        getattr(logging, _LEVELS[stream])("%s", text + end)
    elif stream.startswith("file://"):
        with open(stream.removeprefix("file://"), "a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text + end)
    else:
        raise InvalidArgumentError(
            f"Unknown output stream: {stream}; it must be stdout, stderr, log(info), log(warning), log(error) or "
            "file://<path>"
        )


@op("PrintV2", "string ->", host=True, stateful=True, no_gradient=True)
def print_v2(input: Any, *, output_stream: str = "stderr", end: str = "\n") -> None:
    text: Any = np.asarray(input, object)[()]
    if not isinstance(text, bytes):
        raise InvalidArgumentError(f"input must be a scalar string, received shape {list(np.shape(input))}")
    _write(text.decode("utf-8", "surrogateescape"), output_stream, end)


class _Placeholder:
    """Stands for a tensor while Python formats the structure around it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _replaced(value: Any, mark: str, tensors: list[Any]) -> Any:
    """`value` with marks in place of its tensors. Appends the tensors to `tensors` in the order of the marks."""
    if isinstance(value, dict):
        return {k: _replaced(value[k], mark, tensors) for k in _in_order(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(v, mark, tensors) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(v, mark, tensors) for v in value)
    if isinstance(value, SparseTensor):
        tensors += [value.indices, value.values, value.dense_shape]
        return _Placeholder(f"'SparseTensor(indices={mark}, values={mark}, shape={mark})'")
    if isinstance(value, Ragged) and value.graph.is_eager:
        return value
    if isinstance(value, Tensor) or hasattr(value, "_as_tensor"):
        tensors.append(convert_to_tensor(value))
        return _Placeholder(mark)
    return value


def _in_order(mapping: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:
        return list(mapping)


def _stream_name(stream: Any) -> str:
    if stream is None or stream is sys.stderr:
        return "stderr"
    if stream is sys.stdout:
        return "stdout"
    for level in ("info", "warning", "error"):
        if stream in (getattr(logging, level), getattr(python_logging, level), level):
            return f"log({level})"
    if isinstance(stream, str) and (stream in ("stdout", "stderr", *_LEVELS) or stream.startswith("file://")):
        return stream
    raise ValueError(
        f"tf.print: output_stream must be sys.stdout, sys.stderr, tf.logging.info, warning or error, or "
        f"'file://<path>', received {stream!r}."
    )


def print_values(*inputs: Any, **kwargs: Any) -> Operation:
    """An operation that prints `inputs` (tensors, structures of them, anything) when it runs; see `tf.print`.

    >>> with tf.control_dependencies([tf.print("loss", loss, output_stream=sys.stdout)]): loss = tf.identity(loss)
    """
    stream = _stream_name(kwargs.pop("output_stream", None))
    name, summarize = kwargs.pop("name", None), kwargs.pop("summarize", 3)
    sep, end = kwargs.pop("sep", " "), kwargs.pop("end", "\n")
    if kwargs:
        raise ValueError(f"tf.print: unknown keyword arguments {sorted(kwargs)}.")
    operation: Operation
    only = inputs[0] if len(inputs) == 1 else None
    if isinstance(only, Tensor) and only.dtype.base_dtype.name == "string" and only.shape.rank == 0:
        operation = print_v2(only, output_stream=stream, end=end, name=name)
        return operation
    mark = _mark_for(inputs)
    tensors: list[Any] = []
    texts = [v if isinstance(v, str) else pprint.pformat(_replaced(v, mark, tensors)) for v in inputs]
    text = string_format_op(
        tensors, template=sep.join(texts), placeholder=mark, summarize=-1 if summarize is None else summarize
    )
    operation = print_v2(text, output_stream=stream, end=end, name=name)
    return operation


def _mark_for(inputs: Any) -> str:
    """A placeholder that does not occur in what is printed."""
    text = repr(inputs) + "".join(i for i in inputs if isinstance(i, str))
    mark, number = "{}", 0
    while mark in text:
        mark, number = f"{{{number}}}", number + 1
    return mark


def Print(
    input_: TensorLike,
    data: Any,
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`input_`, which prints `message` and `data` when it is computed, at most `first_n` times.

    >>> loss = tf.Print(loss, [loss], "loss: ")
    """
    result: Tensor = print_op(
        input_,
        list(data),
        message=message or "",
        first_n=-1 if first_n is None else first_n,
        summarize=3 if summarize is None else summarize,
        name=name,
    )
    return result
