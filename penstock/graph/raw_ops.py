"""Every op type as a function that takes its inputs and attrs by keyword, derived from its declaration."""

from __future__ import annotations

import functools
import inspect
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from penstock.face.missing import missing_name
from penstock.graph.opdef import MISSING, OpDef, all_ops, registered


def raw_op(name: str) -> Callable[..., Any]:
    """The op type called `name` as a function.

    >>> tf.raw_ops.MatMul(a=x, b=w, transpose_b=True)
    """
    op_def = None if name.startswith("_") else registered(name)
    if op_def is None:
        raise missing_name("penstock.v1.raw_ops", name, names())
    return _function(op_def)


def names() -> list[str]:
    """The names of all op types."""
    return sorted(op.name for op in all_ops() if not op.name.startswith("_"))


@functools.cache
def _function(op_def: OpDef) -> Callable[..., Any]:
    inferred = {a for arg in op_def.inputs for a in (arg.type_attr, arg.type_list_attr, arg.number_attr)}
    attrs = sorted((a for a in op_def.attrs.values() if a.name not in inferred), key=lambda a: a.default is not MISSING)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(arg.name, keyword) for arg in op_def.inputs]
    for attr in attrs:
        default = inspect.Parameter.empty if attr.default is MISSING else attr.default
        parameters.append(inspect.Parameter(attr.name, keyword, default=default))
    parameters.append(inspect.Parameter("name", keyword, default=None))
    signature = inspect.Signature(parameters)
    results = _results(op_def)

    def function(**kwargs: Any) -> Any:
        try:
            signature.bind(**kwargs)
        except TypeError as error:
            raise TypeError(f"{op_def.name}: {error}. It takes {signature}.") from None
        inputs = [kwargs.pop(arg.name) for arg in op_def.inputs]
        outputs = op_def(*inputs, **kwargs)
        return results(*outputs) if results is not None and isinstance(outputs, tuple) else outputs

    function.__name__ = function.__qualname__ = op_def.name
    function.__doc__ = f"Adds a node of type {op_def.name}; see docs/ops.md."
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _results(op_def: OpDef) -> Any:
    if len(op_def.outputs) < 2:
        return None
    return namedtuple(op_def.name, [arg.name for arg in op_def.outputs], rename=True)
