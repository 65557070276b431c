"""JaxCall: a function that jax has exported as StableHLO, as one node that any task can run and differentiate."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax._src.export._export import _CUSTOM_CALL_TARGETS_GUARANTEED_STABLE as ALLOWED_CUSTOM_CALLS
from jax.interpreters import mlir

from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import Array, platform
from penstock.ops.engine.vjp import differentiable

_KEPT = 256  # modules are kept read
_PLATFORMS = {"gpu": "cuda"}  # jax's names of platforms, where they are not penstock's


def as_text(module: bytes | bytearray) -> str:
    """Decodes a serialised module such that it can be the value of a string attr."""
    return bytes(module).decode("utf-8", "surrogateescape")


def moving_positions(types: Sequence[DType]) -> list[int]:
    """Returns the positions of the types that have derivatives."""
    return [i for i, dtype in enumerate(types) if differentiable(dtype)]


# Reading: modules may come from anywhere


@functools.lru_cache(_KEPT)
def read_module(text: str) -> export.Exported:
    """Reads a serialised module, and checks that it can be called; ValueError if not.

    >>> read_module(as_text(exported.serialize())).call(x)
    """
    try:
        exported = export.deserialize(bytearray(text.encode("utf-8", "surrogateescape")))
        with mlir.make_ir_context():
            module = exported.mlir_module(serialized=False)
            custom_calls = set(_custom_calls(module.operation))
            main = next(f.type for f in module.body.operations if _name_of(f) == "main")
            declared = _declared(exported)
            found = [[str(t) for t in types] for types in (main.inputs, main.results)]
    except Exception as error:  # the readers of jax raise many kinds for bytes that are no module
        raise ValueError(
            f"its module of {len(text)} bytes is none that jax.export wrote ({type(error).__name__}: {error})"
        ) from error
    oldest, newest = (
        export.minimum_supported_calling_convention_version,
        export.maximum_supported_calling_convention_version,
    )
    version = exported.calling_convention_version
    if not oldest <= version <= newest:
        raise ValueError(
            f"its module has calling convention {version}, and jax {jax.__version__} has {oldest} to {newest}: "
            "export it with a version of jax that is nearer to this one"
        )
    # Any other call could run whatever is registered in this process, Python functions included.
    if unknown := sorted(custom_calls - ALLOWED_CUSTOM_CALLS):
        raise ValueError(f"its module has custom calls without guarantees of jax.export: {', '.join(unknown)}")
    flat = jax.tree.structure(((0,) * len(exported.in_avals), {})), jax.tree.structure((0,) * len(exported.out_avals))
    if (exported.in_tree, exported.out_tree) != flat:
        raise ValueError("its module does not take and return tuples of arrays")
    if exported.nr_devices != 1 or exported.ordered_effects or exported.unordered_effects:
        raise ValueError(f"its module is for {exported.nr_devices} devices or has effects: one device and none can be")
    if len(exported.platforms) > 1 and found[0][:1] in (["tensor<i32>"], ["tensor<i64>"]):
        del found[0][0]  # the number of the platform
    if found != declared:
        raise ValueError(f"its module declares {declared}, and its code has {found}")
    return exported


def _name_of(operation: Any) -> str:
    return operation.attributes["sym_name"].value if "sym_name" in operation.attributes else ""


def _custom_calls(operation: Any) -> Iterator[str]:
    """Yields the targets of all custom calls in an operation of MLIR."""
    if operation.name == "stablehlo.custom_call":
        yield operation.attributes["call_target_name"].value
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _custom_calls(inner.operation)


def _declared(exported: export.Exported) -> list[list[str]]:
    """Returns the types of inputs and results that the code of a module must have, as MLIR writes them."""
    kept = [exported.in_avals[i] for i in exported.module_kept_var_idx]
    return [[_type_of(aval) for aval in avals] for avals in (kept, exported.out_avals)]


def _type_of(aval: Any) -> str:
    sizes = "".join(f"{d if isinstance(d, int) else '?'}x" for d in aval.shape)
    return f"tensor<{sizes}{mlir.dtype_to_ir_type(aval.dtype)}>"


def _read_for(modules: Sequence[str], Tin: Sequence[DType], Tout: Sequence[DType]) -> export.Exported:
    """Reads the first module; ValueError if it does not take and return these types."""
    if not modules:
        raise ValueError("it has no module")
    exported = read_module(modules[0])
    for kind, avals, types in (("takes", exported.in_avals, Tin), ("returns", exported.out_avals, Tout)):
        has, wanted = [str(a.dtype) for a in avals], [t.base_dtype.name for t in types]
        if has != wanted:
            raise ValueError(f"its module {kind} {has}, but the node says {wanted}")
    return exported


# The op


def _shapes(node: Operation) -> list[TensorShape]:
    exported = _read_for(node.attrs["modules"], node.attrs["Tin"], node.attrs["Tout"])
    known: dict[str, int | None] = {}  # the sizes of jax's symbols
    for i, (aval, tensor) in enumerate(zip(exported.in_avals, node.input_list, strict=True)):
        wanted = TensorShape.of(tuple(d if isinstance(d, int) else None for d in aval.shape))
        if not wanted.is_compatible_with(tensor.shape):
            raise ValueError(f"input {i} must have shape {wanted}")
        if tensor.shape.rank is not None:
            known |= {str(d): n for d, n in zip(aval.shape, tensor.shape.as_list(), strict=True) if n is not None}
    return [
        TensorShape.of(tuple(d if isinstance(d, int) else known.get(str(d)) for d in aval.shape))
        for aval in exported.out_avals
    ]


def _gradient(node: Operation, *dys: Any) -> list[Any]:
    """Calls the next module: it takes the inputs and the gradients of the outputs that have some."""
    types = list(node.attrs["Tin"])
    moving, wanted = moving_positions(types), moving_positions(node.attrs["Tout"])
    result: list[Any] = [None] * len(types)
    if not moving or not wanted:
        return result
    following = node.attrs["modules"][1:]
    if not following:
        reason = node.attrs["no_gradient"] or "its VJP was not exported: pass a higher vjp_order to from_jax"
        raise LookupError(f"'{node.name}' (JaxCall of {node.attrs['function']}) has no gradient: {reason}.")
    gradients = jax_call(
        [*node.input_list, *(dys[i] for i in wanted)],
        modules=following,
        function=node.attrs["function"],
        no_gradient=node.attrs["no_gradient"],
        Tout=[types[i] for i in moving],
    )
    for i, gradient in zip(moving, gradients, strict=True):
        result[i] = gradient
    return result


@op("JaxCall", "list(Tin) -> output: list(Tout)", shape=_shapes, grad=_gradient)
def jax_call(
    inputs: list[Array],
    *,
    modules: list[str],
    function: str = "",
    no_gradient: str = "",
    Tin: list[DType],
    Tout: list[DType],
) -> list[Array]:
    """Calls the first of `modules`. The others are its VJP, the VJP of that, and so on, for gradients.

    `function` is the name of the Python function, and `no_gradient` says why jax could make no further VJP.
    """
    exported = _read_for(modules, Tin, Tout)
    here = _PLATFORMS.get(platform(), platform())
    if here not in exported.platforms:
        raise ValueError(f"{function} was exported for {', '.join(exported.platforms)}, and this device is a {here}")
    return list(exported.call(*map(jnp.asarray, inputs)))
