"""The signatures of a SavedModel: functions from tensors by name to tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.data.structure import TensorSpec
from penstock.eager.arguments import FunctionSpec
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function import Function, function
from penstock.graph import nest
from penstock.graph.operation import Tensor
from penstock.saved_model.functions import LoadedFunction, parameters_of

DEFAULT = "serving_default"


def concrete_signatures(root: Any, functions: Mapping[str, Any], signatures: Any) -> dict[str, ConcreteFunction]:
    """The functions to save as signatures, by name, each traced as a function of tensors by name.

    Without `signatures`, the only function of the root that has an input signature becomes `serving_default`.
    """
    if signatures is None:
        known = [concrete for f in functions.values() if (concrete := _concrete(f)) is not None]
        possible = [concrete for concrete in known if _can_serve(concrete)]
        return {DEFAULT: _wrapped(possible[0], DEFAULT)} if len(possible) == 1 else {}
    named = signatures if isinstance(signatures, Mapping) else {DEFAULT: signatures}
    found: dict[str, ConcreteFunction] = {}
    for name, given in named.items():
        chosen = _concrete(given)
        if chosen is None:
            raise ValueError(
                f"Expected a TensorFlow function for which to generate a signature, but got {given!r:.200} for "
                f"'{name}'. Use a tf.function with an input_signature, or the result of its get_concrete_function."
            )
        if not _can_serve(chosen):
            raise ValueError(
                f"The function for the signature '{name}' must take tensors and return a tensor, or tensors in a list "
                f"or dict, received {chosen.structured_input_signature} -> {chosen.structured_outputs!r:.300}."
            )
        found[name] = _wrapped(chosen, name)
    return found


def _concrete(given: Any) -> ConcreteFunction | None:
    if isinstance(given, ConcreteFunction):
        return given
    if isinstance(given, (Function, LoadedFunction)) and given.input_signature is not None:
        return given.get_concrete_function()
    return None


def _specs(concrete: ConcreteFunction) -> dict[str, TensorSpec] | None:
    """The tensors that a function takes, by name; None if it takes anything else."""
    args, kwargs = concrete.structured_input_signature
    found: dict[str, TensorSpec] = {}
    for leaf in nest.flatten((args, kwargs)):
        if isinstance(leaf, TensorSpec) and type(leaf) is TensorSpec:
            name = leaf.name or f"argument_{len(found)}"
            if name in found:
                return None
            found[name] = leaf
        elif isinstance(leaf, TensorSpec):
            return None
    return found


def _can_serve(concrete: ConcreteFunction) -> bool:
    return _specs(concrete) is not None and _outputs(concrete.structured_outputs) is not None


def _outputs(result: Any) -> dict[str, Any] | None:
    """Results by name: those of a dict, or `output_0`, ... of a list; None if they cannot be served."""
    if isinstance(result, Mapping):
        named = dict(result)
    else:
        flat = result if isinstance(result, (list, tuple)) else [result]
        named = {f"output_{i}": value for i, value in enumerate(flat)}
    fits = all(isinstance(k, str) and isinstance(v, (Tensor, TensorSpec)) for k, v in named.items())
    return named if fits and named else None


def _wrapped(concrete: ConcreteFunction, name: str) -> ConcreteFunction:
    """The function as one of tensors by name."""
    specs = _specs(concrete)
    assert specs is not None
    order = list(specs)

    def signature_wrapper(**given: Any) -> Any:
        return _outputs(concrete.call([given[key] for key in order]))

    traced = function(signature_wrapper)
    named = {key: TensorSpec(spec.shape, spec.dtype, key) for key, spec in specs.items()}
    found: ConcreteFunction = traced.get_concrete_function(**named)
    found.structured_outputs = {
        key: TensorSpec(t.shape, t.dtype.base_dtype, key) for key, t in sorted(found.structured_outputs.items())
    }
    found.structured_input_signature = ((), dict(sorted(named.items())))
    found.function_spec = FunctionSpec(parameters_of(sorted(named), 0), name)
    return found
