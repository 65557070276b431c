"""A partial run is a step in pieces: each operation runs once, as soon as all that it needs is fed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.operation import Operation, Tensor

_HANDLES = (dt.resource, dt.variant)
_VARIABLES = ("VariableV2", "Variable")


class Piece(NamedTuple):
    """Describes the work of one call of `partial_run`: its feeds, fetches and operations."""

    fed: dict[Tensor, Any]
    fetches: tuple[Tensor, ...]
    targets: tuple[Operation, ...]
    done: frozenset[Operation]  # these have run in earlier pieces


class PartialRun:
    """Tracks a step that `partial_run_setup` announced."""

    def __init__(self, feeds: list[Tensor], fetches: tuple[Tensor, ...], targets: tuple[Operation, ...]) -> None:
        if not fetches and not targets:
            raise _refused("partial_run_setup needs at least one fetch.")
        if len(set(feeds)) < len(feeds):
            raise _refused(f"partial_run_setup got a feed twice: {[t.name for t in feeds]}.")
        both = [t.name for t in fetches if t in feeds]
        if both:
            raise _refused(f"partial_run_setup got {both} as feeds and as fetches.")
        self._feeds = set(feeds)
        self._fetches = set(fetches)  # those still to be fetched
        self._fed: set[Tensor] = set()
        self._known: dict[Tensor, Any] = {}
        self._done: set[Operation] = set()
        self._needs = self._find_needs([t.op for t in fetches] + list(targets))

    def _find_needs(self, last: list[Operation]) -> dict[Operation, frozenset[Tensor]]:
        """Returns the feeds that each operation of the step needs. Operations come after those that they depend on."""
        needs: dict[Operation, frozenset[Tensor]] = {}
        stack = list(last)
        while stack:
            op = stack[-1]
            before = [t.op for t in op.input_list if t not in self._feeds]
            before += [c for c in op.control if not self._is_fed(c)]
            missing = [other for other in before if other not in needs]
            if missing:
                stack += missing
                continue
            stack.pop()
            own = {t for t in op.input_list if t in self._feeds}
            own.update(c.outputs[0] for c in op.control if self._is_fed(c))
            needs[op] = frozenset(own).union(*(needs[other] for other in before))
        return needs

    def _is_fed(self, op: Operation) -> bool:
        """Tells if `op` is a placeholder that is fed, so that it never runs itself."""
        return op.type == "Placeholder" and op.outputs[0] in self._feeds

    def advance(self, feeds: Mapping[Tensor, Any], fetches: tuple[Tensor, ...]) -> Piece:
        """Returns the work that can be done now. A call that is refused changes nothing."""
        for tensor in feeds:
            if tensor not in self._feeds:
                raise _refused(f"The tensor '{tensor.name}' was not among the feeds of partial_run_setup.")
            if tensor in self._fed:
                raise _refused(f"The tensor '{tensor.name}' has already been fed.")
        fed = self._fed | feeds.keys()
        for tensor in fetches:
            if tensor not in self._fetches:
                raise _refused(
                    f"The tensor '{tensor.name}' was not among the fetches of partial_run_setup, or has been fetched."
                )
            missing = sorted(t.name for t in self._needs[tensor.op] - fed)
            if missing:
                raise _refused(f"Fetch '{tensor.name}' can't be computed before these have been fed: {missing}.")
        done = frozenset(self._done)
        ready = [op for op, needs in self._needs.items() if op not in done and needs <= fed]
        self._fed = fed
        self._known.update(feeds)
        self._done.update(ready)
        kept = tuple(t for op in ready for t in op.outputs if t not in self._feeds and self._is_wanted_later(t))
        return Piece(dict(self._known), kept, tuple(ready), done)

    def _is_wanted_later(self, tensor: Tensor) -> bool:
        if tensor in self._fetches:
            return True
        # A handle, or a reference to a variable, is made anew by each piece that needs it.
        if tensor.dtype.base_dtype in _HANDLES or tensor.op.type in _VARIABLES:
            return False
        return any(op in self._needs and op not in self._done for op in tensor.consumer_list)

    def keep(self, piece: Piece, values: list[Any]) -> None:
        """Notes what a piece has computed, for the client and for later pieces."""
        self._known.update(zip(piece.fetches, values, strict=True))

    def take(self, fetches: tuple[Tensor, ...]) -> list[Any]:
        """Returns the values of `fetches`, each of which can be fetched once."""
        self._fetches.difference_update(fetches)
        return [self._known[t] for t in fetches]

    @property
    def is_over(self) -> bool:
        return not self._fetches and self._fed == self._feeds


def _refused(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message)
