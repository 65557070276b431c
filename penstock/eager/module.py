"""tf.Module: a named object that holds variables and other modules."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from penstock.graph import nest
from penstock.graph.scopes import init_scope, name_scope
from penstock.trackable.base import offers_slices
from penstock.trackable.containers import AutoTrackable
from penstock.variables.variable import Variable

_VALID_NAME = re.compile(r"^[A-Za-z_]\w*$", re.ASCII)
_WORD = re.compile(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z])(?=[a-z])")
_F = TypeVar("_F", bound=Callable[..., Any])


def snake_case(name: str) -> str:
    """A class's name in small letters: `snake_case("HTTPServer")` is 'http_server'."""
    return _WORD.sub(lambda match: f"_{match.group(0)}", name).lower()


class Module(AutoTrackable):
    """A base for models: it finds the variables and modules in its attributes, in lists and dicts too.

    >>> class Dense(tf.Module):
    ...     def __init__(self, size, name=None):
    ...         super().__init__(name=name)
    ...         self.w = tf.Variable(tf.zeros([size]), name="w")
    >>> len(Dense(3).trainable_variables)
    1
    """

    # Attributes that hold no parts of the module; subclasses may add to them.
    _TF_MODULE_IGNORED_PROPERTIES: ClassVar[frozenset[str]] = frozenset(("_checkpoint_positions",))

    def __init__(self, name: str | None = None) -> None:
        chosen = snake_case(type(self).__name__) if name is None else name
        if not _VALID_NAME.match(chosen):
            raise ValueError(f"'{chosen}' is not a valid module name. Module names must be valid Python identifiers.")
        self._name = chosen
        with init_scope(), name_scope(chosen) as scope:
            self._scope_name = scope

    @property
    def name(self) -> str:
        """The name: that of the class in small letters, unless one was given."""
        return self._name

    @property
    def name_scope(self) -> Any:
        """The name scope of the module: `with self.name_scope:` names what is made in it."""
        return name_scope(self._scope_name)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables of this module and of its submodules."""
        return tuple(self._flatten(predicate=_is_variable))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The variables that training changes."""
        return tuple(self._flatten(predicate=lambda leaf: _is_variable(leaf) and leaf.trainable))

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The variables that training leaves as they are."""
        return tuple(self._flatten(predicate=lambda leaf: _is_variable(leaf) and not leaf.trainable))

    @property
    def submodules(self) -> tuple[Module, ...]:
        """The modules in this module, and those in them."""
        return tuple(self._flatten(predicate=lambda leaf: isinstance(leaf, Module)))

    def _flatten(
        self,
        recursive: bool = True,
        predicate: Callable[[Any], bool] | None = None,
        attribute_traversal_key: Any = None,
        with_path: bool = False,
        expand_composites: bool = False,
    ) -> Iterator[Any]:
        """The leaves of the attributes, each once, own ones before those of submodules; or (path, leaf) pairs."""
        wanted = predicate or (lambda leaf: True)
        return _leaves(self, (), recursive, wanted, attribute_traversal_key, with_path, {id(self)}, ())

    @classmethod
    def with_name_scope(cls, method: _F) -> _F:
        """Makes a method run in the module's name scope.

        >>> class Dense(tf.Module):
        ...     @tf.Module.with_name_scope
        ...     def __call__(self, x):
        ...         return x * 2.0
        """

        @functools.wraps(method)
        def scoped(self: Module, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return scoped  # type: ignore[return-value]


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, Variable)


def _leaves(
    module: Module,
    path: tuple[Any, ...],
    recursive: bool,
    wanted: Callable[[Any], bool],
    key: Any,
    with_path: bool,
    seen: set[int],
    stack: tuple[int, ...],
) -> Iterator[Any]:
    submodules: list[tuple[tuple[Any, ...], Module]] = []
    attributes = vars(module)
    for name in sorted(attributes, key=key):
        if name in type(module)._TF_MODULE_IGNORED_PROPERTIES:
            continue
        for inner, leaf in _with_paths(attributes[name], (*path, name)):
            if not with_path:
                if id(leaf) in seen:
                    continue
                seen.add(id(leaf))
            if wanted(leaf):
                yield (inner, leaf) if with_path else leaf
            if recursive and isinstance(leaf, Module) and id(leaf) not in stack:
                submodules.append((inner, leaf))
    for inner, submodule in submodules:
        yield from _leaves(submodule, inner, recursive, wanted, key, with_path, seen, (*stack, id(module)))


def _with_paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The leaves of a structure, each with its path; a variable in parts gives its parts."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _with_paths(value[name], (*path, name))
    elif isinstance(value, (list, tuple)):
        for name, item in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from _with_paths(item, (*path, name))
    elif offers_slices(value):
        for i, (part, _) in enumerate(value._save_slices()):
            yield (*path, i), part
    else:
        for i, leaf in enumerate(found := nest.flatten(value)):
            yield (path if len(found) == 1 else (*path, i)), leaf
