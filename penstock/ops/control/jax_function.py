"""from_jax: a function of JAX as a node of the graph, with its gradient, that runs on any task."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.stages import Wrapped

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.ops.control.jax_call import as_text, jax_call, moving_positions

_PLATFORMS = ("cpu", "cuda", "tpu")
_TRACES = 128  # of one function, kept for further calls
# Raised by jax for what it cannot differentiate or lower.
_REFUSALS = (TypeError, ValueError, NotImplementedError, jax.errors.InconclusiveDimensionOperation)

Dims = tuple[int | None, ...]
Spec = tuple[DType, Dims]
Flat = Callable[..., tuple[Any, ...]]  # from arrays to arrays


def from_jax(fn: Callable[..., Any], *, vjp_order: int = 2, name: str | None = None) -> Callable[..., Any]:
    """Returns `fn`, a function of JAX on arrays in any pytrees, as a function on tensors that adds one node.

    The node holds `fn` as StableHLO for CPUs, GPUs and TPUs, so it can be placed on any task, saved in a GraphDef, and
    differentiated up to `vjp_order` times. `fn` is traced for the types and static shapes of its arguments, with a
    symbol for each size that is not known; where `fn` needs them to be equal, all unknown first sizes have the same
    one. If an argument has 64 bits, `fn` is traced as with `jax_enable_x64`, else with jax's default of 32. Arrays that
    `fn` closes over become part of the node: pass what is large or learns as an argument.

    >>> def predict(params, x):
    ...     return jax.nn.relu(x @ params["w"] + params["b"])
    >>> y = penstock.from_jax(predict)({"w": w, "b": b}, x)  # w and b may be variables
    """
    if not callable(fn):
        raise TypeError(f"from_jax takes a function, received {fn!r}.")
    if vjp_order < 0:
        raise ValueError(f"from_jax: vjp_order must be 0 or more, received {vjp_order}.")
    called = _name_of(fn)
    node_name = name or re.sub(r"[^A-Za-z0-9_.]", "", called).lstrip("_.") or "JaxCall"
    export_for = functools.lru_cache(_TRACES)(functools.partial(_exported, fn, called, vjp_order))

    @functools.wraps(fn, updated=())
    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten_with_path((args, kwargs))
        arguments = tuple(_argument(path) for path, _ in leaves)
        with name_scope(node_name) as scope:
            tensors = [_tensor(called, a, leaf) for a, (_, leaf) in zip(arguments, leaves, strict=True)]
            found = export_for(tree, tuple(map(functools.partial(spec_of, called), arguments, tensors)), arguments)
            outputs = jax_call(
                tensors,
                modules=found.modules,
                function=called,
                no_gradient=found.no_gradient,
                Tout=found.types,
                name=scope,
            )
        return jax.tree.unflatten(found.tree, outputs if found.types else [])

    return on_tensors


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


# Arguments


def _argument(path: Any) -> str:
    """Names a leaf of (args, kwargs) as jax does: args[0]['w'], or the keyword."""
    where, *rest = path
    return ("args" if where.idx == 0 else "kwargs") + jax.tree_util.keystr(tuple(rest))


def _tensor(called: str, argument: str, leaf: Any) -> Tensor:
    try:
        tensor = convert_to_tensor(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(f"from_jax({called}): {argument} is no tensor but {leaf!r:.100} ({error})") from error
    dtype = tensor.dtype.base_dtype
    if not (dtype.is_floating or dtype.is_complex or dtype.is_integer or dtype.is_bool):
        raise TypeError(f"from_jax({called}): {argument} is of type {dtype.name}, which arrays of jax cannot have.")
    return tensor


def spec_of(called: str, argument: str, tensor: Tensor) -> Spec:
    """Returns the type and the static sizes of an argument of a function."""
    if tensor.shape.rank is None:
        raise ValueError(
            f"from_jax({called}): the rank of {argument} ('{tensor.name}') is not known. Give it a shape, for example "
            "with tf.ensure_shape or set_shape."
        )
    return tensor.dtype.base_dtype, tuple(tensor.shape.as_list())


# Tracing and exporting


@dataclass(frozen=True)
class _Exported:
    modules: tuple[str, ...]  # of the function, its VJP, the VJP of that, ...
    no_gradient: str  # why there are no more
    types: tuple[DType, ...]  # of the outputs
    tree: Any  # the structure of the outputs


def _exported(
    fn: Callable[..., Any], called: str, vjp_order: int, tree: Any, specs: tuple[Spec, ...], arguments: tuple[str, ...]
) -> _Exported:
    out_tree: Any = None

    def flat(*leaves: Any) -> tuple[Any, ...]:
        nonlocal out_tree
        args, kwargs = jax.tree.unflatten(tree, leaves)
        results, out_tree = jax.tree.flatten(fn(*args, **kwargs))
        return tuple(results)

    # penstock itself has 64 bits turned on.
    with jax.enable_x64(is_wide(specs)):
        function = _jitted(flat, called)
        structs, outputs = traced(function, called, specs, arguments)
        try:
            types = [as_dtype(output.dtype) for output in outputs]
        except TypeError as error:
            found = ", ".join(str(o.dtype) for o in outputs)
            raise TypeError(f"from_jax({called}): it returns {found}, and tensors have no such type") from error
        modules = [_module(function, called, structs)]
        no_gradient, inputs, results = "", [dtype for dtype, _ in specs], types
        for _ in range(vjp_order):
            moving, wanted = moving_positions(inputs), moving_positions(results)
            if not moving or not wanted:
                break
            function = _jitted(_vjp(function, len(inputs), moving, wanted), called)
            structs = [*structs, *(outputs[i] for i in wanted)]
            try:
                outputs = jax.eval_shape(function, *structs)
                modules.append(_module(function, called, structs))
            except _REFUSALS as error:  # told where a gradient is asked for: many functions are only called
                no_gradient = f"jax cannot differentiate it ({_first_line(error)})"
                break
            inputs, results = [*inputs, *(results[i] for i in wanted)], [inputs[i] for i in moving]
    return _Exported(tuple(modules), no_gradient, tuple(types), out_tree)


def _jitted(function: Flat, called: str) -> Wrapped:
    """Returns a function that is traced once for all its uses; its modules bear the name `called`."""
    function.__name__ = called
    return jax.jit(function)


def is_wide(specs: Sequence[Spec]) -> bool:
    """Tells if an argument has 64 bits, so that a function is traced as with `jax_enable_x64`."""
    return any(dtype.size == 8 * (1 + dtype.is_complex) for dtype, _ in specs)


def traced(
    function: Callable[..., Any], called: str, specs: Sequence[Spec], arguments: Sequence[str]
) -> tuple[list[Any], Any]:
    """Returns the inputs and outputs of a function in abstract form, with symbols for unknown sizes."""
    unknown = [(i, axis) for i, (_, dims) in enumerate(specs) for axis, d in enumerate(dims) if d is None]
    error: Exception | None = None
    for first in ("", "batch") if len([axis for _, axis in unknown if axis == 0]) > 1 else ("",):
        structs = _structs(specs, unknown, first)
        try:
            return structs, jax.eval_shape(function, *structs)
        except Exception as refusal:  # the function is the program's, and may raise any kind
            if not unknown:
                refusal.add_note(f"This happened while from_jax traced {called} for {_listed(specs, arguments)}.")
                raise
            error = refusal
    assert error is not None
    open_ones = [arguments[i] for i in dict.fromkeys(i for i, _ in unknown)]
    raise ValueError(
        f"from_jax({called}): it cannot be traced while sizes of {', '.join(open_ones)} are unknown, for "
        f"{_listed(specs, arguments)}. Give them static shapes, for example with tf.ensure_shape. jax says: {error}"
    ) from error


def _structs(specs: Sequence[Spec], unknown: Sequence[tuple[int, int]], first: str) -> list[Any]:
    """Returns the inputs in abstract form; unknown sizes of first axes have the symbol `first`, if that is given."""
    names = {at: first if first and at[1] == 0 else f"size{i}" for i, at in enumerate(unknown)}
    symbols: dict[str, Any] = {}
    if names:
        distinct = list(dict.fromkeys(names.values()))
        symbols = dict(zip(distinct, export.symbolic_shape(", ".join(distinct)), strict=True))
    return [
        jax.ShapeDtypeStruct(
            tuple(symbols[names[i, axis]] if d is None else d for axis, d in enumerate(dims)), dtype.as_numpy_dtype
        )
        for i, (dtype, dims) in enumerate(specs)
    ]


def _vjp(function: Flat, count: int, moving: Sequence[int], wanted: Sequence[int]) -> Flat:
    """Returns a function from `count` inputs and the gradients of some outputs to those of some inputs."""

    def pulled(*arrays: Any) -> tuple[Any, ...]:
        inputs, gradients = arrays[:count], arrays[count:]

        def of_moving(*moved: Any) -> list[Any]:
            values = list(inputs)
            for i, value in zip(moving, moved, strict=True):
                values[i] = value
            results = function(*values)
            return [results[i] for i in wanted]

        _, pull = jax.vjp(of_moving, *(inputs[i] for i in moving))
        # TensorFlow's gradient of a complex tensor is the conjugate of jax's.
        return tuple(jnp.conj(g) for g in pull([jnp.conj(g) for g in gradients]))

    return pulled


def _module(function: Wrapped, called: str, structs: Sequence[Any]) -> str:
    """Returns the serialised function, for as many platforms as jax can lower it to."""
    try:
        return _serialised(function, _PLATFORMS, structs)
    except _REFUSALS as error:
        able = [platform for platform in _PLATFORMS if _can_lower(function, platform, structs)]
        if not able:
            raise ValueError(
                f"from_jax({called}): jax.export refuses it, since only code that other processes can run as well may "
                f"be in it, no callbacks into Python. jax says: {error}"
            ) from error
        return _serialised(function, able, structs)


def _serialised(function: Wrapped, platforms: Sequence[str], structs: Sequence[Any]) -> str:
    # Equal modules are one object, however often a function is converted.
    return sys.intern(as_text(export.export(function, platforms=platforms)(*structs).serialize()))


def _can_lower(function: Wrapped, platform: str, structs: Sequence[Any]) -> bool:
    try:
        export.export(function, platforms=[platform])(*structs)
    except _REFUSALS:
        return False
    return True


def _listed(specs: Sequence[Spec], arguments: Sequence[str]) -> str:
    forms = [f"{dtype.name}[{', '.join('?' if d is None else str(d) for d in dims)}]" for dtype, dims in specs]
    return ", ".join(f"{argument}: {form}" for argument, form in zip(arguments, forms, strict=True)) or "no arguments"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
