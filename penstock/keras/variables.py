"""BackedVariable: a Keras variable whose value is that of a penstock variable, on whichever task that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.jax.core import JaxVariable

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Tensor
from penstock.graph.recording import recorders
from penstock.graph.scopes import device, init_scope
from penstock.graph.sessions import Stack
from penstock.keras.strategies import current_strategy, in_scope_of
from penstock.variables.creation import Kinds, create

_references = Stack()  # the variable beside which new ones are made, as for slots of optimizers


class BackedVariable(keras.Variable):
    """A Keras variable that a penstock variable holds. Variables made in a strategy's scope are of this class.

    >>> with strategy.scope():
    ...     layer = tf.keras.layers.Dense(1); layer.build([None, 3])
    >>> layer.kernel.backing.device
    """

    backing: Any  # a variable, or a ShardedVariable
    strategy: Any  # in whose scope it was made; None: in none
    copies: dict[Any, Any]  # further variables with the same value, by where they are read
    whole: Any = None  # the variable that this one is a shard of
    saved_as: Any = None  # the object that stands for it in checkpoints, if that is not the penstock variable itself
    _shards: list[Any] | None = None

    # The value

    @property
    def _value(self) -> Any:
        if in_symbolic_scope():
            return jnp.zeros(self._shape, self._dtype)  # only its shape matters: nothing has to travel
        return jnp.asarray(np.asarray(self.backing.numpy()))

    @_value.setter
    def _value(self, value: Any) -> None:
        self.write(value)

    @property
    def value(self) -> Any:
        """The value: as a penstock tensor where gradients or functions record its use, else as an array of JAX."""
        if in_stateless_scope() or not _is_recorded():
            return super().value
        return self._as_tensor()

    def _as_tensor(self, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        return convert_to_tensor(self.backing, dtype=dtype, name=name)

    def numpy(self) -> Any:
        return np.asarray(self.backing.numpy())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    @property
    def handle(self) -> Any:
        """The handle of the penstock variable."""
        return self.backing.handle

    @property
    def device(self) -> str:
        """The device that holds the value."""
        return str(self.backing.device)

    @property
    def shards(self) -> list[Any]:
        """The parts that make up the variable: Keras variables with the parts' own shapes; itself if it has none."""
        parts = getattr(self.backing, "variables", None)
        if not isinstance(parts, list):
            return [self]
        if self._shards is None:
            self._shards = [_shard(self, i, part) for i, part in enumerate(parts)]
        return self._shards

    # Changes

    def assign(self, value: Any) -> Any:
        if in_stateless_scope():
            scope = get_stateless_scope()
            addend = scope.addend_of(self, value) if hasattr(scope, "add_delta") else None
            return super().assign(value) if addend is None else scope.add_delta(self, addend)
        self.write(value)
        return value

    def assign_add(self, value: Any) -> Any:
        return self._change("assign_add", value, 1)

    def assign_sub(self, value: Any) -> Any:
        return self._change("assign_sub", value, -1)

    def _change(self, method: str, value: Any, sign: int) -> Any:
        if not in_stateless_scope():
            for variable in (self.backing, *self.copies.values()):
                getattr(variable, method)(self._converted(value), read_value=False)
            return self.value
        scope = get_stateless_scope()
        if hasattr(scope, "add_delta"):
            return scope.add_delta(self, value if sign > 0 else -jnp.asarray(value))
        return getattr(super(), method)(value)

    def _direct_assign(self, value: Any) -> None:
        self.write(value)

    def write(self, value: Any) -> None:
        """Replaces the value, and that of all copies."""
        tensor = self._converted(value)
        if not tensor.shape.is_compatible_with(self.backing.shape):
            raise ValueError(
                f"The shape of the target variable and the shape of the target value in `variable.assign(value)` must "
                f"match. variable.shape={self.shape}, Received: value.shape={tuple(tensor.shape)}. Target variable: "
                f"{self.path}"
            )
        for variable in (self.backing, *self.copies.values()):
            variable.assign(tensor, read_value=False)

    def _converted(self, value: Any) -> Tensor:
        if isinstance(value, JaxVariable) and not isinstance(value, BackedVariable):
            value = value.numpy()
        if not isinstance(value, (Tensor, BackedVariable)):
            value = np.asarray(value)
            return convert_to_tensor(value.astype(as_dtype(self._dtype).as_numpy_dtype))
        return convert_to_tensor(value)

    def __add__(self, other: Any) -> Any:
        result = _recorded("__add__", self, other)
        if in_stateless_scope() and hasattr(get_stateless_scope(), "add_delta"):
            get_stateless_scope().note_sum(self, other, result)
        return result

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}, device={self.device}>"

    __hash__ = JaxVariable.__hash__


def _is_recorded() -> bool:
    return bool(recorders.items) or not get_default_graph().is_eager


def _recorded(name: str, variable: BackedVariable, *args: Any) -> Any:
    """Applies an operator to a variable: a Keras operation in Keras code, else an op that tapes see."""
    if in_stateless_scope() or not _is_recorded():
        return getattr(JaxVariable, name)(variable, *args)
    return getattr(Tensor, name)(variable._as_tensor(), *args)


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: BackedVariable, *args: Any) -> Any:
        return _recorded(name, self, *args)

    operate.__name__ = name
    return operate


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (*(f"r{b}" for b in _BINARY), *_BINARY[1:], "neg", "abs", "lt", "le", "gt", "ge", "getitem"):
    setattr(BackedVariable, f"__{_name}__", _operator(f"__{_name}__"))


# Making them


def back(variable: Any) -> BackedVariable:
    """Returns a Keras variable after it got a penstock variable, if it had none, which then holds its value.

    >>> back(keras.Variable(1.0)).backing
    """
    if isinstance(variable, BackedVariable):
        return variable
    if variable._value is None:
        raise ValueError(f"The Keras variable '{variable.path}' has no value yet: build its layer first.")
    strategy, reference = current_strategy(), _references.top
    value = np.asarray(variable._value)
    given = {
        "initial_value": value,
        "trainable": variable.trainable,
        "name": variable.path,
        "dtype": as_dtype(value.dtype),
    }
    with init_scope():
        if reference is not None:
            with device(reference.device):
                backing = Kinds.eager(**given)
        else:
            backing = Kinds.eager(**given) if strategy is None else create(**given)
    del variable.__dict__["_value"]
    variable.__class__ = BackedVariable
    variable.backing, variable.strategy, variable.copies = backing, strategy, {}
    return variable  # type: ignore[no-any-return]


@contextmanager
def beside(reference: Any) -> Iterator[None]:
    """A context in which new variables are made where another one is, whole."""
    with in_scope_of(getattr(reference, "strategy", None)), _references.pushed(reference):
        yield


def _shard(whole: BackedVariable, number: int, part: Any) -> BackedVariable:
    return _wrapper(part, f"{whole._name}_part_{number}", f"{whole._path}/part_{number}", whole)


def _wrapper(variable: Any, name: str, path: str, whole: Any) -> BackedVariable:
    """A Keras variable for a penstock variable that exists."""
    found = BackedVariable.__new__(BackedVariable)
    found.backing, found.copies, found.whole = variable, {}, whole
    found.strategy = getattr(whole, "strategy", getattr(variable, "_distribute_strategy", None))
    found._name, found._path = name, path
    found._shape = tuple(variable.shape.as_list())
    found._ndim = len(found._shape)
    found._dtype = variable.dtype.base_dtype.name
    found._trainable = variable.trainable if whole is None else whole._trainable
    found._initializer = found._layout = None
    found._autocast = True if whole is None else whole._autocast
    found._aggregation, found._synchronization = "none", "auto"
    found._overwrite_with_gradient = False
    found._regularizer = None if whole is None else whole._regularizer
    found._constraint = None if whole is None else whole._constraint
    return found


def as_keras(variable: Any) -> Any:
    """The Keras variable for a variable of either kind."""
    if isinstance(variable, JaxVariable) or not hasattr(variable, "handle"):
        return variable
    found = vars(variable).get("_penstock_keras")
    if found is None:
        name = variable.name.partition(":")[0]
        found = vars(variable)["_penstock_keras"] = _wrapper(variable, name.rpartition("/")[2], name, None)
    return found


def install() -> None:
    """Has Keras make variables by penstock in the scopes of strategies."""
    initialize, convert = JaxVariable._initialize, JaxVariable._convert_to_tensor

    def _convert_to_tensor(self: Any, value: Any, dtype: Any = None) -> Any:
        # penstock has 64 bits turned on in jax, and Keras expects them to be off.
        if dtype is None and isinstance(value, (int, float)) and not isinstance(value, bool):
            dtype = keras.config.floatx() if isinstance(value, float) else "int32"
        return convert(self, value, dtype)

    def _initialize(self: Any, value: Any) -> None:
        initialize(self, value)
        self._ndim = len(self._shape)
        if current_strategy() is not None or _references.top is not None:
            back(self)

    JaxVariable._initialize, JaxVariable._convert_to_tensor = _initialize, _convert_to_tensor
