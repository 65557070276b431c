"""Makes variables for `tf.Variable(...)`: calls the current creators, and finally the class of one kind of variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from penstock.graph.graph import executing_eagerly_outside_functions, get_default_graph
from penstock.graph.sessions import Stack

Creator = Callable[..., Any]
_C = TypeVar("_C", bound=type[Any])
creators = Stack()  # of pairs: the collections of a program, which its graph and all bodies share, and a creator


class Kinds:
    """The classes of the two kinds of variable, and the default kind."""

    classes: ClassVar[dict[bool, type[Any]]] = {}  # the key is True for the resource kind; see `kind`
    scope_wants_resource: Callable[[], bool | None] = staticmethod(lambda: None)  # set by scope.py
    resource_by_default = False
    eager: Callable[..., Any]  # set by eager.py: the class of variables of eager execution


def kind(resource: bool) -> Callable[[_C], _C]:
    """Registers the class of a kind, from which `tf.Variable(...)` and VariableDefs are made.

    >>> @kind(resource=False)
    ... class RefVariable(Variable): ...
    """

    def register(cls: _C) -> _C:
        Kinds.classes[resource] = cls
        return cls

    return register


def decide_kind_by(scope_wants_resource: Callable[[], bool | None]) -> None:
    """Registers a function that decides the kind of a variable if the call does not."""
    Kinds.scope_wants_resource = staticmethod(scope_wants_resource)


def enable_resource_variables() -> None:
    """Makes resource variables the default."""
    Kinds.resource_by_default = True


def disable_resource_variables() -> None:
    """Makes ref variables the default again."""
    Kinds.resource_by_default = False


def resource_variables_enabled() -> bool:
    """Tells if resource variables are the default."""
    return Kinds.resource_by_default


@contextmanager
def variable_creator_scope(variable_creator: Creator) -> Iterator[None]:
    """Calls `variable_creator(next_creator, **kwargs)` for every variable that this thread makes inside.

    >>> with tf.variable_creator_scope(lambda make, **kw: make(**{**kw, "trainable": False})): ...
    """
    with creators.pushed((get_default_graph()._collections, variable_creator)):
        yield


def _default_creator(**kwargs: Any) -> Any:
    if executing_eagerly_outside_functions():
        return Kinds.eager(**{k: v for k, v in kwargs.items() if k not in ("use_resource", "expected_shape")})
    use_resource = kwargs.pop("use_resource", None)
    if use_resource is None:
        use_resource = Kinds.scope_wants_resource()
    if use_resource is None:
        use_resource = Kinds.resource_by_default
    if use_resource:
        kwargs.pop("expected_shape", None)
    return Kinds.classes[bool(use_resource)](**kwargs)


_POSITIONAL = (
    "initial_value",
    "trainable",
    "collections",
    "validate_shape",
    "caching_device",
    "name",
    "variable_def",
    "dtype",
    "expected_shape",
    "import_scope",
    "constraint",
    "use_resource",
    "synchronization",
    "aggregation",
    "shape",
)


def create(*args: Any, **kwargs: Any) -> Any:
    """Makes a variable by the current creators, the innermost first: `create(0.0, name="x")`."""
    for name, value in zip(_POSITIONAL, args, strict=False):
        if name in kwargs:
            raise TypeError(f"Variable() got multiple values for argument '{name}'.")
        kwargs[name] = value
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"Variable() takes {len(_POSITIONAL)} arguments, received {len(args)}.")
    unknown = kwargs.keys() - set(_POSITIONAL)
    if unknown:
        raise TypeError(f"Variable() got an unexpected keyword argument '{min(unknown)}'.")
    creator: Creator = _default_creator
    program = get_default_graph()._collections
    for owner, outer in creators.items:
        if owner is program:
            creator = _chained(outer, creator)
    return creator(**kwargs)


def _chained(creator: Creator, following: Creator) -> Creator:
    return lambda **kwargs: creator(following, **kwargs)
