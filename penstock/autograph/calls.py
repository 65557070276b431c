"""Converts functions, and the functions that these call, unless a library has them.

malt, AutoGraph as a package of its own, rewrites the source. The code that it writes calls what is named `ag__` there:
the operators of this folder.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

from malt import operators as malt_operators
from malt.core import ag_ctx
from malt.core.converter import STANDARD_OPTIONS, ConversionOptions, Feature, ProgramContext
from malt.impl import api as malt_api
from malt.operators import py_builtins as malt_builtins
from malt.pyct.inspect_utils import isbuiltin

from penstock import frames, logging
from penstock.autograph import conditionals, lists, loops
from penstock.autograph.libraries import function_of, is_of_library
from penstock.autograph.python_builtins import OVERLOADS
from penstock.autograph.sources import note_place
from penstock.graph.scopes import name_scope

_unconvertible: weakref.WeakSet[CodeType] = weakref.WeakSet()  # told of once


class FunctionScope:
    """Surrounds the body of a converted function; has the options for the calls in it."""

    def __init__(self, function_name: str, scope_name: str, options: ConversionOptions) -> None:
        self.name = scope_name
        self.callopts = options.call_options()
        self._exits = ExitStack()
        self._contexts: list[Any] = []
        if options.user_requested:
            self._contexts.append(ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, options))
        if options.uses(Feature.NAME_SCOPES):
            # The name of a scope cannot begin with an underscore.
            self._contexts.append(name_scope(f"fn{function_name}" if function_name[:1] == "_" else function_name))

    def __enter__(self) -> FunctionScope:
        for context in self._contexts:
            self._exits.enter_context(context)
        return self

    def __exit__(self, *error: Any) -> None:
        self._exits.close()

    def ret(self, value: Any, did_return: Any) -> Any:
        """The value that the function returns."""
        return None if isinstance(value, malt_operators.UndefinedReturnValue) else value


def with_function_scope(body: Callable[[FunctionScope], Any], scope_name: str, options: ConversionOptions) -> Any:
    """The value of a converted lambda."""
    with FunctionScope("lambda_", scope_name, options) as scope:
        return body(scope)


def converted_call(
    f: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    caller_fn_scope: FunctionScope | None = None,
    options: ConversionOptions | None = None,
) -> Any:
    """Calls `f`, converted if it is part of the program."""
    kwargs = kwargs or {}
    if options is None:
        assert caller_fn_scope is not None
        options = caller_fn_scope.callopts
    if ag_ctx.control_status_ctx().status is ag_ctx.Status.DISABLED or malt_api.is_autograph_artifact(f):
        return f(*args, **kwargs)
    if isinstance(f, functools.partial):
        return converted_call(f.func, (*f.args, *args), {**f.keywords, **kwargs}, caller_fn_scope, options)
    if isbuiltin(f):
        return _called_builtin(f, args, kwargs, caller_fn_scope)
    function = function_of(f)
    if function is None or not options.internal_convert_user_code or _runs_as_is(function):
        return f(*args, **kwargs)
    try:
        converted = convert(function, options)
    except Exception as error:
        _unconvertible.add(function.__code__)
        logging.warning(
            "AutoGraph could not transform %s and will run it as-is.\nCause: %s\nTo silence this warning, decorate the "
            "function with @tf.autograph.experimental.do_not_convert",
            f,
            error,
        )
        return f(*args, **kwargs)
    if not inspect.isfunction(f):
        args = (getattr(f, "__self__", f), *args)
    try:
        return converted(*args, **kwargs)
    except Exception as error:
        note_place(error, converted, converted_call.__code__)
        raise


def _called_builtin(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], scope: FunctionScope | None) -> Any:
    # These look at the frame of their caller, which here is not the program's.
    if f is eval:
        return malt_builtins.eval_in_original_context(f, args, scope)
    if f is super:
        return malt_builtins.super_in_original_context(f, args, scope)
    if f is globals:
        return malt_builtins.globals_in_original_context(scope)
    if f is locals:
        return malt_builtins.locals_in_original_context(scope)
    return OVERLOADS.get(f, f)(*args, **kwargs)


def _runs_as_is(function: FunctionType) -> bool:
    code = function.__code__
    return (
        is_of_library(function)
        or code in _unconvertible
        or code.co_filename == "<string>"  # from `exec`: there is no source to read
        or inspect.isgeneratorfunction(function)
        or malt_api.is_autograph_artifact(function)
    )


class _Transpiler(malt_api.PyToPy):  # type: ignore[misc]
    def get_transformed_name(self, node: Any) -> str:
        return f"tf__{super(malt_api.PyToPy, self).get_transformed_name(node)}"

    def get_extra_locals(self) -> dict[str, Any]:
        return {"ag__": _operators}


_transpiler = _Transpiler()


def convert(function: Any, options: ConversionOptions) -> Any:
    """A function like `function` whose control flow calls the operators. Equal calls share the converted code."""
    converted, module, converted.ag_source_map = _transpiler.transform(function, ProgramContext(options=options))
    if module.__file__ not in frames.generated:
        lines = {at.lineno: found.as_frame()[:3] for at, found in converted.ag_source_map.items()}
        frames.generated[module.__file__] = lines
    return converted


# The names that converted code can use.
_operators = SimpleNamespace(
    **{
        name: getattr(malt_operators, name)
        for name in ("GetItemOpts", "ListPopOpts", "ListStackOpts", "Undefined", "UndefinedReturnValue", "ld", "ldu")
    },
    **{
        name: getattr(module, name)
        for module, names in (
            (conditionals, ("and_", "assert_stmt", "eq", "if_exp", "if_stmt", "not_", "not_eq", "or_")),
            (
                lists,
                ("get_item", "list_append", "list_pop", "list_stack", "new_list", "set_item", "update_item_with_op"),
            ),
            (loops, ("for_stmt", "while_stmt")),
        )
        for name in names
    },
    ConversionOptions=ConversionOptions,
    Feature=Feature,
    FunctionScope=FunctionScope,
    STD=STANDARD_OPTIONS,
    autograph_artifact=malt_api.autograph_artifact,
    converted_call=converted_call,
    with_function_scope=with_function_scope,
)
