"""Moving averages of variables and tensors, kept in variables of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.ops.math.arithmetic import minimum, pow
from penstock.ops.math.casting import cast
from penstock.variables import slots
from penstock.variables.initialize import moving_average_variables, trainable_variables
from penstock.variables.initializers import Zeros
from penstock.variables.scope import get_variable, variable_scope
from penstock.variables.variable import Variable


def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Any:
    """Moves `variable` towards `value`: `variable -= (1 - decay) * (variable - value)`.

    With `zero_debias` the average is not biased towards the zeros it started with: it is kept with a count of its
    updates, and divided by the sum of their weights.

    >>> update = assign_moving_average(average, batch_mean, 0.99, zero_debias=False)
    """
    with name_scope(name, "AssignMovingAvg") as scope, colocate_with(variable):
        rate: Any = convert_to_tensor(1.0, dtype=variable.dtype.base_dtype) - cast(decay, variable.dtype.base_dtype)
        if zero_debias:
            return variable.assign(_debiased(variable, value, rate), name=scope)
        return variable.assign_sub((variable - value) * rate, name=scope)


def _debiased(variable: Any, value: Any, rate: Any) -> Any:
    with variable_scope(variable.op.name, values=[variable, value]), init_scope():
        kind: dict[str, Any] = {"trainable": False, "dtype": variable.dtype.base_dtype}
        kind["use_resource"] = not variable.dtype._is_ref_dtype
        biased = get_variable("biased", initializer=Zeros(), shape=variable.get_shape(), **kind)
        count = get_variable("local_step", initializer=Zeros(), shape=[], **kind)
    total = biased.assign_sub((biased - value) * rate)
    steps = count.assign_add(1)
    with control_dependencies([total.op, steps.op]):
        return biased.read_value() / (1 - pow(1.0 - rate, count.read_value()))


def weighted_moving_average(
    value: Any, decay: Any, weight: Any, truediv: bool = True, collections: Any = None, name: str | None = None
) -> Any:
    """The moving average of `value * weight` divided by that of `weight`."""
    with variable_scope(name, "WeightedMovingAvg", [value, weight, decay]):
        value, weight = convert_to_tensor(value), convert_to_tensor(weight)
        averages = []
        for part, label in ((value * weight, "value"), (weight, "weight")):
            average = get_variable(
                f"{label}_avg",
                initializer=Zeros(),
                shape=part.get_shape(),
                dtype=part.dtype.base_dtype,
                trainable=False,
                collections=collections,
            )
            averages.append(assign_moving_average(average, part, decay, zero_debias=False))
        return averages[0] / averages[1] if truediv else averages[0] // averages[1]


class ExponentialMovingAverage:
    """Exponential moving averages of variables, used for evaluation instead of the variables themselves.

    `num_updates`, a count of the training steps, makes early averages follow faster.

    >>> ema = tf.train.ExponentialMovingAverage(0.9999, num_updates=step)
    >>> with tf.control_dependencies([train]):
    ...     train = ema.apply(tf.trainable_variables())
    >>> tf.train.Saver(ema.variables_to_restore()).restore(sess, path)
    """

    def __init__(
        self,
        decay: TensorLike,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay = decay
        self._num_updates = num_updates
        self._zero_debias = zero_debias
        self._name = name
        self._averages: dict[Any, Any] = {}

    @property
    def name(self) -> str:
        return self._name

    def apply(self, var_list: Iterable[Any] | None = None) -> Operation:
        """The operation that updates the averages of `var_list` (variables or tensors), which are created if needed."""
        var_list = list(trainable_variables() if var_list is None else var_list)
        for var in var_list:
            if var.dtype.base_dtype not in (dt.bfloat16, dt.float16, dt.float32, dt.float64):
                raise TypeError(f"The variables must be half, float, or double: {var.name} is {var.dtype.name}.")
            if var not in self._averages:
                self._averages[var] = self._make(var)
        with name_scope(self._name) as scope:
            decay: Any = convert_to_tensor(self._decay, name="decay")
            if self._num_updates is not None:
                updates: Any = cast(_current(self._num_updates), dt.float32, name="num_updates")
                decay = minimum(decay, (1.0 + updates) / (10.0 + updates))
            moves = []
            for var in var_list:
                # The average of a variable starts as the variable, so it has no bias.
                debias = self._zero_debias and not isinstance(var, Variable)
                moves.append(assign_moving_average(self._averages[var], _current(var), decay, zero_debias=debias).op)
            return group(*moves, name=scope)

    def _make(self, var: Any) -> Any:
        graph = get_default_graph()
        with init_scope():
            if isinstance(var, Variable):
                average = slots.create_slot(var, var.initialized_value(), self._name)
                graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, var)
            else:
                beside = var.op.type in ("Variable", "VariableV2", "VarHandleOp")
                average = slots.create_zeros_slot(var, self._name, colocate_with_primary=beside)
        return average

    def average(self, var: Any) -> Any:
        """The variable that holds the average of `var`, or None if there is none."""
        return self._averages.get(var)

    def average_name(self, var: Any) -> str:
        """The name under which the average of `var` is saved, even if it does not exist yet.

        >>> ema.average_name(w)
        'w/ExponentialMovingAverage'
        """
        if var in self._averages:
            return str(self._averages[var].op.name)
        return f"{var.op.name}/{self._name}"

    def variables_to_restore(self, moving_avg_variables: Iterable[Any] | None = None) -> dict[str, Any]:
        """The variables for a Saver that restores averages into variables, by their names in the file."""
        averaged = list(moving_avg_variables or [*trainable_variables(), *moving_average_variables()])
        restored = {self.average_name(var): var for var in averaged}
        named = {var.op.name for var in averaged}
        for var in _all_variables():
            if var.op.name not in named and var.op.name not in restored:
                restored[var.op.name] = var
        return restored


def _all_variables() -> list[Any]:
    graph = get_default_graph()
    return list(
        dict.fromkeys(
            [
                *graph.get_collection(GraphKeys.GLOBAL_VARIABLES),
                *graph.get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES),
            ]
        )
    )


def _current(value: Any) -> Any:
    """Reads a variable now: the snapshot of a reference may be older than the step that an average is to follow."""
    return value._ref() if isinstance(value, Variable) and value.dtype._is_ref_dtype else value
