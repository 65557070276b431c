"""`tf.autograph`: functions of the program in converted form."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from malt.core.converter import ConversionOptions, Feature
from malt.impl.api import ConversionError, autograph_artifact, do_not_convert
from malt.lang.directives import set_loop_options
from malt.utils.ag_logging import set_verbosity, trace

from penstock.autograph.calls import convert

__all__ = ["Feature", "do_not_convert", "set_loop_options", "set_verbosity", "to_code", "to_graph", "trace"]


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """A function like `entity` in which control flow over tensors becomes nodes, also in the functions that it calls.

    >>> def magnitude(x):
    ...     return x if x > 0 else -x
    >>> tf.autograph.to_graph(magnitude)(tf.constant(-2))  # a tensor: 2
    """
    options = ConversionOptions(
        recursive=recursive, user_requested=True, optional_features=experimental_optional_features
    )
    if not hasattr(entity, "__code__"):
        raise ConversionError(f"to_graph converts functions and methods, received {entity!r}.")
    try:
        converted: Callable[..., Any] = autograph_artifact(convert(entity, options))
    except (ValueError, AttributeError, KeyError, NameError, AssertionError) as error:
        raise ConversionError(f"converting {entity}: {type(error).__name__}: {error}") from error
    return converted


def to_code(entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None) -> str:
    """The Python source of what `to_graph` gives.

    >>> print(tf.autograph.to_code(magnitude))
    def tf__magnitude(x): ...
    """
    return textwrap.dedent(inspect.getsource(to_graph(entity, recursive, experimental_optional_features)))
