"""Tables of workers: a table that does not change is copied to each worker, so that a lookup asks no other task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.distribute.coordinator.closures import Closure, RemoteValue, SentFunction
from penstock.eager.function import function
from penstock.eager.tensor import EagerTensor, Handle
from penstock.graph.dtype import resource
from penstock.graph.graph import get_default_graph
from penstock.ops.lookup import table_ops


def filling(table: Handle, name: str) -> Callable[[int], Closure]:
    """Makes the closures that fill the table `name` of each worker with the contents of a table of this process."""
    types = table.attrs["key_dtype"], table.attrs["value_dtype"]
    handle = EagerTensor(get_default_graph(), table, resource, table.device)
    contents: Any = table_ops.lookup_table_export_v2(handle, Tkeys=types[0], Tvalues=types[1])

    def fill(keys: Any, values: Any) -> None:
        own = table_ops.hash_table_v2(shared_name=name, key_dtype=types[0], value_dtype=types[1])
        table_ops.lookup_table_import_v2(own, keys, values)

    sent = SentFunction(function(fill, autograph=False).get_concrete_function(*contents))
    values = [tensor._value for tensor in contents]
    return lambda worker: Closure(sent, values, RemoteValue(), worker)
