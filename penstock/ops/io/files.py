"""Ops on whole files: reading, writing, and finding them by pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import gfile
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.string.forms import invalid, listed, texts


def _path(filename: Any, op: str) -> str:
    if np.ndim(filename):
        raise invalid(f"{op}: filename must be a scalar, received shape {np.shape(filename)}.")
    return listed(filename)[0].decode("utf-8", "surrogateescape")


def _one_file(op: Operation) -> list[TensorShape]:
    shapes.require_rank(op.input_list[0].shape, 0)
    return [TensorShape.of(()) for _ in op.outputs]


@op("ReadFile", "string -> contents: string", host=True, no_gradient=True, shape=_one_file)
def read_file_op(filename: Any) -> Any:
    with gfile.GFile(_path(filename, "ReadFile"), "rb") as file:
        return texts([file.read()], ())


def read_file(filename: TensorLike, name: str | None = None) -> Tensor:
    """All of a file, as one string: `tf.read_file("image.png")`."""
    contents: Tensor = read_file_op(filename, name=name)
    return contents


@op("WriteFile", "string, string ->", host=True, stateful=True, no_gradient=True)
def write_file(filename: Any, contents: Any) -> None:
    """Writes a file, and makes its folder if there is none: `tf.write_file("out.txt", contents)`."""
    path = _path(filename, "WriteFile")
    if np.ndim(contents):
        raise invalid(f"WriteFile: contents must be a scalar, received shape {np.shape(contents)}.")
    folder = path.rpartition("/")[0]
    if folder:
        gfile.makedirs(folder)
    with gfile.GFile(path, "wb") as file:
        file.write(listed(contents)[0])


@op(
    "MatchingFiles",
    "string -> filenames: string",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,))],
)
def matching_files(pattern: Any) -> Any:
    """The files that match a pattern, or one of several, sorted: `tf.matching_files("data/*.tfrecord")`."""
    if np.ndim(pattern) > 1:
        raise invalid(f"MatchingFiles: pattern must be a scalar or a vector, received shape {np.shape(pattern)}.")
    found = [path for p in listed(pattern) for path in gfile.glob(p.decode("utf-8", "surrogateescape"))]
    return texts(sorted(path.encode("utf-8", "surrogateescape") for path in found))
