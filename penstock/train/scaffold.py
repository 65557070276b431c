"""Scaffold: the ops that a training needs besides its train op. They are found in the graph or made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.typing import FeedDict
from penstock.ops.array.creation import constant
from penstock.ops.array.joining import concat
from penstock.ops.control.grouping import group
from penstock.ops.io.summary import merge_all
from penstock.train.saver import Saver
from penstock.variables.initialize import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
    tables_initializer,
)


class Scaffold:
    """Holds the init, ready, local-init and summary ops and the saver; missing ones are found in collections or made.

    >>> scaffold = tf.train.Scaffold(init_fn=lambda scaffold, sess: saver.restore(sess, path))
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: FeedDict | None = None,
        init_fn: Callable[[Scaffold, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Any = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: FeedDict | None = None,
    ) -> None:
        if copy_from_scaffold is not None:
            if not isinstance(copy_from_scaffold, Scaffold):
                raise TypeError("copy_from_scaffold is not a Scaffold instance.")
            other = copy_from_scaffold
            init_op = init_op if init_op is not None else other.init_op
            init_feed_dict = init_feed_dict or other.init_feed_dict
            init_fn = init_fn or other._user_init_fn
            ready_op = ready_op if ready_op is not None else other.ready_op
            ready_for_local_init_op = (
                ready_for_local_init_op if ready_for_local_init_op is not None else other.ready_for_local_init_op
            )
            local_init_op = local_init_op if local_init_op is not None else other.local_init_op
            local_init_feed_dict = local_init_feed_dict or other.local_init_feed_dict
            summary_op = summary_op if summary_op is not None else other.summary_op
            saver = saver if saver is not None else other.saver
        self._user_init_fn: Callable[[Scaffold, Any], Any] | None = init_fn
        self._init_fn = (lambda session: init_fn(self, session)) if init_fn is not None else None
        self._init_op = init_op
        self._init_feed_dict = init_feed_dict
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._local_init_op = local_init_op
        self._local_init_feed_dict = local_init_feed_dict
        self._summary_op = summary_op
        self._saver = saver

    def finalize(self) -> Scaffold:
        """Makes the missing ops, and finalizes the graph."""
        if self._init_op is None:
            self._init_op = self.get_or_default(
                "init_op", GraphKeys.INIT_OP, lambda: group(global_variables_initializer(), _no_resources())
            )
        if self._ready_op is None:
            self._ready_op = self.get_or_default(
                "ready_op", GraphKeys.READY_OP, lambda: concat([report_uninitialized_variables(), _no_names()], 0)
            )
        if self._ready_for_local_init_op is None:
            self._ready_for_local_init_op = self.get_or_default(
                "ready_for_local_init_op",
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: concat([report_uninitialized_variables(global_variables()), _no_names()], 0),
            )
        if self._local_init_op is None:
            self._local_init_op = self.get_or_default(
                "local_init_op", GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op
            )
        if self._summary_op is None:
            self._summary_op = self.get_or_default("summary_op", GraphKeys.SUMMARY_OP, merge_all)
        if self._saver is None:
            self._saver = saver_or_default()
        self._saver.build()
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """The only element of a collection. If there is none, calls `default_constructor` and adds its result."""
        elements = get_default_graph().get_collection(collection_key)
        if len(elements) > 1:
            raise RuntimeError(
                f'More than one item in the collection "{collection_key}". Please indicate which one to use by '
                f"passing it to the tf.Scaffold constructor as: tf.Scaffold({arg_name}=item to use)"
            )
        if elements:
            return elements[0]
        made = default_constructor()
        if made is not None:
            get_default_graph().add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Any:
        """An operation that initialises local variables and tables."""
        return group(local_variables_initializer(), tables_initializer(), _no_resources())

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        return self._init_fn

    @property
    def init_op(self) -> Any:
        return self._init_op

    @property
    def init_feed_dict(self) -> Any:
        return self._init_feed_dict

    @property
    def ready_op(self) -> Any:
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Any:
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Any:
        return self._local_init_feed_dict

    @property
    def summary_op(self) -> Any:
        return self._summary_op

    @property
    def saver(self) -> Any:
        return self._saver


def saver_or_default() -> Any:
    """The saver of the graph, or a new one of all variables if there is none."""
    savers = get_default_graph().get_collection(GraphKeys.SAVERS)
    if len(savers) > 1:
        raise RuntimeError(
            "More than one item in collection SAVERS. Please indicate which one to use by passing it to the "
            "constructor."
        )
    if savers:
        return savers[0]
    saver = Saver(sharded=True, allow_empty=True)
    get_default_graph().add_to_collection(GraphKeys.SAVERS, saver)
    return saver


def _no_names() -> Any:
    """Reports no uninitialised resources: those other than variables are made on first use."""
    return constant([], dt.string)


def _no_resources() -> Any:
    return group()
