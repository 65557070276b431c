"""`while` and `for` statements, over tensors and over Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from malt.operators import Undefined, UndefinedReturnValue

from penstock.autograph import loop_state
from penstock.autograph.conditionals import GetState, SetState, as_predicate
from penstock.autograph.dispatch import becomes_nodes, is_dataset, is_eager, scratch_graph
from penstock.autograph.loop_state import Variables
from penstock.autograph.python_builtins import len_
from penstock.errors import OperatorNotAllowedInGraphError
from penstock.graph import nest
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.shape import TensorShape
from penstock.ops.array.passthrough import identity
from penstock.ops.control.flow import cond, while_loop
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math.compare import less, logical_and, logical_not, logical_or
from penstock.ops.ragged.ragged_tensor import RaggedTensor

Options = dict[str, Any]
Test = Callable[[], Any]

_BECAME_TENSOR = (
    "The condition of while loop started as non-Tensor, then changed to Tensor. This may happen either because "
    "variables changed type, or when a break or return statement inside the loop depends on a Tensor condition. In "
    "both cases, changing to a TF loop should remove the error."
)
_BREAKS_ON_TENSOR = (
    "break and return statements which depend on a TF condition are not supported in Python for loops. Did you intend "
    "to make it a TF loop?"
)


def while_stmt(
    test: Test,
    body: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: tuple[str, ...],
    opts: Options,
) -> None:
    """Runs a `while` statement. The body assigns to variables of the converted function, which `get_state` reads."""
    if is_eager():
        while test():
            body()
        return
    with scratch_graph().as_default():
        first = test()  # a While node evaluates it again, in a body of its own
        is_node = becomes_nodes(first)
    if is_node:
        _while_node(test, body, Variables(get_state, set_state, symbol_names), opts)
    elif first:
        body()
        while _is_true(test(), _BECAME_TENSOR):
            body()


def _is_true(result: Any, otherwise: str) -> bool:
    try:
        return bool(result)
    except OperatorNotAllowedInGraphError as error:
        raise NotImplementedError(otherwise) from error


def _while_node(test: Test, body: Callable[[], None], variables: Variables, opts: Options) -> None:
    before = variables.get()
    names = variables.names
    invariants = loop_state.invariants_of(before, opts.get("shape_invariants", ()))
    values = before
    must_iterate = any(map(loop_state.is_missing, before))
    if must_iterate:
        values, invariants = loop_state.with_stand_ins(body, variables, before, invariants)
    for name, value, invariant in zip(names, values, invariants, strict=True):
        if invariant is not None:
            loop_state.require_within(name, value, invariant, "before the loop")

    # The first loop variable tells if there was an iteration. It also is there if the body assigns to nothing.
    def node_test(_: Tensor, *current: Any) -> Tensor:
        variables.set(current)
        return as_predicate(test(), "while loop")

    def node_body(_: Tensor, *current: Any) -> tuple[Any, ...]:
        variables.set(current)
        body()
        after = variables.get()
        loop_state.require_same_form(names, current, after, invariants)
        return (True, *after)

    options = {key: value for key, value in opts.items() if key not in ("iterate_names", "shape_invariants")}
    if any(invariant is not None for invariant in invariants):
        options["shape_invariants"] = (TensorShape(()), *loop_state.all_shapes(values, invariants))
    iterated, *after = while_loop(node_test, node_body, (False, *values), return_same_structure=True, **options)
    if must_iterate:
        with control_dependencies([Assert(iterated, [_no_iteration(names, before)])]):
            after = [nest.map_structure(_copied, value) for value in after]
    variables.set(after)


def _copied(leaf: Any) -> Any:
    return identity(leaf) if isinstance(leaf, Tensor) else leaf


def _no_iteration(names: tuple[str, ...], before: tuple[Any, ...]) -> str:
    missing = [
        "the function return value" if isinstance(value, UndefinedReturnValue) else name
        for name, value in zip(names, before, strict=True)
        if loop_state.is_missing(value)
    ]
    return f"loop must iterate at least once to initialize {', '.join(missing)}"


# for


def for_stmt(
    iterated: Any,
    extra_test: Test | None,
    body: Callable[[Any], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: tuple[str, ...],
    opts: Options,
) -> None:
    """Runs a `for` statement; `extra_test` is false once a `break` or `return` was reached."""
    variables = Variables(get_state, set_state, symbol_names)
    if is_dataset(iterated) and not is_eager():
        from penstock.autograph.datasets import for_dataset  # start-up

        for_dataset(iterated, extra_test, body, variables)
    elif not becomes_nodes(iterated):
        _python_for(iterated, extra_test, body)
    elif isinstance(iterated, Tensor) and iterated.op.type == "Range":
        _for_range(iterated, extra_test, body, variables, opts)
    else:
        _for_rows(iterated, extra_test, body, variables, opts)


def _python_for(iterated: Any, extra_test: Test | None, body: Callable[[Any], None]) -> None:
    def goes_on() -> bool:
        return extra_test is None or _is_true(extra_test(), _BREAKS_ON_TENSOR)

    if goes_on():
        for item in iterated:
            body(item)
            if not goes_on():
                break


def _for_range(
    numbers: Tensor, extra_test: Test | None, body: Callable[[Any], None], variables: Variables, opts: Options
) -> None:
    """Counts in the loop, so that the numbers of a `tf.range` never exist all at once."""
    start, limit, delta = numbers.op.inputs
    step = constant_value(delta)

    def is_inside(number: Any) -> Any:
        if step is not None:
            return less(number, limit) if step >= 0 else less(limit, number)
        up = less(0, delta)
        return logical_or(logical_and(up, less(number, limit)), logical_and(logical_not(up), less(limit, number)))

    named = zip(variables.names, variables.get(), strict=True)
    is_new = [name == opts["iterate_names"] and isinstance(value, Undefined) for name, value in named]
    if any(is_new):
        # The target of the loop has the type of the numbers, so it needs no trial to find that out.
        variables.set([start if new else value for new, value in zip(is_new, variables.get(), strict=True)])
    _counted(_Count(start, is_inside, delta, lambda number: number), extra_test, body, variables, opts)


def _for_rows(
    tensor: Any, extra_test: Test | None, body: Callable[[Any], None], variables: Variables, opts: Options
) -> None:
    if isinstance(tensor, RaggedTensor):
        count = tensor.nrows(out_type="int32")
        _counted(_Count(0, lambda i: less(i, count), 1, tensor.__getitem__), extra_test, body, variables, opts)
        return
    size = len_(tensor)
    values = convert_to_tensor(tensor)
    # Reads of a TensorArray have a cheaper gradient than slices of a tensor.
    rows = TensorArray(values.dtype.base_dtype, size=size).unstack(values)
    _counted(_Count(0, lambda i: less(i, size), 1, rows.read), extra_test, body, variables, opts)


class _Count(NamedTuple):
    """Numbers from `start` on by `step`, as long as `is_inside` holds, and the item of the loop for each."""

    start: Any
    is_inside: Callable[[Any], Any]
    step: Any
    item: Callable[[Any], Any]


def _counted(
    count: _Count, extra_test: Test | None, body: Callable[[Any], None], variables: Variables, opts: Options
) -> None:
    number = count.start

    def get_all() -> tuple[Any, ...]:
        return (number, *variables.get())

    def set_all(values: Sequence[Any]) -> None:
        nonlocal number
        number, *rest = values
        variables.set(rest)

    def test() -> Any:
        inside = count.is_inside(number)
        return inside if extra_test is None else cond(inside, extra_test, lambda: False)

    def counted_body() -> None:
        nonlocal number
        body(count.item(number))
        number = number + count.step

    _while_node(test, counted_body, Variables(get_all, set_all, ("<internal iterate>", *variables.names)), opts)
