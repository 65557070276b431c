"""Ops by their type names, with inputs and attrs as keywords: `tf.raw_ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.face.missing import missing_name
from penstock.graph.opdef import all_ops, registered


def raw_op(name: str) -> Callable[..., Any]:
    """The function that adds a node of type `name`; AttributeError if there is no such type.

    >>> raw_op("MatMul")(a=a, b=b, transpose_b=True)
    """
    found = registered(name)
    if found is None or name.startswith("_"):
        raise missing_name("penstock.v1.raw_ops", name, names())

    def call(**kwargs: Any) -> Any:
        node_name = kwargs.pop("name", None)
        return found(name=node_name, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Adds a node of type {name}."
    return call


def names() -> list[str]:
    """The op types that there are."""
    return sorted(op.name for op in all_ops() if not op.name.startswith("_"))
