"""IdentityDict: a mapping by tensors. A tensor with a value cannot be hashed, since `==` on it compares values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

V = TypeVar("V")


class IdentityDict(MutableMapping[Any, V]):
    """Maps objects to values: a key is found if it is the same object.

    >>> IdentityDict()[tf.constant(1)] = "one"
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, tuple[Any, V]] = {}  # the key is kept, so that its id stays its own

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, V]]) -> IdentityDict[V]:
        """A mapping with these keys and values."""
        made = cls()
        made.update(pairs)
        return made

    def __getitem__(self, key: Any) -> V:
        return self._items[id(key)][1]

    def __setitem__(self, key: Any, value: V) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def get(self, key: Any, default: Any = None) -> V | Any:
        found = self._items.get(id(key))
        return default if found is None else found[1]

    def setdefault(self, key: Any, default: V) -> V:
        return self._items.setdefault(id(key), (key, default))[1]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)


def distinct(values: Any) -> list[Any]:
    """The values without repetitions of the same object, in order."""
    return list({id(value): value for value in values}.values())
