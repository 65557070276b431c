"""The way into AutoGraph for code that makes graphs of functions. It loads the rest when it is first needed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from penstock.autograph.libraries import function_of, is_of_library
from penstock.graph.hooks import hooks


def converted(function: Callable[..., Any], optional_features: Any = None) -> Callable[..., Any]:
    """A function that runs `function` in converted form, or as it is if its source cannot be read.

    >>> converted(lambda x: x if x > 0 else -x)(tf.constant(-2))  # a tensor: 2
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        from malt.core import ag_ctx  # start-up
        from malt.core.converter import ConversionOptions  # start-up

        from penstock.autograph.calls import converted_call  # start-up
        from penstock.autograph.sources import in_user_code  # start-up

        options = ConversionOptions(recursive=True, user_requested=True, optional_features=optional_features)
        try:
            with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, options):
                return converted_call(function, args, kwargs, options=options)
        except Exception as error:
            told = in_user_code(error)
            if told is error:
                raise
            raise told from error.__cause__

    # A partial has no name to take over.
    return functools.wraps(function)(run) if hasattr(function, "__name__") else run


def converted_in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """As `converted`, for functions that the program passes to ops: as they are where nothing is to be converted.

    >>> tf.map_fn(lambda x: x if x > 0 else -x, tf.constant([1, -2]))  # [1, 2]
    """
    found = function_of(function)
    if found is None or is_of_library(found):
        return function
    contexts = sys.modules.get("malt.core.ag_ctx")  # not loaded: then `do_not_convert` was not called either
    if contexts is not None and contexts.control_status_ctx().status is contexts.Status.DISABLED:
        return function
    return converted(function)


hooks.converted = converted_in_context
