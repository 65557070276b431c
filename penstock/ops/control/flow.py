"""cond, case, while_loop and the functions built on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.function import Function, share_captures, wait_outside
from penstock.graph.graph import executing_eagerly_outside_functions, get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import registered
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.ops.control.tensor_array import COMPOSITE, flat_tensors, like_structure
from penstock.ops.debugging.assertion import Assert
from penstock.ops.engine.if_while import if_op, while_op


def cond(
    pred: TensorLike,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """`true_fn()` if `pred` holds when the graph runs, else `false_fn()`; only the ops of the chosen one run.

    >>> tf.cond(x > 0, lambda: x, lambda: -x)
    """
    true_fn, false_fn = true_fn or fn1, false_fn or fn2
    eager = get_default_graph().is_eager
    if isinstance(pred, bool) and not eager:
        raise TypeError("pred must not be a Python bool: use a Python `if`, or a tensor.")
    for which, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if function is None or not callable(function):
            raise TypeError(f"{which} must be callable, received {function!r}.")
    if eager:
        assert true_fn is not None and false_fn is not None
        result = true_fn() if pred else false_fn()
        return result if strict else _without_singleton(result)
    with name_scope(name, "cond", [pred]) as scope:
        predicate = convert_to_tensor(pred, name="pred")
        if predicate.dtype.base_dtype is not dt.bool and predicate.shape.rank not in (None, 0):
            raise ValueError(f"pred must be a scalar, received {predicate!r}.")
        graph = get_default_graph()
        results: list[Any] = []
        branches = [
            Function.trace(label, [], lambda fn=fn: _branch_outputs(fn, results), graph, is_branch=True)
            for label, fn in (("true", true_fn), ("false", false_fn))
        ]
        _check_branches(results, branches)
        captured = share_captures(branches)
        types = [t.dtype.base_dtype for t in branches[0].outputs]
        outputs = if_op(predicate, captured, then_branch=branches[0], else_branch=branches[1], Tout=types, name=scope)
        wait_outside(outputs if isinstance(outputs, Operation) else outputs[0].op, branches)
        outputs = [] if isinstance(outputs, Operation) else _named(outputs, "Merge")
    return _unwrapped(results[0], list(outputs), strict)


def _named(tensors: Sequence[Tensor], label: str) -> list[Tensor]:
    """Gives results of control flow TensorFlow's names. Lists stay as they are: TensorFlow has no tensors for them."""
    names = [label if i == 0 else f"{label}_{i}" for i in range(len(tensors))]
    return [t if t.dtype is dt.variant else _copied(t, name) for t, name in zip(tensors, names, strict=True)]


def _branch_outputs(function: Any, results: list[Any]) -> list[Tensor]:
    result = function()
    results.append(result)
    tensors: list[Tensor] = []
    for leaf in nest.flatten(result):
        if leaf is None:
            continue
        if isinstance(leaf, Operation):
            # An operation has no value: a constant that waits for it takes its place.
            with control_dependencies([leaf]):
                tensors.append(convert_to_tensor(np.array(True)))
        else:
            tensors += flat_tensors(leaf)
    # A variable or outer tensor is passed on; an Identity keeps the branch's control dependencies.
    return [_copied(t) for t in tensors]


def _copied(tensor: Tensor, name: str | None = None) -> Tensor:
    identity = registered("Identity")
    assert identity is not None
    copy: Tensor = identity(tensor, name=name)
    return copy


def _check_branches(results: list[Any], branches: list[Function]) -> None:
    first, second = results
    if len(branches[0].outputs) != len(branches[1].outputs):
        raise ValueError(
            f"true_fn and false_fn must return the same number of outputs, received {first!r} and {second!r}."
        )
    for a, b in zip(branches[0].outputs, branches[1].outputs, strict=True):
        if a.dtype.base_dtype != b.dtype.base_dtype:
            raise (TypeError if executing_eagerly_outside_functions() else ValueError)(
                f"true_fn and false_fn must return the same types, received {a.dtype.base_dtype.name} and "
                f"{b.dtype.base_dtype.name}."
            )


def _unwrapped(structure: Any, tensors: list[Tensor], strict: bool) -> Any:
    leaves = nest.flatten(structure)
    rest = iter(tensors)
    values = [None if leaf is None else like_structure(leaf, rest) for leaf in leaves]
    result = nest.pack_sequence_as(structure, values)
    return result if strict else _without_singleton(result)


def _without_singleton(result: Any) -> Any:
    """The only element of a list or tuple that has one; anything else as it is."""
    if isinstance(result, (list, tuple)) and len(result) == 1 and not hasattr(result, "_make"):
        return result[0]
    return result


def cond_v2(
    pred: TensorLike,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """`true_fn()` if `pred` holds, else `false_fn()`, in the structure that these return.

    >>> tf.cond(x > 0, lambda: x, lambda: -x)
    """
    if not get_default_graph().is_eager:
        pred = convert_to_tensor(pred)
        if pred.shape.rank not in (0, None):
            raise InvalidArgumentError(f"cond: pred must be a scalar, received {pred!r}.")
    return cond(pred, true_fn, false_fn, strict=True, name=name)


def smart_cond(pred: TensorLike, true_fn: Any = None, false_fn: Any = None, name: str | None = None) -> Any:
    """As `cond`, but chooses the branch at once if `pred` is known while the graph is built."""
    value = pred if isinstance(pred, (bool, int)) else constant_value(pred) if isinstance(pred, Tensor) else None
    if value is not None:
        return true_fn() if bool(value) else false_fn()
    return cond(pred, true_fn, false_fn, name=name)


def case(
    pred_fn_pairs: Any, default: Any = None, exclusive: bool = False, strict: bool = False, name: str = "case"
) -> Any:
    """The function of the first predicate that holds, or `default`.

    >>> tf.case([(x < 1, lambda: a), (x > 5, lambda: b)], default=lambda: c)
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, dict) else list(pred_fn_pairs)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"Each of pred_fn_pairs must be a pair of a predicate and a function, received {pair!r}.")
    if default is not None and not callable(default):
        raise TypeError(f"default must be callable, received {default!r}.")
    if not pairs and default is None:
        raise ValueError("case needs at least one pair or a default.")
    with name_scope(name, "case", [p for p, _ in pairs]):
        checked = exclusive and len(pairs) > 1 and not get_default_graph().is_eager
        required = [_exclusive([p for p, _ in pairs])] if checked else []
        if default is None:
            *pairs, (last_pred, last_fn) = pairs
            default = _asserted(last_pred, last_fn)
        function = default
        for pred, fn in reversed(pairs):
            function = _nested(pred, fn, function, strict)
        with control_dependencies(required):
            return function()


def _nested(pred: Any, fn: Any, otherwise: Any, strict: bool) -> Callable[[], Any]:
    return lambda: cond(pred, fn, otherwise, strict=strict)


def _asserted(pred: Any, fn: Any) -> Callable[[], Any]:
    def checked() -> Any:
        with control_dependencies([Assert(pred, ["None of the conditions of case evaluated as True."])]):
            return nest.map_structure(_copied, fn())

    return checked


def _exclusive(preds: list[Any]) -> Operation:
    """An operation that fails when more than one predicate holds."""
    cast, total, less_equal = registered("Cast"), registered("Sum"), registered("LessEqual")
    assert cast is not None and total is not None and less_equal is not None
    count = total(cast(convert_to_tensor(preds), DstT=dt.int32), [0])
    return Assert(
        less_equal(count, 1), ["More than one condition of case evaluated as True: ", convert_to_tensor(preds)]
    )


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: TensorLike = None,
    return_same_structure: bool = False,
) -> Any:
    """Repeats `body` while `cond` holds.

    >>> tf.while_loop(lambda i: i < 10, lambda i: i + 1, [tf.constant(0)])
    """
    if not callable(cond):
        raise TypeError(f"cond must be callable, received {cond!r}.")
    if not callable(body):
        raise TypeError(f"body must be callable, received {body!r}.")
    if not isinstance(loop_vars, (Tensor, int)) and not loop_vars:
        raise ValueError("No loop variables provided.")
    if parallel_iterations < 1:
        raise TypeError(f"parallel_iterations must be a positive integer, received {parallel_iterations}.")
    if get_default_graph().is_eager:
        result = _repeated(cond, body, loop_vars, maximum_iterations, not return_same_structure)
        return result if return_same_structure else _without_singleton(result)
    with name_scope(name, "while", nest.flatten(loop_vars)) as scope:
        return _WhileBuilder(cond, body, loop_vars, shape_invariants, maximum_iterations).build(
            scope, parallel_iterations, return_same_structure, back_prop
        )


def _repeated(cond: Any, body: Any, loop_vars: Any, maximum_iterations: Any, may_pack: bool) -> Any:
    """A loop of eager execution: of Python."""
    limit = None if maximum_iterations is None else int(maximum_iterations)
    current = loop_vars if nest.is_nested(loop_vars) else [loop_vars]
    done = 0
    while (limit is None or done < limit) and (cond(**current) if isinstance(current, dict) else cond(*current)):
        after = body(**current) if isinstance(current, dict) else body(*current)
        if may_pack and len(current) == 1 and not isinstance(after, (list, tuple, dict)):
            after = [after]
        if limit is None and not isinstance(current, dict):
            nest.assert_same_structure(list(current), list(after))
        else:
            nest.assert_same_structure(current, after)  # as in TensorFlow, the kind of sequence counts here, too
        current, done = after, done + 1
    return nest.map_structure(lambda leaf: leaf if isinstance(leaf, COMPOSITE) else convert_to_tensor(leaf), current)


def while_loop_v2(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: TensorLike = None,
    name: str | None = None,
) -> Any:
    """Repeats `body` while `cond` holds, and returns the loop variables in the structure of `loop_vars`.

    >>> tf.while_loop(lambda i: i < 10, lambda i: [i + 1], [tf.constant(0)])
    """
    return while_loop(
        cond,
        body,
        loop_vars,
        shape_invariants,
        parallel_iterations,
        back_prop,
        swap_memory,
        name,
        maximum_iterations,
        return_same_structure=True,
    )


def case_v2(
    pred_fn_pairs: Any, default: Any = None, exclusive: bool = False, strict: bool = False, name: str = "case"
) -> Any:
    """The function of the first predicate that holds, or `default`; pairs only, since tensors are no keys of dicts."""
    if isinstance(pred_fn_pairs, dict):
        raise TypeError(
            "case takes a list of pairs (predicate, function), received a dict: tensors cannot be its keys."
        )
    return case(pred_fn_pairs, default, exclusive, strict, name)


class _WhileBuilder:
    """Traces the two bodies of a loop over counter, limit and the user's variables."""

    def __init__(self, cond: Any, body: Any, loop_vars: Any, shape_invariants: Any, maximum_iterations: Any) -> None:
        self.cond, self.body = cond, body
        self.structure = loop_vars if nest.is_nested(loop_vars) else [loop_vars]
        self.leaves = [v if isinstance(v, COMPOSITE) else convert_to_tensor(v) for v in nest.flatten(self.structure)]
        self.start = [t for leaf in self.leaves for t in flat_tensors(leaf)]
        self.limit = None
        if maximum_iterations is not None:
            self.limit = convert_to_tensor(maximum_iterations, dtype=None, name="maximum_iterations")
            if self.limit.shape.rank not in (0, None):
                raise ValueError(f"maximum_iterations must be a scalar, received {maximum_iterations!r}.")
            if self.limit.dtype.base_dtype is not dt.int32:
                self.limit = registered("Cast")(self.limit, DstT=dt.int32)  # type: ignore[misc]
        self.shapes = self._invariants(shape_invariants)

    def _invariants(self, given: Any) -> list[TensorShape]:
        if given is None:
            return [t.shape for t in self.start]
        leaves = zip(self.leaves, _flatten_shapes(self.structure, given), strict=True)
        shapes = [s for leaf, shape in leaves for s in _shapes_of(leaf, as_shape(shape))]
        for tensor, shape in zip(self.start, shapes, strict=True):
            if not shape.is_compatible_with(tensor.shape):
                raise ValueError(
                    f"The shape invariant {shape} is not compatible with the initial value {tensor.label} of shape "
                    f"{tensor.shape}."
                )
        return shapes

    def _arguments(self, tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        return nest.pack_sequence_as(self.structure, [like_structure(leaf, rest) for leaf in self.leaves])

    def _test(self, counter: Tensor, *tensors: Tensor) -> list[Tensor]:
        arguments = self._arguments(tensors)
        go_on = self.cond(**arguments) if isinstance(arguments, dict) else self.cond(*arguments)
        go_on = convert_to_tensor(go_on)
        if go_on.dtype.base_dtype is not dt.bool:
            kind = InvalidArgumentError if executing_eagerly_outside_functions() else TypeError
            raise kind(f"cond must return a boolean scalar tensor, received {go_on!r}.")
        if go_on.shape.rank not in (0, None):
            raise ValueError(f"cond must return a scalar, received {go_on!r}.")
        if self.limit is not None:
            less, both = registered("Less"), registered("LogicalAnd")
            assert less is not None and both is not None
            go_on = both(less(counter, self.limit), go_on)
        return [go_on]

    def _step(self, counter: Tensor, *tensors: Tensor) -> list[Tensor]:
        arguments = self._arguments(tensors)
        result = self.body(**arguments) if isinstance(arguments, dict) else self.body(*arguments)
        if not nest.is_nested(result) or (isinstance(self.structure, dict) and not isinstance(result, dict)):
            result = [result]
        if len(nest.flatten(result)) != len(self.leaves):
            raise ValueError(
                f"body must return as many values as there are loop variables, {len(self.leaves)}, received {result!r}."
            )
        nest.assert_same_structure(self.structure, result, check_types=False)
        after = []
        for leaf, value in zip(self.leaves, nest.flatten(result), strict=True):
            if isinstance(leaf, Tensor) and not isinstance(value, Tensor):
                value = convert_to_tensor(value, dtype=leaf.dtype.base_dtype)
            after += flat_tensors(value)
        for before, tensor, shape in zip(self.start, after, self.shapes, strict=True):
            if tensor.dtype.base_dtype != before.dtype.base_dtype:
                raise TypeError(
                    f"body returned a value of type {tensor.dtype.base_dtype.name} for the loop variable "
                    f"{before.label} of type {before.dtype.base_dtype.name}."
                )
            if not _at_least_as_known(tensor.shape, shape):
                raise ValueError(
                    f"Input tensor '{before.label}' enters the loop with shape {shape}, but has shape {tensor.shape} "
                    "after one iteration. To allow the shape to vary across iterations, use the `shape_invariants` "
                    "argument of tf.while_loop to specify a less-specific shape."
                )
        add = registered("AddV2")
        assert add is not None
        return [add(counter, 1), *after]

    def build(self, scope: str, parallel_iterations: int, same_structure: bool, back_prop: bool) -> Any:
        """Adds the While node and returns the loop variables after it."""
        graph = get_default_graph()
        counter = convert_to_tensor(np.int32(0), name="loop_counter")
        specs = [(dt.int32, TensorShape(()))] + [
            (t.dtype.base_dtype, s) for t, s in zip(self.start, self.shapes, strict=True)
        ]
        test = Function.trace("cond", specs, self._test, graph)
        step = Function.trace("body", specs, self._step, graph)
        captured = share_captures([test, step])
        step.outputs += step.inputs[len(specs) :]  # captured tensors pass through
        inputs = [counter, *self.start, *captured]
        attrs: dict[str, Any] = {"_counter": 0, "_back_prop": back_prop}
        if self.limit is not None:
            limit = self.limit if self.limit.graph is graph else graph.capture(self.limit, "While", scope)
            attrs["_limit"] = next(i for i, t in enumerate(inputs) if t is limit)
        outputs = while_op(inputs, cond=test, body=step, parallel_iterations=parallel_iterations, name=scope, **attrs)
        wait_outside(outputs[0].op, [test, step])
        # As in TensorFlow, the loop variable that `maximum_iterations` adds counts in the names.
        first = 1 if self.limit is None else 0
        result = self._arguments(_named(outputs[first : 1 + len(self.start)], "Exit")[1 - first :])
        if same_structure or not isinstance(result, (list, tuple)) or len(result) != 1 or hasattr(result, "_make"):
            return result
        return result[0]


def _shapes_of(leaf: Any, shape: TensorShape) -> list[TensorShape]:
    """The shape invariants of a loop variable's tensors, given the invariant of the variable."""
    if isinstance(leaf, SparseTensor):
        return [TensorShape.of((None, shape.rank)), TensorShape.of((None,)), TensorShape.of((shape.rank,))]
    if isinstance(leaf, Ragged):
        inner = None if shape.rank is None else (None, *shape.as_list()[leaf.ragged_rank + 1 :])
        return [TensorShape.of(inner), *[TensorShape.of((None,))] * leaf.ragged_rank]
    if isinstance(leaf, IndexedSlices):
        rest = None if shape.rank is None else shape.as_list()[1:]
        values = TensorShape.of(None if rest is None else (None, *rest))
        dims = [] if leaf.dense_shape is None else [TensorShape.of((shape.rank,))]
        return [values, TensorShape.of((None,)), *dims]
    return [shape]


def _flatten_shapes(structure: Any, shapes: Any) -> list[Any]:
    if nest.is_nested(structure) and not isinstance(shapes, TensorShape):
        if not isinstance(shapes, (dict, list, tuple)) or len(shapes) != len(structure):
            raise TypeError(
                f"shape_invariants must have the structure of the loop variables, {structure!r}, received {shapes!r}."
            )
        if isinstance(structure, dict):
            return [s for k in sorted(structure) for s in _flatten_shapes(structure[k], shapes[k])]
        return [s for part, given in zip(structure, shapes, strict=True) for s in _flatten_shapes(part, given)]
    return [shapes]


def _at_least_as_known(shape: TensorShape, wanted: TensorShape) -> bool:
    if wanted.rank is None:
        return True
    if shape.rank != wanted.rank:
        return False
    return all(w is None or w == s for s, w in zip(shape.as_list(), wanted.as_list(), strict=True))
