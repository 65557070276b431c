"""Public functions that look at their arguments before an op does, for ragged tensors as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.graph.hooks import NotDense
from penstock.ops.math import arithmetic, clip
from penstock.ops.ragged.making import map_flat_values

Function = Callable[..., Any]


def or_ragged(dense: Function, ragged: Function) -> Function:
    """`dense`; or `ragged`, if that finds a ragged tensor among its arguments.

    >>> softmax = or_ragged(layer_parts.softmax, softmax_of_rows)
    """

    @functools.wraps(dense)
    def either(*args: Any, **kwargs: Any) -> Any:
        try:
            return dense(*args, **kwargs)
        except NotDense:
            return ragged(*args, **kwargs)

    return either


def elementwise(dense: Function) -> Function:
    """`dense`, applied to the innermost values of ragged tensors among its arguments."""
    return or_ragged(dense, functools.partial(map_flat_values, dense))


def _add_n(inputs: Any, name: str | None = None) -> Any:
    return functools.reduce(lambda a, b: a + b, inputs)


add_n = or_ragged(arithmetic.add_n, _add_n)
clip_by_value = elementwise(clip.clip_by_value)
