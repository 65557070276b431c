"""Variable scopes: prefixes and defaults for `get_variable`, and if it creates or reuses variables."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph, graph_of
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike, ShapeLike
from penstock.variables.creation import decide_kind_by
from penstock.variables.store import variable_store

_KEY = ("__variable_scopes",)  # not a string, so that users do not see it among the collections


class _ReuseMode(Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _ReuseMode.AUTO_REUSE

# The settings of a scope for its variables, which a variable or an inner scope can override.
_SETTINGS = (
    "initializer",
    "regularizer",
    "caching_device",
    "partitioner",
    "custom_getter",
    "dtype",
    "use_resource",
    "constraint",
)


class VariableScope:
    """A prefix for names of variables, with defaults to create them; `get_variable_scope()` gives the current one."""

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        regularizer: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        custom_getter: Callable[..., Any] | None = None,
        name_scope: str = "",
        dtype: DTypeLike = dt.float32,
        use_resource: bool | None = None,
        constraint: Any = None,
    ) -> None:
        self._name, self._reuse, self._name_scope = name, reuse, name_scope
        self._initializer, self._regularizer, self._constraint = initializer, regularizer, constraint
        self._caching_device, self._partitioner, self._custom_getter = caching_device, partitioner, custom_getter
        self._dtype, self._use_resource = dtype, use_resource

    @property
    def name(self) -> str:
        return self._name

    @property
    def original_name_scope(self) -> str:
        return self._name_scope

    @property
    def reuse(self) -> Any:
        return self._reuse

    @property
    def initializer(self) -> Any:
        return self._initializer

    @property
    def regularizer(self) -> Any:
        return self._regularizer

    @property
    def caching_device(self) -> Any:
        return self._caching_device

    @property
    def partitioner(self) -> Any:
        return self._partitioner

    @property
    def custom_getter(self) -> Callable[..., Any] | None:
        return self._custom_getter

    @property
    def dtype(self) -> DType:
        return as_dtype(self._dtype)

    @property
    def use_resource(self) -> bool | None:
        return self._use_resource

    @property
    def constraint(self) -> Any:
        return self._constraint

    def reuse_variables(self) -> None:
        """Makes this scope reuse variables instead of creating them."""
        self._reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Sets the initializer for this scope."""
        self._initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Sets the regularizer for this scope."""
        self._regularizer = regularizer

    def set_caching_device(self, caching_device: Any) -> None:
        """Sets the caching device for this scope."""
        self._caching_device = caching_device

    def set_partitioner(self, partitioner: Any) -> None:
        """Sets the partitioner for this scope."""
        self._partitioner = partitioner

    def set_custom_getter(self, custom_getter: Callable[..., Any] | None) -> None:
        """Sets the custom getter for this scope."""
        self._custom_getter = custom_getter

    def set_dtype(self, dtype: DTypeLike) -> None:
        """Sets the default type for this scope."""
        self._dtype = dtype

    def set_use_resource(self, use_resource: bool) -> None:
        """Sets the kind of variables for this scope."""
        self._use_resource = use_resource

    def get_collection(self, name: Any) -> list[Any]:
        """The items of a collection under this scope."""
        return get_default_graph().get_collection(name, f"{self._name}/" if self._name else "")

    def global_variables(self) -> list[Any]:
        """The global variables under this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Any]:
        """The local variables under this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Any]:
        """The trainable variables under this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def _with(self, overrides: dict[str, Any], **fields: Any) -> VariableScope:
        """A copy with the given settings; a custom getter wraps the existing one."""
        scope = copy.copy(self)
        for key, value in fields.items():
            setattr(scope, f"_{key}", value)
        for key in _SETTINGS:
            value = overrides.get(key)
            if value is None:
                continue
            if key == "custom_getter":
                value = wrapped_getter(value, self._custom_getter)
            setattr(scope, f"_{key}", value)
        return scope

    def get_variable(self, name: str, **given: Any) -> Any:
        """`tf.get_variable` with this scope's prefix and defaults; see there."""
        if given.get("reuse") is None:
            given["reuse"] = self._reuse
        full_name = f"{self._name}/{name}" if self._name else name
        # Names of variables depend on variable scopes only.
        with name_scope(None):
            dtype, initializer = given.get("dtype"), given.get("initializer")
            if dtype is not None and initializer is not None and not callable(initializer):
                found = convert_to_tensor(initializer).dtype.base_dtype
                if found != as_dtype(dtype).base_dtype:
                    raise ValueError(f"Initializer type '{found!r}' and explicit dtype '{dtype!r}' don't match.")
            for key in _SETTINGS:
                if given.get(key) is None:
                    given[key] = getattr(self, f"_{key}")
            return variable_store().get_variable(full_name, **given)


def wrapped_getter(inner: Callable[..., Any], outer: Callable[..., Any] | None) -> Callable[..., Any]:
    """`inner` as a custom getter whose `getter` calls `outer`."""
    if outer is None:
        return inner
    through = outer

    def getter_chain(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return inner(functools.partial(through, getter), *args, **kwargs)

    return getter_chain


class _Scopes(threading.local):
    """The current scope of a thread in a graph, and how often each name was opened."""

    def __init__(self) -> None:
        self.current = VariableScope(False)
        self.counts: dict[str, int] = {}

    def open(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def close_below(self, name: str) -> None:
        for key in self.counts:
            if key.startswith(f"{name}/"):
                self.counts[key] = 0

    def unique(self, prefix: str) -> str:
        """`prefix`, with a number if a scope of that name was already opened."""
        base = f"{self.current.name}/{prefix}" if self.current.name else prefix
        if not self.counts.get(base):
            return prefix
        number = 1
        while self.counts.get(f"{base}_{number}"):
            number += 1
        return f"{prefix}_{number}"


def _scopes() -> _Scopes:
    found = get_default_graph().get_collection_ref(_KEY)
    if not found:
        found.append(_Scopes())
    scopes: _Scopes = found[0]
    return scopes


def get_variable_scope() -> VariableScope:
    """The current variable scope."""
    return _scopes().current


decide_kind_by(lambda: get_variable_scope().use_resource)


@contextmanager
def pure_variable_scope(
    name_or_scope: str | VariableScope, old_name_scope: str | None = None, reuse: Any = None, **settings: Any
) -> Iterator[VariableScope]:
    """Enters a variable scope without a name scope."""
    scopes = _scopes()
    before = scopes.current
    if isinstance(name_or_scope, VariableScope):
        name = name_or_scope.name
        scope = name_or_scope._with(settings, reuse=reuse or name_or_scope.reuse)
        scopes.open(name)
        counts = dict(scopes.counts)
    else:
        name = f"{before.name}/{name_or_scope}" if before.name else name_or_scope
        inner = name_or_scope if old_name_scope is None else old_name_scope
        scope = before._with(settings, reuse=reuse or before.reuse, name=name, name_scope=inner)
        scopes.open(name)
        counts = None
    scopes.current = scope
    try:
        yield scope
    finally:
        if counts is None:
            scopes.close_below(name)
        else:
            scopes.counts = counts
        scopes.current = before


class variable_scope:
    """Enters a variable scope and a name scope; inside, `get_variable` creates or finds variables under that name.

    `reuse=True` only finds variables, `tf.AUTO_REUSE` creates missing ones. `default_name` is made unique and used
    if no name is given.

    >>> with tf.variable_scope("layer"):
    ...     tf.get_variable("w", [2]).name
    'layer/w:0'
    """

    def __init__(
        self,
        name_or_scope: str | VariableScope | None,
        default_name: str | None = None,
        values: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        custom_getter: Callable[..., Any] | None = None,
        reuse: Any = None,
        dtype: DTypeLike | None = None,
        use_resource: bool | None = None,
        constraint: Any = None,
        auxiliary_name_scope: bool = True,
    ) -> None:
        if default_name is None and name_or_scope is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        if not isinstance(auxiliary_name_scope, bool):
            raise TypeError(f"auxiliary_name_scope must be True or False, received {auxiliary_name_scope!r}.")
        self._name_or_scope, self._default_name, self._values = name_or_scope, default_name, values
        self._reuse = reuse or None  # False has no effect: reuse is inherited
        self._own_name_scope = auxiliary_name_scope
        self._settings = {
            "initializer": initializer,
            "regularizer": regularizer,
            "caching_device": caching_device,
            "partitioner": partitioner,
            "custom_getter": custom_getter,
            "dtype": dtype,
            "use_resource": use_resource,
            "constraint": constraint,
        }
        self._exits: list[ExitStack] = []

    def __enter__(self) -> VariableScope:
        wanted = self._name_or_scope
        if wanted is not None and not isinstance(wanted, (str, VariableScope)):
            raise TypeError("VariableScope: name_or_scope must be a string or VariableScope.")
        if wanted is None and self._reuse:
            raise ValueError("reuse=True cannot be used without a name_or_scope")
        with ExitStack() as stack:
            if self._values:
                stack.enter_context(graph_of(list(self._values)).as_default())
            current = self._enter_name_scope(stack, wanted)
            if wanted is None:
                assert self._default_name is not None
                wanted = _scopes().unique(self._default_name)
            old = current if isinstance(wanted, str) else None
            scope = stack.enter_context(pure_variable_scope(wanted, old, self._reuse, **self._settings))
            self._exits.append(stack.pop_all())
        return scope

    def _enter_name_scope(self, stack: ExitStack, wanted: str | VariableScope | None) -> str | None:
        graph = get_default_graph()
        if not self._own_name_scope:
            inner = graph.get_name_scope()
            return stack.enter_context(graph.name_scope(f"{inner}/" if inner else None))
        if wanted is None:
            name = self._default_name
        else:
            name = wanted if isinstance(wanted, str) else wanted.name.rpartition("/")[2]
        # Only the root variable scope has no name; it does not change the name scope.
        return stack.enter_context(graph.name_scope(name)) if name else None

    def __exit__(self, *exc: Any) -> None:
        self._exits.pop().close()


@contextmanager
def variable_op_scope(
    values: Any, name_or_scope: Any, default_name: str | None = None, **settings: Any
) -> Iterator[VariableScope]:
    """The old form of `variable_scope`, with `values` first."""
    with variable_scope(name_or_scope, default_name=default_name, values=values, **settings) as scope:
        yield scope


def get_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Callable[..., Any] | None = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """The variable called `name` in the current variable scope: created if it is new, found if the scope reuses.

    Without an initializer (here or in the scope) floats start Glorot uniform, other types at zero.

    >>> w = tf.get_variable("w", [784, 10])
    """
    return get_variable_scope().get_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=collections,
        caching_device=caching_device,
        partitioner=partitioner,
        validate_shape=validate_shape,
        use_resource=use_resource,
        custom_getter=custom_getter,
        constraint=constraint,
        synchronization=synchronization,
        aggregation=aggregation,
    )


def get_local_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = False,
    collections: Any = None,
    **settings: Any,
) -> Any:
    """`get_variable` for a variable of this process: in LOCAL_VARIABLES, not trained, not saved."""
    return get_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=False,
        collections=[*(collections or ()), GraphKeys.LOCAL_VARIABLES],
        **settings,
    )
