"""The variables of a graph by collection, and ops that initialize them or report those that are not."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, device, name_scope
from penstock.ops.array.creation import constant
from penstock.ops.array.joining import stack
from penstock.ops.array.reshaping import rank
from penstock.ops.array.selection import boolean_mask
from penstock.ops.control.grouping import group
from penstock.ops.math.compare import logical_not
from penstock.ops.state import variable_ops
from penstock.variables.variable import Variable


def global_variables(scope: str | None = None) -> list[Any]:
    """The variables that are shared and saved."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Any]:
    """The variables of this process, which are not saved."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """The variables that optimizers change."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Any]:
    """The variables that inference needs, if they were collected."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Any]:
    """The variables that have moving averages."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def _all_saveable_objects(scope: str | None = None) -> list[Any]:
    return global_variables(scope) + get_default_graph().get_collection(GraphKeys.SAVEABLE_OBJECTS, scope)


def all_variables() -> list[Any]:
    """The old name of `global_variables`."""
    return global_variables()


def variables_initializer(var_list: Any, name: str = "init") -> Operation:
    """An operation that initialises the variables of `var_list`."""
    return group(*[v.initializer for v in var_list or ()], name=name)


def global_variables_initializer() -> Operation:
    """An operation that initialises all global variables.

    >>> sess.run(tf.global_variables_initializer())
    """
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that initialises all local variables."""
    return variables_initializer(local_variables())


def initialize_variables(var_list: Any, name: str = "init") -> Operation:
    """The old name of `variables_initializer`."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Operation:
    """The old name of `global_variables_initializer`."""
    return global_variables_initializer()


def initialize_local_variables() -> Operation:
    """The old name of `local_variables_initializer`."""
    return local_variables_initializer()


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """An operation that initialises all lookup tables.

    >>> sess.run(tf.tables_initializer())
    """
    return group(*get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS), name=name)


def initialize_all_tables(name: str = "init_all_tables") -> Operation:
    """The old name of `tables_initializer`."""
    return tables_initializer(name)


def is_variable_initialized(ref: Any, name: str | None = None) -> Tensor:
    """Tells if a variable holds a value."""
    if isinstance(ref, Variable):
        return ref.is_initialized(name=name)
    tensor: Tensor = variable_ops.is_variable_initialized(ref, name=name)
    return tensor


def report_uninitialized_variables(var_list: Any = None, name: str = "report_uninitialized_variables") -> Any:
    """The names of the variables that hold no value: by default of all global and local ones.

    >>> sess.run(tf.report_uninitialized_variables())
    """
    if var_list is None:
        var_list = global_variables() + local_variables()
    with name_scope(name):
        initialized = [is_variable_initialized(v) for v in var_list]
        # The names are strings, which accelerators do not support.
        with device("/cpu:0"):
            if not initialized:
                return constant([], dtype=dt.string)
            missing = logical_not(stack(initialized))
            return boolean_mask(constant([v.op.name for v in var_list]), missing)


def assert_variables_initialized(var_list: Any = None) -> Tensor | None:
    """A tensor that can only be computed when all variables hold values; None if there are none."""
    if var_list is None:
        var_list = global_variables() + local_variables()
    if not var_list:
        return None
    ranks = []
    for variable in var_list:
        with control_dependencies([variable.read_value()]):
            ranks.append(rank(variable))
    return stack(ranks)


def local_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Any:
    """A variable of this process: in LOCAL_VARIABLES, not trained, not saved."""
    return Variable(
        initial_value,
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        validate_shape=validate_shape,
        name=name,
        use_resource=use_resource,
    )
