"""Patterns: how the sizes of a program's inputs depend on each other, learnt from the shapes that were seen."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import export

Shapes = tuple[tuple[int, ...], ...]

_QUESTION = re.compile(r"comparison '(.+?)' (<=|>=|<|>) '(.+?)' is inconclusive")
_MAX_ANSWERS = 4096  # answers that are kept


class Pattern:
    """Shapes with symbols in place of the sizes that differ from one call to the next.

    Sizes that were equal in all calls have the same symbol. One that was always a multiple of another, larger by the
    same number, or the product of two others is an expression of their symbols. New shapes are checked against this.

    >>> pattern = Pattern([((2, 8), (16,)), ((3, 8), (24,)), ((5, 8), (40,))])
    >>> pattern.shapes, pattern.sizes(((7, 8), (56,)))
    ([(d0, 8), (8*d0,)], {'d0': 7})
    """

    def __init__(self, seen: Sequence[Shapes], imagined: Sequence[Shapes] = ()) -> None:
        """`imagined` are further shapes that are expected later."""
        every = [*seen, *imagined]
        columns = [[shapes[i][j] for shapes in every] for i, shape in enumerate(seen[0]) for j in range(len(shape))]
        names: list[str] = []
        known: list[list[int]] = []  # the sizes of each symbol
        terms: list[Any] = []
        for column in columns:
            if len(set(column)) == 1:
                terms.append(column[0])
                continue
            term = _expressed(column, known)
            if term is None:
                names.append(f"d{len(known)}")
                known.append(column)
                term = _multiple(len(known) - 1, 1)
            terms.append(term)
        self.symbols = names
        self.largest = {name: max(column[: len(seen)]) for name, column in zip(names, known, strict=True)}
        self._terms = terms
        self._ranks = [len(shape) for shape in seen[0]]
        self._constraints = [f"{name} >= 2" for name in names]
        self._assumed: list[Any] = []  # expressions that are 0 or more
        self._answers: dict[tuple[int, ...], bool] = {}  # if these sizes are as assumed
        self._make_symbols()
        self._places: dict[str, tuple[int, int]] = {}
        for i, dims in enumerate(self.shapes):
            for j, dim in enumerate(dims):
                if str(dim) in names:
                    self._places.setdefault(str(dim), (i, j))

    def _make_symbols(self) -> None:
        """Makes the symbols, and the shapes with them."""
        self._scope = export.SymbolicScope(self._constraints)
        symbols = export.symbolic_shape(", ".join(self.symbols), scope=self._scope) if self.symbols else ()
        flat = iter([t(symbols) if callable(t) else t for t in self._terms])
        self.shapes: list[tuple[Any, ...]] = [tuple(next(flat) for _ in range(rank)) for rank in self._ranks]

    def assume(self, question: str, sizes: Mapping[str, int]) -> bool:
        """Assumes the answer to jax's question about symbols that is right for `sizes`.

        Shapes with sizes for which it does not hold do not fit any more. False if the question is of another kind.

        >>> pattern.assume("Symbolic dimension comparison 'd1' <= 'd0' is inconclusive.", {"d0": 7, "d1": 2})
        True
        """
        found = _QUESTION.search(question)
        if found is None:
            return False
        left, sign, right = found.groups()
        if sign in "<=":
            left, right = right, left
        strict = sign in "<>"  # the question is left > right, else left >= right
        a, b = export.symbolic_shape(f"{left}, {right}", scope=self._scope)
        difference: Any = a - b - strict
        holds = difference._evaluate(dict(sizes)) >= 0
        known = f"{left} >= {right} + {int(strict)}" if holds else f"{right} >= {left} + {int(not strict)}"
        if known in self._constraints:
            return False  # it did not help
        self._constraints.append(known)
        self._assumed.append(difference if holds else b - a - (not strict))
        self._answers.clear()
        self._make_symbols()
        return True

    def sizes(self, shapes: Shapes) -> dict[str, int] | None:
        """The sizes of the symbols if `shapes` fit, else None. Sizes 0 and 1 never fit: they broadcast or are empty."""
        numbers = []
        for i, j in self._places.values():
            if i >= len(shapes) or j >= len(shapes[i]) or shapes[i][j] < 2:
                return None
            numbers.append(shapes[i][j])
        if [len(s) for s in shapes] != self._ranks:
            return None
        flat = zip((d for s in shapes for d in s), self._terms, strict=True)
        for size, term in flat:
            if size != (term(numbers) if callable(term) else term):
                return None
        sizes = dict(zip(self._places, numbers, strict=True))
        return sizes if not self._assumed or self._is_as_assumed(sizes) else None

    def _is_as_assumed(self, sizes: dict[str, int]) -> bool:
        key = tuple(sizes.values())
        if key not in self._answers:
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = all(e._evaluate(sizes) >= 0 for e in self._assumed)
        return self._answers[key]


def _expressed(column: list[int], known: list[list[int]]) -> Callable[[Sequence[Any]], Any] | None:
    """Expresses a column of sizes by known symbols: the same, a multiple, larger by a number, a product."""
    if column in known:
        return _multiple(known.index(column), 1)
    for i, sizes in enumerate(known):
        factor, rest = divmod(column[0], sizes[0]) if sizes[0] else (0, 1)
        if not rest and factor and all(c == factor * s for c, s in zip(column, sizes, strict=True)):
            return _multiple(i, factor)
        more = column[0] - sizes[0]
        if all(c == s + more for c, s in zip(column, sizes, strict=True)):
            return functools.partial(_larger, i, more)
    pairs = itertools.combinations_with_replacement(enumerate(known), 2)
    for (i, a), (j, b) in pairs:
        factor, rest = divmod(column[0], a[0] * b[0]) if a[0] * b[0] else (0, 1)
        if not rest and factor and all(c == factor * x * y for c, x, y in zip(column, a, b, strict=True)):
            return functools.partial(_product, i, j, factor)
    return None


def _multiple(i: int, factor: int) -> Callable[[Sequence[Any]], Any]:
    return lambda symbols: symbols[i] if factor == 1 else factor * symbols[i]


def _larger(i: int, more: int, symbols: Sequence[Any]) -> Any:
    return symbols[i] + more


def _product(i: int, j: int, factor: int, symbols: Sequence[Any]) -> Any:
    return factor * symbols[i] * symbols[j]
