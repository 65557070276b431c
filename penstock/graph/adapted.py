"""adapted: a function under the parameters that TensorFlow 2 gives it, where TensorFlow 1 has others."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

_ABSENT = "_"


def adapted(function: Callable[..., Any], parameters: str, **given: Any) -> Callable[..., Any]:
    """`function` under other parameters, written as in Python; it gets the arguments `given` unless a caller says else.

    A parameter that `function` has under another name has that name for an annotation. One that it does not have has
    `_`: it takes its default alone, so that nothing is silently ignored. Without an argument the default of `function`
    counts.

    >>> conv2d_v2 = adapted(conv2d, "input, filters: filter, strides, padding, name=None")
    """
    names, signature = _parsed(parameters)
    order = list(signature.parameters)
    required = [name for name, p in signature.parameters.items() if p.default is p.empty]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(order):
            raise TypeError(f"{call.__name__}() takes {len(order)} arguments, received {len(args)}.")
        found = dict(given)
        for name, value in (*zip(order, args, strict=False), *kwargs.items()):
            if name not in names:
                raise TypeError(f"{call.__name__}() got an unexpected keyword argument '{name}'; it takes {order}.")
            target = names[name]
            if target != _ABSENT:
                found[target] = value
            elif not _same(value, signature.parameters[name].default):
                raise NotImplementedError(f"{call.__name__}: penstock has no {name}={value!r}; leave {name} out.")
        if args and kwargs and not kwargs.keys().isdisjoint(order[: len(args)]):
            raise TypeError(f"{call.__name__}() got multiple values for one of {order[: len(args)]}.")
        missing = [name for name in required if names[name] not in found]
        if missing:
            raise TypeError(f"{call.__name__}() needs the arguments {missing}.")
        return function(**found)

    call.__name__ = getattr(function, "__name__", "") or getattr(function, "default_name", "call")
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _parsed(parameters: str) -> tuple[dict[str, str], inspect.Signature]:
    """For each parameter its name in the function, and all as a signature."""
    (definition,) = ast.parse(f"def _({parameters}): ...").body
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args.args
    defaults: list[Any] = [inspect.Parameter.empty] * (len(arguments) - len(definition.args.defaults))
    defaults += [ast.literal_eval(default) for default in definition.args.defaults]
    names = {a.arg: a.annotation.id if isinstance(a.annotation, ast.Name) else a.arg for a in arguments}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return names, inspect.Signature(
        [inspect.Parameter(a.arg, kind, default=default) for a, default in zip(arguments, defaults, strict=True)]
    )
