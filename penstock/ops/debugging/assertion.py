"""Assert: stops a step if a condition does not hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.debugging.tensor_text import summary


@op("Assert", "bool, list(T) ->", host=True, stateful=True, no_gradient=True)
def assert_op(condition: Any, data: list[Any], *, summarize: int = 3) -> None:
    if not np.all(condition):
        shown = " ".join(f"[{summary(value, summarize)}]" for value in data)
        raise InvalidArgumentError(f"assertion failed: {shown}")


def Assert(condition: TensorLike, data: Any, summarize: int | None = None, name: str | None = None) -> Operation:
    """An operation that fails with InvalidArgumentError, showing `data`, unless `condition` holds.

    >>> with tf.control_dependencies([tf.Assert(tf.reduce_all(x > 0), [x])]): y = tf.log(x)
    """
    with name_scope(name, "Assert", [condition, *data]):
        # TensorFlow looks at the types first, and then converts a value that is no tensor a second time.
        types = {convert_to_tensor(d).dtype.base_dtype for d in data}
        simple = types <= {dt.string, dt.int32}
        shown = list(data) if simple else [convert_to_tensor(d, name=f"data_{i}") for i, d in enumerate(data)]
        operation: Operation = assert_op(
            condition, shown, summarize=3 if summarize is None else summarize, name="Assert"
        )
        return operation
