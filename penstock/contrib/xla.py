"""tf.xla: functions that request compilation, although XLA compiles everything that it can anyway."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from penstock.graph import nest
from penstock.graph.operation import Operation
from penstock.graph.scopes import control_dependencies
from penstock.ops.array.passthrough import identity
from penstock.ops.control.grouping import no_op


def compile(computation: Callable[..., Any], inputs: Any = None) -> Any:
    """The results of `computation(*inputs)`; one value comes back in a tuple, and no value as an op.

    >>> (loss,) = tf.xla.experimental.compile(step, [images, labels])
    """
    given = [] if inputs is None else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    outputs = computation(*nest.map_structure(identity, given))
    if outputs is None:
        return no_op(name="XLACompile")
    flat = nest.flatten(outputs)
    operations = [each for each in flat if isinstance(each, Operation)]
    values = [each for each in flat if not isinstance(each, Operation)]
    with control_dependencies(operations):
        if not values:
            return no_op(name="XLACompile")
        kept = [identity(value) for value in values]
    if not isinstance(outputs, (list, tuple, dict)):
        return (kept[0],)
    return kept if operations else nest.pack_sequence_as(outputs, kept)


@contextlib.contextmanager
def jit_scope(compile_ops: Any = True, separate_compiled_gradients: bool = False) -> Iterator[None]:
    """Has no effect here; in TensorFlow it switches compilation: `with tf.xla.experimental.jit_scope(): ...`."""
    yield
