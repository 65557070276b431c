"""Lookups in embedding tables, which need not travel as a whole: rows are gathered where the table is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from penstock.graph.operation import Tensor
from penstock.ops.nn.embedding import embedding_lookup


class Lookup:
    """One lookup that Keras code makes."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.is_dense = False  # its ids depend on variables, so that the code itself must gather
        self.position = 0  # among those that are not dense


def independent(lookups: list[Lookup], ids_of: Callable[..., list[Any]], structs: Sequence[Any]) -> list[Lookup]:
    """Tells for each lookup if its ids depend on the inputs of the code alone.

    `ids_of` computes the ids from a number, of which all variables and rows are made, and from the inputs.
    """
    closed = jax.make_jaxpr(ids_of)(jax.ShapeDtypeStruct((), jnp.float32), *structs)
    position = 0
    for number, lookup in enumerate(lookups):
        wanted = [i == number for i in range(len(lookups))]
        _, used = partial_eval.dce_jaxpr(closed.jaxpr, wanted)
        lookup.is_dense = bool(used[0])
        if not lookup.is_dense:
            lookup.position = position
            position += 1
    return lookups


def rows_of(table: Any, ids: Tensor) -> Tensor:
    """The rows of a table, sharded or not, at ids."""
    return embedding_lookup(table.backing, ids, "div")
