"""The variables of a loop that becomes a node: what they may be, and what stands for those that only it defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from malt.operators import Undefined, UndefinedReturnValue

from penstock.autograph.conditionals import PYTHON_VALUES, GetState, SetState, dtype_of
from penstock.autograph.dispatch import scratch_graph
from penstock.graph import nest
from penstock.graph.arrays import array_of
from penstock.graph.function import FuncGraph
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.ops.array.creation import zeros
from penstock.ops.control.tensor_array import TensorArray
from penstock.variables.variable import Variable

_LEGAL_TYPES = "Tensor, int, float, bool or a list, tuple or dict thereof"


class Variables(NamedTuple):
    """The loop variables of a statement: how they are read and set in the converted function, and their names."""

    get: GetState
    set: SetState
    names: tuple[str, ...]


def is_missing(value: Any) -> bool:
    """Tells if a loop variable has no value that a tensor could have."""
    return value is None or isinstance(value, (Undefined, UndefinedReturnValue))


def require_defined(
    values: Sequence[Any], names: Sequence[str], after: Sequence[Any] | None = None, note: str = ""
) -> None:
    """Raises unless each loop variable has a value before the loop; `after` are those of the first iteration."""
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        if isinstance(value, UndefinedReturnValue):
            if after is not None and not is_missing(after[i]):
                raise ValueError(
                    f"the return value from a TensorFlow loop may only be a {_LEGAL_TYPES}; got {type(after[i])}"
                )
            raise NotImplementedError(
                "a return statement cannot be placed inside this TensorFlow loop; this may happen if a return "
                "statement depends on a static Python condition such as a hyperparameter"
            )
        if value is None:
            raise ValueError(f"'{name}' is not allowed to be None before the loop")
        if isinstance(value, Undefined):
            raise ValueError(f"'{name}' must be defined before the loop" + (f"\n{note}" if note else ""))


# Shapes


def shape_of(leaf: Any) -> TensorShape | None:
    """The static shape of a leaf that is one tensor."""
    if isinstance(leaf, TensorArray):
        return leaf.flow.shape
    if isinstance(leaf, PYTHON_VALUES):
        return TensorShape.of(array_of(leaf)[0].shape)
    shape = getattr(leaf, "shape", None)
    return shape if isinstance(shape, TensorShape) else None


def invariants_of(values: Sequence[Any], given: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The shape invariant of each loop variable, or None; `given` are pairs of a variable and its invariant."""
    return [next((invariant for key, invariant in given if key is value), None) for value in values]


def all_shapes(values: Sequence[Any], invariants: Sequence[Any]) -> tuple[Any, ...]:
    """A shape for each leaf: its variable's invariant, else its own shape."""
    return tuple(
        nest.map_structure(shape_of, value) if invariant is None else invariant
        for value, invariant in zip(values, invariants, strict=True)
    )


# Between iterations


def require_same_form(names: Sequence[str], entry: Sequence[Any], after: Sequence[Any], invariants: Any = None) -> None:
    """Raises unless each variable leaves an iteration as it entered it. Without `invariants` shapes may differ."""
    for i, (name, before, value) in enumerate(zip(names, entry, after, strict=True)):
        try:
            nest.assert_same_structure(before, value)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"'{name}' does not have the same nested structure after one iteration.\n\n{error}"
            ) from error
        leaves = list(zip(nest.flatten(before), nest.flatten(value), strict=True))
        for one, other in leaves:
            _require_same_type(name, one, other)
        if invariants is None:
            continue
        if invariants[i] is not None:
            require_within(name, value, invariants[i], "after one iteration")
            continue
        for one, other in leaves:
            _require_same_shape(name, shape_of(one), shape_of(other))


def require_within(name: str, value: Any, invariant: Any, when: str) -> None:
    """Raises unless a variable has a shape that its invariant allows."""
    leaves = nest.flatten(value)
    shapes = nest.flatten(invariant) if nest.is_nested(value) else [invariant]
    if len(leaves) != len(shapes):
        raise TypeError(
            f"'{name}' does not have the same nested structure as its corresponding shape invariant {invariant}."
        )
    for leaf, shape in zip(leaves, map(as_shape, shapes), strict=True):
        if not _is_within(shape_of(leaf), shape):
            raise ValueError(
                f"'{name}' has shape {shape_of(leaf)} {when}, which does not conform with the shape invariant {shape}."
            )


def _require_same_type(name: str, before: Any, after: Any) -> None:
    if after is None:
        raise ValueError(f"'{name}' is None at the end of the iteration.")
    types = dtype_of(before), dtype_of(after)
    if None not in types and types[0] != types[1]:
        raise TypeError(f"'{name}' has dtype {types[0]} before the loop, but dtype {types[1]} after one iteration")


def _require_same_shape(name: str, before: TensorShape | None, after: TensorShape | None) -> None:
    if before is not None and not _is_within(after, before):
        raise ValueError(
            f"'{name}' has shape {before} before the loop, but shape {after} after one iteration. Use "
            "tf.autograph.experimental.set_loop_options to set shape invariants."
        )


def _is_within(shape: TensorShape | None, wanted: TensorShape) -> bool:
    """Tells if `shape` is known at least as well as `wanted`, and like it."""
    if shape is None or wanted.rank is None:
        return True
    return shape.rank == wanted.rank and all(
        w is None or w == s for s, w in zip(shape.as_list(), wanted.as_list(), strict=True)
    )


# Variables that only the loop defines


def with_stand_ins(
    body: Callable[[], None], variables: Variables, values: tuple[Any, ...], invariants: list[Any]
) -> tuple[tuple[Any, ...], list[Any]]:
    """The loop variables and their invariants, with zeros for variables that are missing.

    The body is tried in a graph of its own, to see of which type and shape the zeros must be. It assigns before it
    reads, or the trial fails; so which values stand there does not matter.
    """
    after: tuple[Any, ...] | None = None
    note = ""
    filled = list(zip(values, invariants, strict=True))
    try:
        with scratch_graph().as_default() as scratch:
            variables.set([nest.map_structure(lambda leaf: _as_parameter(leaf, scratch), v) for v in values])
            body()
            after = variables.get()
        filled = [
            _stand_in(found, value, invariant) if is_missing(value) else (value, invariant)
            for value, found, invariant in zip(values, after, invariants, strict=True)
        ]
    except (UnboundLocalError, TypeError, ValueError, KeyError) as error:
        note = f"Note: AutoGraph tried to define it automatically, but ran into a {type(error).__name__}: {error}"
    finally:
        variables.set(values)
    given = tuple(value for value, _ in filled)
    require_defined(given, variables.names, after, note)
    return given, [invariant for _, invariant in filled]


def _as_parameter(leaf: Any, scratch: FuncGraph) -> Any:
    """In a loop each variable is a tensor, so its Python value must not be seen."""
    if not isinstance(leaf, PYTHON_VALUES):
        return leaf
    array, dtype = array_of(leaf)
    return scratch.parameter(dtype, array.shape, "variable")


def _stand_in(like: Any, missing: Any, invariant: Any) -> tuple[Any, Any]:
    """A value of the type and shape of `like` with its invariant; the missing value if there is none."""
    if is_missing(like):
        return missing, None
    if isinstance(like, (bool, int, float)):
        return type(like)(0), None
    if isinstance(like, (Tensor, Variable)):
        shape = like.shape if invariant is None else as_shape(invariant)
        sizes = [] if shape.rank is None else [size or 0 for size in shape.as_list()]
        return zeros(sizes, like.dtype.base_dtype), shape
    if isinstance(like, (list, tuple, dict)):
        leaves = nest.flatten(like)
        given = [None] * len(leaves) if invariant is None else nest.flatten(invariant)
        pairs = [_stand_in(leaf, missing, shape) for leaf, shape in zip(leaves, given, strict=True)]
        shapes = [shape_of(value) if shape is None else shape for value, shape in pairs]
        return nest.pack_sequence_as(like, [value for value, _ in pairs]), nest.pack_sequence_as(like, shapes)
    raise TypeError(
        f"Found an unsupported type '{type(like).__name__}' while creating placeholder for {like}. Supported types "
        "include Tensor, int, float, bool, list, tuple or dict."
    )
