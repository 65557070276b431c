"""switch_case: one of several functions, chosen by a number."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.control.flow import case
from penstock.ops.math import compare


def switch_case(branch_index: TensorLike, branch_fns: Any, default: Any = None, name: str | None = None) -> Any:
    """The result of `branch_fns[branch_index]`; if there is none, of `default`, or else of the last branch.

    >>> tf.switch_case(kind, [lambda: a, lambda: b], default=lambda: c)
    """
    branches = _numbered(branch_fns)
    for number, function in branches:
        if not callable(function):
            raise TypeError(f"switch_case: branch {number} must be callable, received {function!r}.")
    with name_scope(name, "switch_case", [branch_index]):
        index = convert_to_tensor(branch_index, name="branch_index")
        if index.dtype.base_dtype is not dt.int32:
            raise TypeError(f"switch_case: branch_index must be int32, received {index.dtype.name}.")
        if default is None:
            *branches, (_, default) = branches
        pairs = [(compare.equal(index, number), function) for number, function in branches]
        return case(pairs, default=default) if pairs else default()


def _numbered(branch_fns: Any) -> list[tuple[int, Any]]:
    if isinstance(branch_fns, dict):
        items = list(branch_fns.items())
    elif branch_fns and not callable(branch_fns[0]):
        items = list(branch_fns)
    else:
        items = list(enumerate(branch_fns))
    if not items:
        raise ValueError("switch_case: there must be at least one branch.")
    if not all(isinstance(i, tuple) and len(i) == 2 and isinstance(i[0], int) for i in items):
        raise TypeError(f"switch_case: branch_fns must be functions or pairs (int, function), received {branch_fns!r}.")
    items.sort(key=lambda item: item[0])
    if [number for number, _ in items] != list(range(len(items))):
        raise ValueError(
            f"switch_case: branches must be numbered from 0 to {len(items) - 1}, received "
            f"{[number for number, _ in items]}."
        )
    return items
