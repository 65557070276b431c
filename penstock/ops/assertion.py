"""Assert: stop a step where a condition does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope


@op("Assert", "bool, list(T) ->", host=True, stateful=True, no_gradient=True)
def assert_op(condition: Any, data: list[Any], *, summarize: int = 3) -> None:
    if not np.all(condition):
        shown = " ".join(f"[{_shown(value, summarize)}]" for value in data)
        raise InvalidArgumentError(None, None, f"assertion failed: {shown}")


def _shown(value: Any, summarize: int) -> str:
    items = np.asarray(value).reshape(-1)
    limit = len(items) if summarize < 0 else summarize
    texts = [i.decode(errors="replace") if isinstance(i, bytes) else str(i) for i in items[:limit].tolist()]
    return " ".join(texts) + ("..." if len(items) > limit else "")


def Assert(condition: Any, data: Any, summarize: int | None = None, name: str | None = None) -> Operation:
    """An operation that fails with InvalidArgumentError, showing `data`, unless `condition` holds.

    >>> with tf.control_dependencies([tf.Assert(tf.reduce_all(x > 0), [x])]): y = tf.log(x)
    """
    with name_scope(name, "Assert", [condition, *data]):
        values = [convert_to_tensor(d, name=f"data_{i}") for i, d in enumerate(data)]
        operation: Operation = assert_op(
            condition, values, summarize=3 if summarize is None else summarize, name="Assert"
        )
        return operation
