"""The strategy in whose scope Keras objects are made: they keep it, and make their variables in it later too."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from penstock.distribute.context import get_strategy, has_strategy


def current_strategy() -> Any:
    """The strategy of the scope that the caller is in; None outside of all."""
    return get_strategy() if has_strategy() else None


def in_scope_of(strategy: Any) -> AbstractContextManager[Any]:
    """The scope of a strategy, unless the caller is in it already; None: nothing changes."""
    if strategy is None or current_strategy() is strategy:
        return contextlib.nullcontext()
    scope: AbstractContextManager[Any] = strategy.scope()
    return scope
