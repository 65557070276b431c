"""EagerVariable: a variable of eager execution. It is initialised when it is made, and functions may use it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.errors import FailedPreconditionError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.device import canonical_name
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import variable_accessed
from penstock.graph.scopes import init_scope, name_scope
from penstock.graph.typing import DTypeLike, ShapeLike
from penstock.ops.state import variable_ops
from penstock.variables.creation import Kinds
from penstock.variables.resource import ResourceVariable
from penstock.variables.variable import declared_shape, identity_of


class EagerVariable(ResourceVariable):
    """A variable that holds its value as soon as it is made.

    >>> v = tf.Variable([1.0, 2.0])
    >>> v.assign_add([1.0, 1.0]).numpy()
    array([2., 3.], dtype=float32)
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        collections: Any = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: DTypeLike | None = None,
        import_scope: str | None = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: ShapeLike = None,
    ) -> None:
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        self._set_options(trainable, collections, constraint, synchronization, aggregation)
        self._caching_device, self._validate_shape, self._cached = None, validate_shape, None
        with init_scope():
            with name_scope(name or "Variable") as scope:
                self._name = f"{scope[:-1]}:0"
            value = convert_to_tensor(initial_value() if callable(initial_value) else initial_value, dtype=dtype)
            declared = declared_shape(shape, value, validate_shape)
            if not declared.is_compatible_with(value.shape):
                raise ValueError(
                    f"In this `tf.Variable` creation, the initial value's shape ({value.shape}) is not compatible "
                    f"with the explicitly supplied `shape` argument ({declared})."
                )
            self._dtype, self._shape = value.dtype.base_dtype, declared
            self._handle = variable_ops.var_handle(
                shape=declared, dtype=self._dtype, shared_name=scope[:-1], debug_name=scope[:-1]
            )
            variable_ops.assign_variable(self._handle, value)
        self._initial_value, self._initializer_op = None, None

    # Reading

    def _read(self) -> Tensor:
        variable_accessed(self)
        with self._after_parent():
            return self._with_shape(variable_ops.read_variable(self._handle, dtype=self._dtype))

    def value(self) -> Tensor:
        return self._read()

    def read_value(self) -> Tensor:
        return identity_of(self._read())

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        variable_accessed(self)
        return super().sparse_read(indices, name)

    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor:
        variable_accessed(self)
        return super().gather_nd(indices, name)

    def numpy(self) -> Any:
        """The value as a NumPy array."""
        if not get_default_graph().is_eager:
            raise NotImplementedError("numpy() is only available when eager execution is enabled.")
        return self._read().numpy()  # type: ignore[attr-defined]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def _written(self, op: Operation, read_value: bool = True) -> Any:
        if not op.graph.is_eager:
            return super()._written(op, read_value)
        if not read_value:
            return None
        # TensorFlow returns another object for the same variable.
        same = object.__new__(type(self))
        same.__dict__ = self.__dict__
        return same

    def __deepcopy__(self, memo: dict[int, Any]) -> EagerVariable:
        if not get_default_graph().is_eager:
            raise NotImplementedError("__deepcopy__() is only available when eager execution is enabled.")
        copied = EagerVariable(
            self.read_value(),
            self._trainable,
            name=self._shared_name,
            dtype=self._dtype,
            constraint=self._constraint,
            synchronization=self._synchronization,
            aggregation=self._aggregation,
            shape=self._shape,
        )
        memo[id(self)] = copied
        return copied

    @property
    def device(self) -> str:
        return canonical_name(self._handle.device)

    @property
    def op(self) -> Operation:
        return self._handle.op

    @property
    def initializer(self) -> Any:
        return None

    @property
    def initial_value(self) -> Any:
        raise RuntimeError("This property is not supported when eager execution is enabled.")

    def initialized_value(self) -> Tensor:
        return self.read_value()

    def load(self, value: Any, session: Any = None) -> None:
        self.assign(value)

    def eval(self, session: Any = None) -> Any:
        raise NotImplementedError("eval() is not supported when eager execution is enabled.")

    def _as_graph_element(self) -> Tensor:
        return self._read()

    def __hash__(self) -> int:
        raise TypeError("Variable is unhashable. Instead, use variable.ref() as the key.")

    def __int__(self) -> int:
        return int(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __bool__(self) -> bool:
        return bool(self._read())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read())

    def __repr__(self) -> str:
        head = f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}"
        if not get_default_graph().is_eager:
            return f"{head}>"
        try:
            value = self._read()._text(is_repr=True)  # type: ignore[attr-defined]
        except FailedPreconditionError:
            value = "<unavailable>"
        return f"{head}, numpy={value}>"


def _refused(operator: str, remedy: str) -> Callable[[Any, Any], Any]:
    def method(self: EagerVariable, other: Any) -> Any:
        raise RuntimeError(
            f"`variable {operator} value` is not supported: it would replace the variable '{self.name}' by a tensor. "
            f"Use {remedy}."
        )

    return method


for _method, _symbol, _remedy in (
    ("iadd", "+=", "variable.assign_add(value)"),
    ("isub", "-=", "variable.assign_sub(value)"),
    ("imul", "*=", "variable.assign(variable * value)"),
    ("itruediv", "/=", "variable.assign(variable / value)"),
    ("ipow", "**=", "variable.assign(variable ** value)"),
):
    setattr(EagerVariable, f"__{_method}__", _refused(_symbol, _remedy))


Kinds.eager = EagerVariable
