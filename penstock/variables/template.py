"""make_template: a function that creates its variables on the first call and reuses them on later ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.variables.scope import VariableScope, _scopes, pure_variable_scope, variable_scope


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> Template:
    """`func_` with its own variable scope, which all calls share.

    >>> dense = tf.make_template("dense", lambda x: x * tf.get_variable("w", []))
    >>> dense(a); dense(b)  # one variable, dense/w
    """
    function = functools.partial(func_, **kwargs) if kwargs else func_
    return Template(name_, function, create_scope_now_, unique_name_, custom_getter_)


class Template:
    """The result of `make_template`."""

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        create_scope_now: bool = False,
        unique_name: str | None = None,
        custom_getter: Callable[..., Any] | None = None,
    ) -> None:
        if not name:
            raise ValueError("name cannot be None.")
        self._name, self._func, self._unique_name, self._custom_getter = name, func, unique_name, custom_getter
        self._scope: VariableScope | None = None
        self._called = False
        if create_scope_now:
            chosen = unique_name or _scopes().unique(name)
            with pure_variable_scope(chosen, custom_getter=custom_getter) as scope:
                self._scope = scope

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._scope is not None:
            with variable_scope(self._scope, reuse=self._called or None):
                return self._call(args, kwargs)
        with variable_scope(self._unique_name, self._name, custom_getter=self._custom_getter) as scope:
            self._scope = scope
            return self._call(args, kwargs)

    def _call(self, args: Any, kwargs: Any) -> Any:
        graph = get_default_graph()
        before = len(graph.get_collection(GraphKeys.TRAINABLE_VARIABLES))
        result = self._func(*args, **kwargs)
        made = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)[before:]
        if self._called and made:
            raise ValueError(
                f"Template '{self.name}' made trainable variables after its first call: {[v.name for v in made]}. Use "
                "tf.get_variable instead of tf.Variable."
            )
        self._called = True
        return result

    @property
    def name(self) -> str:
        return self._name

    @property
    def func(self) -> Callable[..., Any]:
        return self._func

    @property
    def variable_scope(self) -> VariableScope | None:
        return self._scope

    @property
    def variable_scope_name(self) -> str | None:
        if self._scope is None:
            return None
        name = self._scope.name
        return name if not name or name.endswith("/") else name + "/"

    @property
    def var_scope(self) -> VariableScope | None:
        return self._scope

    def _collection(self, key: str) -> list[Any]:
        return [] if self._scope is None else get_default_graph().get_collection(key, self.variable_scope_name)

    @property
    def variables(self) -> list[Any]:
        return self.global_variables + self.local_variables

    @property
    def trainable_variables(self) -> list[Any]:
        return self._collection(GraphKeys.TRAINABLE_VARIABLES)

    @property
    def global_variables(self) -> list[Any]:
        return self._collection(GraphKeys.GLOBAL_VARIABLES)

    @property
    def local_variables(self) -> list[Any]:
        return self._collection(GraphKeys.LOCAL_VARIABLES)

    weights = variables
    trainable_weights = trainable_variables
