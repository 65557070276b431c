"""A ShapeWatch finds the input whose changing shape makes a segment compile again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.passes.ir import Node

MANY = 8  # shapes of one input that a segment may be compiled for before a warning
SHOWN = 4  # shapes in a warning


class ShapeWatch:
    """Watches the shapes that one segment is compiled for.

    >>> watch = ShapeWatch("fc/MatMul", ["x"], many=1)
    >>> watch.note(["float32[8]"], 0.5)
    >>> watch.note(["float32[7]"], 0.3)
    "The segment at 'fc/MatMul' was compiled for 2 shapes of 'x', at last float32[8], float32[7]; each takes about ..."
    """

    def __init__(self, segment: str, inputs: Sequence[str], many: int = MANY) -> None:
        self._segment = segment
        self._inputs = list(inputs)
        self._many = many
        self._seen: list[dict[str, None]] = [{} for _ in inputs]
        self._warned: set[int] = set()
        self._count = 0
        self._seconds = 0.0

    def note(self, shapes: Sequence[str], seconds: float) -> str | None:
        """Takes the shapes of one compilation. Returns a warning, once for each input that is the cause."""
        self._count += 1
        self._seconds += seconds
        guilty: list[int] = []
        for i, (shape, seen) in enumerate(zip(shapes, self._seen, strict=True)):
            seen.pop(shape, None)
            seen[shape] = None  # the last one seen is shown last
            if len(seen) > self._many:
                if i not in self._warned:
                    guilty.append(i)
                    self._warned.add(i)
                del seen[next(iter(seen))]  # its number does not matter after the warning
        return self._message(guilty) if guilty else None

    def _message(self, guilty: Sequence[int]) -> str:
        names = " and ".join(f"'{self._inputs[i]}'" for i in guilty)
        last = ", ".join([*self._seen[guilty[0]]][-SHOWN:])
        return (
            f"The segment at '{self._segment}' was compiled for {self._many + 1} shapes of {names}, at last {last}; "
            f"each takes about {self._seconds / self._count:.2g} s. A program runs faster if such an input has few "
            "shapes: pad it to one of a few sizes, or leave out the last, smaller batch."
        )


def user_name(node: Node) -> str:
    """Returns the name that the user gave to a node, also if it stands for a fed value or one of another task."""
    name = node.attrs["tensor_name"].rpartition(":")[0] if node.op.name == "_Recv" else str(node.name)
    while name.startswith("_arg/"):
        name = name.removeprefix("_arg/").rpartition(":")[0]
    return str(name)


def shape_text(value: Any) -> str:
    """Returns the type and shape of an input.

    >>> shape_text(np.zeros((2, 3), np.float32))
    'float32[2, 3]'
    """
    if not hasattr(value, "shape"):
        return type(value).__name__
    return f"{getattr(value, 'dtype', '')}{list(value.shape)}"


def value_text(value: np.ndarray) -> str:
    """Returns the text of a value that code is compiled for.

    >>> value_text(np.array([2, 3]))
    'int64[2] = [2 3]'
    """
    return f"{shape_text(value)} = {np.array2string(value, threshold=SHOWN, separator=' ')}"
