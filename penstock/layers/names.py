"""Activations and initializers by name: `activation="relu"`."""

from __future__ import annotations

from typing import Any

from penstock.ops.math import unary
from penstock.ops.nn import activation, layer_parts
from penstock.variables import initializers

_ACTIVATIONS: dict[str, Any] = {
    "elu": activation.elu,
    "linear": lambda x: x,
    "relu": activation.relu,
    "selu": activation.selu,
    "sigmoid": unary.sigmoid,
    "softmax": layer_parts.softmax,
    "softplus": activation.softplus,
    "softsign": activation.softsign,
    "tanh": unary.tanh,
}
_INITIALIZERS: dict[str, Any] = {
    "glorot_normal": initializers.GlorotNormal,
    "glorot_uniform": initializers.GlorotUniform,
    "he_normal": initializers.HeNormal,
    "he_uniform": initializers.HeUniform,
    "ones": initializers.Ones,
    "lecun_normal": initializers.LecunNormal,
    "lecun_uniform": initializers.LecunUniform,
    "orthogonal": initializers.Orthogonal,
    "identity": initializers.Identity,
    "zeros": initializers.Zeros,
}


def _named(what: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise ValueError(f"Unknown {what} '{name}': known by name are {', '.join(sorted(known))}.")
    return known[name]


def activation_named(given: Any) -> Any:
    """`given` itself, or the activation of that name."""
    return _named("activation", given, _ACTIVATIONS) if isinstance(given, str) else given


def initializer_named(given: Any) -> Any:
    """`given` itself, or an initializer of that name."""
    return _named("initializer", given, _INITIALIZERS)() if isinstance(given, str) else given
