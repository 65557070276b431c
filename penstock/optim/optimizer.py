"""Optimizer: the base of all rules. It computes gradients, keeps slots, and adds the ops of one training step.

A rule overrides `_apply_dense`, `_apply_sparse`, `_resource_apply_dense` and `_resource_apply_sparse`, and where it
needs them `_create_slots`, `_prepare` and `_finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from penstock.autodiff import gradients
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor, convert_to_tensor_or_indexed_slices
from penstock.graph.dtype import DType
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.nest import flatten
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import reshaping
from penstock.ops.array.selection import unique
from penstock.ops.control.grouping import group, tuple_
from penstock.ops.math.casting import cast
from penstock.ops.math.segments import unsorted_segment_sum
from penstock.ops.state import variable_ops
from penstock.trackable.base import Trackable
from penstock.variables import slots
from penstock.variables.initialize import trainable_variables
from penstock.variables.resource import ResourceVariable
from penstock.variables.variable import Variable


def deduplicate_indexed_slices(values: Any, indices: Any) -> tuple[Tensor, Tensor]:
    """Each index once, with the sum of its rows."""
    distinct, positions = unique(indices)
    sizes: Any = reshaping.shape(distinct)
    return unsorted_segment_sum(values, positions, sizes[0]), distinct


def as_type(value: Any, dtype: DType) -> Any:
    """`value` (a tensor or a variable) cast to `dtype`; unchanged if it has that type."""
    if isinstance(value, ResourceVariable) and value.dtype == dtype:
        return value  # the op that takes it reads it
    return cast(value, dtype)


def op_of(update: Any) -> Operation:
    """The operation of an update, which returns an operation, a tensor, or a variable after a write."""
    op: Operation = update if isinstance(update, Operation) else update.op
    return op


class Optimizer(Trackable):
    """Base class of optimizers; use a rule such as `GradientDescentOptimizer`.

    >>> train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    >>> sess.run(train)
    """

    GATE_NONE: ClassVar[int] = 0
    GATE_OP: ClassVar[int] = 1
    GATE_GRAPH: ClassVar[int] = 2

    def __init__(self, use_locking: bool, name: str) -> None:
        if not name:
            raise ValueError("Must specify the optimizer name")
        self._use_locking = use_locking
        self._name = name
        self._slots: dict[str, dict[tuple[Graph, str], Any]] = {}
        self._non_slot_dict: dict[tuple[str, Graph], Any] = {}

    def get_name(self) -> str:
        """The name under which the ops of this optimizer are made."""
        return self._name

    # Gradients and their application

    def minimize(
        self,
        loss: TensorLike,
        global_step: TensorLike = None,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        name: str | None = None,
        grad_loss: TensorLike = None,
    ) -> Operation:
        """The operation that makes one step towards a smaller `loss`, and raises `global_step` by one if it is given.

        >>> train = tf.train.AdamOptimizer(1e-3).minimize(loss)
        """
        grads_and_vars = self.compute_gradients(
            loss,
            var_list=var_list,
            gate_gradients=gate_gradients,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
            grad_loss=grad_loss,
        )
        if all(grad is None for grad, _ in grads_and_vars):
            raise ValueError(
                "No gradients provided for any variable, check your graph for ops that do not support gradients, "
                f"between variables {[str(v) for _, v in grads_and_vars]} and loss {loss}."
            )
        return self.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def compute_gradients(
        self,
        loss: TensorLike,
        var_list: Any = None,
        gate_gradients: int = GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike = None,
    ) -> list[tuple[Any, Any]]:
        """Pairs (gradient, variable) for `var_list` or all trainable variables; None where `loss` does not depend.

        >>> grads_and_vars = optimizer.compute_gradients(loss, [w, b])
        """
        if callable(loss):
            loss = loss()
        if gate_gradients not in (Optimizer.GATE_NONE, Optimizer.GATE_OP, Optimizer.GATE_GRAPH):
            raise ValueError(
                "gate_gradients must be one of: Optimizer.GATE_NONE, Optimizer.GATE_OP, Optimizer.GATE_GRAPH. "
                f"Not {gate_gradients}"
            )
        self._assert_valid_dtypes([loss] if grad_loss is None else [loss, grad_loss])
        variables = trainable_variables() if var_list is None else flatten(var_list)
        if not variables:
            raise ValueError("No variables to optimize.")
        grads = gradients(
            loss,
            [_target(v) for v in variables],
            grad_ys=grad_loss,
            gate_gradients=gate_gradients == Optimizer.GATE_OP,
            aggregation_method=aggregation_method,
            colocate_gradients_with_ops=colocate_gradients_with_ops,
        )
        if gate_gradients == Optimizer.GATE_GRAPH:
            grads = tuple_(grads)
        grads_and_vars = list(zip(grads, variables, strict=True))
        self._assert_valid_dtypes([v for g, v in grads_and_vars if g is not None and v.dtype != dt.resource])
        return grads_and_vars

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """The operation that applies gradients to their variables, then raises `global_step` by one if it is given.

        >>> train = optimizer.apply_gradients([(tf.clip_by_norm(g, 5.0), v) for g, v in grads_and_vars])
        """
        pairs = [(_checked_gradient(grad), var) for grad, var in grads_and_vars]
        if not pairs:
            raise ValueError("No variables provided.")
        for _, var in pairs:
            _target(var)  # raises for a type that cannot be trained
        var_list = [var for grad, var in pairs if grad is not None]
        if not var_list:
            raise ValueError(f"No gradients provided for any variable: {[str(v) for _, v in pairs]}.")
        with init_scope():
            self._create_slots(var_list)
        with name_scope(name, self._name) as scope:
            self._prepare()
            updates = []
            for grad, var in pairs:
                if grad is not None:
                    with name_scope("update_" + var.op.name), colocate_with(var):
                        updates.append(self._update(grad, var))
            if global_step is None:
                applied = self._finish(updates, scope)
            else:
                with control_dependencies([self._finish(updates, "update")]), colocate_with(global_step):
                    applied = _count(global_step, scope)
            train_op = op_of(applied)
        collected = get_default_graph().get_collection_ref(GraphKeys.TRAIN_OP)
        if train_op not in collected:
            collected.append(train_op)
        return train_op

    def _update(self, grad: Any, var: Any) -> Any:
        if not isinstance(var, Variable):
            raise NotImplementedError(f"Trying to update a Tensor, which cannot change: {var}")
        is_handle = isinstance(var, ResourceVariable)
        if isinstance(grad, IndexedSlices):
            if var.constraint is not None:
                raise RuntimeError(f"Cannot use a constraint function on a sparse variable ('{var.name}').")
            if is_handle:
                return self._resource_apply_sparse_duplicate_indices(grad.values, var, grad.indices)
            return self._apply_sparse_duplicate_indices(grad, var)
        update = self._resource_apply_dense(grad, var) if is_handle else self._apply_dense(grad, var)
        if var.constraint is None:
            return update
        with control_dependencies([op_of(update)]):
            # The snapshot of a reference is older than the update, so it is read again.
            return op_of(var.assign(var.constraint(var if is_handle else var.read_value())))

    # Methods that a rule overrides

    def _valid_dtypes(self) -> set[DType]:
        """The types that losses, gradients and variables may have."""
        return {dt.float16, dt.bfloat16, dt.float32, dt.float64}

    def _assert_valid_dtypes(self, tensors: Iterable[Any]) -> None:
        valid = self._valid_dtypes()
        for tensor in tensors:
            dtype = tensor.dtype.base_dtype if hasattr(tensor, "dtype") else convert_to_tensor(tensor).dtype
            if dtype not in valid:
                raise ValueError(
                    f"Invalid type {dtype.name} for {getattr(tensor, 'name', tensor)}, expected: "
                    f"{sorted(v.name for v in valid)}."
                )

    def _create_slots(self, var_list: list[Any]) -> None:
        """Makes all slots that the rule needs for the variables."""

    def _prepare(self) -> None:
        """Makes the tensors that all updates use, such as the learning rate."""

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        """Updates a ref variable; returns an operation or tensor."""
        raise NotImplementedError

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        """Updates a resource variable."""
        raise NotImplementedError

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        """Updates rows of a ref variable; no index occurs twice."""
        raise NotImplementedError

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        """Updates rows of a resource variable; no index occurs twice."""
        raise NotImplementedError

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        """Updates rows of a ref variable; rows of the same index are summed first."""
        values, indices = deduplicate_indexed_slices(grad.values, grad.indices)
        return self._apply_sparse(IndexedSlices(values, indices, grad.dense_shape), var)

    def _resource_apply_sparse_duplicate_indices(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        """Updates rows of a resource variable; rows of the same index are summed first."""
        values, distinct = deduplicate_indexed_slices(grad, indices)
        return self._resource_apply_sparse(values, handle, distinct)

    def _finish(self, update_ops: list[Any], name_scope: str) -> Operation:
        """Called with the updates of all variables. Returns the operation of the whole step."""
        return group(*map(op_of, update_ops), name=name_scope)

    # State

    def variables(self) -> list[Any]:
        """The variables that this optimizer made in the default graph, sorted by name."""
        graph = _whole_graph()
        made = [*self._non_slot_dict.values(), *(v for named in self._slots.values() for v in named.values())]
        return sorted((v for v in made if v.graph is graph), key=lambda v: str(v.name))

    def get_slot(self, var: Any, name: str) -> Any:
        """The slot called `name` of a variable, or None.

        >>> optimizer.get_slot(w, "momentum")
        """
        return self._slots.get(name, {}).get(_key(var))

    def get_slot_names(self) -> list[str]:
        """The names of the slots that this optimizer makes for each variable."""
        return sorted(self._slots)

    def _slot_dict(self, slot_name: str) -> dict[tuple[Graph, str], Any]:
        return self._slots.setdefault(slot_name, {})

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        """The slot of a variable, made with the initial value `val` if there is none."""
        return self._slot(var, slot_name, lambda: slots.create_slot(var, val, op_name))

    def _get_or_make_slot_with_initializer(
        self, var: Any, initializer: Any, shape: Any, dtype: Any, slot_name: str, op_name: str
    ) -> Any:
        """The slot of a variable, made by an initializer if there is none."""
        return self._slot(
            var, slot_name, lambda: slots.create_slot_with_initializer(var, initializer, shape, dtype, op_name)
        )

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        """The slot of a variable, made as zeros if there is none."""
        return self._slot(var, slot_name, lambda: slots.create_zeros_slot(var, op_name))

    def _slot(self, var: Any, slot_name: str, make: Callable[[], Any]) -> Any:
        named = self._slot_dict(slot_name)
        key = _key(var)
        if key not in named:
            named[key] = make()
            for position in self._checkpoint_positions:
                position.attach_slot(var, slot_name, named[key])
        return named[key]

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Any:
        """A variable shared by all of a graph, colocated with `colocate_with`; made at the first call."""
        key = (name, _whole_graph())
        if key not in self._non_slot_dict:
            with get_default_graph().colocate_with(colocate_with):
                self._non_slot_dict[key] = Variable(
                    initial_value, name=name, trainable=False, use_resource=isinstance(colocate_with, ResourceVariable)
                )
            self._attached(name, self._non_slot_dict[key])
        return self._non_slot_dict[key]

    def _get_non_slot_variable(self, name: str, graph: Graph | None = None) -> Any:
        return self._non_slot_dict.get((name, _whole_graph(graph)))

    def _non_slot_variables(self) -> list[Any]:
        return list(self._non_slot_dict.values())

    def _trackable_children(self) -> dict[str, Any]:
        graph = _whole_graph()
        return {name: v for (name, of), v in sorted(self._non_slot_dict.items(), key=_first_name) if of is graph}

    def _call_if_callable(self, param: Any) -> Any:
        """`param`, or its result if it is a function."""
        return param() if callable(param) else param


def _whole_graph(graph: Graph | None = None) -> Graph:
    """The outermost graph, not the body of a branch or loop: variables belong to the whole graph."""
    graph = graph or get_default_graph()
    while graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph


def _target(var: Any) -> Any:
    """The object to differentiate by: a variable's reference, a resource variable itself, or a tensor."""
    if isinstance(var, (ResourceVariable, Tensor)):
        return var
    if isinstance(var, Variable):
        return var._ref()
    raise NotImplementedError(f"Trying to optimize unsupported type {var!r}: expected a variable.")


def _checked_gradient(grad: Any) -> Any:
    if grad is None:
        return None
    try:
        return convert_to_tensor_or_indexed_slices(grad)
    except TypeError as error:
        raise TypeError(f"Gradient must be convertible to a Tensor or IndexedSlices, or None: {grad!r}") from error


def _first_name(item: tuple[tuple[str, Graph], Any]) -> str:
    return item[0][0]


def _key(var: Any) -> tuple[Graph, str]:
    graph = var.op.graph
    # With eager execution nodes have no names of their own; the resource has.
    return graph, var.op.attrs["shared_name"] if graph.is_eager else var.op.name


def _count(global_step: Any, name: str) -> Any:
    if isinstance(global_step, ResourceVariable):
        one = convert_to_tensor(1, dtype=global_step.dtype)
        return variable_ops.assign_add_variable(global_step.handle, one, name=name)
    return variable_ops.assign_add(global_step, 1, name=name)
