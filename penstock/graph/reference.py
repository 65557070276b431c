"""Reference: makes a tensor or variable usable as a key of a dict or an element of a set, by identity."""

from __future__ import annotations

from typing import Any


class Reference:
    """Stands for one object. Two references are equal if they stand for the same one.

    >>> {x.ref(): "input"}[x.ref()]
    'input'
    """

    __slots__ = ("_referred",)

    def __init__(self, referred: Any) -> None:
        self._referred = referred

    def deref(self) -> Any:
        """The object itself: `x.ref().deref() is x`."""
        return self._referred

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            raise TypeError(f"A reference is compared with references alone, received {other!r}. Take its ref() first.")
        return self._referred is other._referred

    def __hash__(self) -> int:
        return id(self._referred)

    def __repr__(self) -> str:
        return f"<Reference wrapping {self._referred!r}>"
