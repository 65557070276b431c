"""SoftsyncOptimizer: an update for every few gradients, whichever workers they come from (n-softsync).

Zhang, Gupta, Lian, Liu 2016, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI, arXiv:1511.05950.

A worker puts its gradients into a queue beside the variables, together with the global step that it has seen before it
read them. The worker whose gradients complete a group takes the group out and applies its mean, in the same step. No
worker waits for another, none has a special part, and what one that dies leaves undone the others do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.joining import concat, stack
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group, no_op
from penstock.ops.math.arithmetic import add_n, maximum
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_min
from penstock.ops.queue import staleness as clock_ops
from penstock.ops.queue.queues import FIFOQueue
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import require_whole
from penstock.optim.wrapper import WrapperOptimizer
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.worker_copies import PullingHook, require_workers
from penstock.variables.variable import Variable

_Pair = tuple[Any, Any]


class SoftsyncOptimizer(WrapperOptimizer):
    """Has `opt` apply the mean of every `replicas_to_aggregate` gradients, each divided by its own staleness.

    The staleness of a gradient is the number of updates between the reads of its variables and the update that it is
    part of; up to 1 it is not divided. Instead of `replicas_to_aggregate` the paper's `n` may be given, for groups of
    total_num_replicas / n, rounded down: n = 1 makes an update for as many gradients as there are workers, n =
    total_num_replicas for each. A fast worker may have several gradients in a group. `global_step` counts the updates.

    >>> rule = tf.contrib.opt.SoftsyncOptimizer(tf.train.GradientDescentOptimizer(0.1), n=2, total_num_replicas=8)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook()]
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int | None = None,
        total_num_replicas: int | None = None,
        n: int | None = None,
        use_locking: bool = False,
        name: str = "softsync",
    ) -> None:
        super().__init__(opt, use_locking, name)
        choices = {"replicas_to_aggregate": replicas_to_aggregate, "n": n}
        given = {argument: value for argument, value in choices.items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                f"One of replicas_to_aggregate and n must be given, received {replicas_to_aggregate!r} and {n!r}."
            )
        if total_num_replicas is None:
            raise ValueError("total_num_replicas is required: the number of workers.")
        require_whole(1, total_num_replicas=total_num_replicas, **given)
        ((argument, value),) = given.items()
        if value > total_num_replicas:
            raise ValueError(f"{argument} must be at most total_num_replicas = {total_num_replicas}, received {value}.")
        self._group_size = value if n is None else total_num_replicas // n
        self._total_num_replicas = total_num_replicas
        self._global_step: Any = None
        self._local_step: Any = None
        self._groups: Any = None
        self._stores: list[_Store] = []

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """The operation that adds the gradients to a group, and applies the group if they are the last of it."""
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("grads_and_vars must have a gradient for at least one variable.")
        if global_step is None:
            raise ValueError("global_step is required: it tells how old gradients are.")
        self._global_step = global_step
        # A device function may put a variable on a parameter server. Colocated with an operation it stays here.
        with colocate_with(no_op()), name_scope(None, self._name):
            self._local_step = Variable(
                0, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], dtype=dt.int64, name="seen_step"
            )
        with name_scope(None, self._name):
            stores = self._stores = [
                _Store(f"{self._name}/gradients{i}", *part) for i, part in enumerate(_by_place(pairs).items())
            ]
            with device(global_step.device):
                self._groups = clock_ops.gradient_groups(
                    group_size=self._group_size, shared_name=f"{self._name}/groups"
                )
                with control_dependencies([store.put(self._local_step.read_value()) for store in stores]):
                    is_last = clock_ops.gradient_groups_add(self._groups)
                applied = cond(is_last, lambda: self._update(stores, name), no_op)
            with control_dependencies([op_of(applied)]):
                return self._see_step()

    def _update(self, stores: list[_Store], name: str | None) -> Operation:
        """Takes a group out and applies it."""
        groups = [store.take(self._group_size) for store in stores]
        # Read when the gradients are there: one that came last may have seen the update before this one.
        with device(self._global_step.device), control_dependencies([one.seen for taken in groups for one in taken]):
            now: Any = cast(self._global_step.read_value(), dt.int64)
            # All stores hold the same gradients, so one of them tells their staleness.
            noted = clock_ops.gradient_groups_note(self._groups, stack([now - one.seen for one in groups[0]]))
        means = [pair for store, elements in zip(stores, groups, strict=True) for pair in store.means(elements, now)]
        return group(noted, self._opt.apply_gradients(means, global_step=self._global_step, name=name))

    def get_init_op(self) -> Operation:
        """The operation that a worker runs before its first step: it notes the global step.

        >>> sess.run(rule.get_init_op())
        """
        if self._global_step is None:
            raise ValueError("get_init_op() must be called after apply_gradients() or minimize().")
        with name_scope(None, self._name):
            sizes = stack([store.size() for store in self._stores])
            with device(self._global_step.device):
                checked = clock_ops.gradient_groups_require(self._groups, reduce_min(sizes))
            return group(checked, self._see_step())

    def _see_step(self) -> Operation:
        """Notes the global step, before the worker reads variables."""
        with device(self._global_step.device):
            now = cast(self._global_step.read_value(), dt.int64)
        return op_of(self._local_step.assign(now))

    def make_session_run_hook(self) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook()])
        """
        return PullingHook(
            self.get_init_op, lambda session: require_workers(session, total_num_replicas=self._total_num_replicas)
        )

    def staleness_record(self) -> Tensor:
        """The histogram of the gradients that were applied: rows of a staleness, in updates, and a count.

        >>> sess.run(rule.staleness_record())
        """
        if self._groups is None:
            raise ValueError("staleness_record() must be called after apply_gradients() or minimize().")
        with name_scope(None, self._name), device(self._global_step.device):
            updates: Tensor = clock_ops.staleness_record(self._groups)[0]
        return updates


class _Element(NamedTuple):
    """The gradients of one worker for the variables of a store, and the global step that it had seen."""

    seen: Any
    parts: list[Any]


class _Store:
    """The queue of one parameter server. An element has the step that was seen, and the gradients of its variables."""

    def __init__(self, name: str, place: str, pairs: list[_Pair]) -> None:
        self._place, self._pairs = place, pairs
        self._parts: list[Any] = []
        for grad, _ in pairs:
            self._parts += [grad.indices, grad.values] if isinstance(grad, IndexedSlices) else [grad]
        with device(place):
            types = [dt.int64, *(part.dtype.base_dtype for part in self._parts)]
            self._queue = FIFOQueue(-1, types, shared_name=name, name="gradients")

    def size(self) -> Any:
        with device(self._place):
            return self._queue.size()

    def put(self, seen: Any) -> Operation:
        with device(self._place):
            put: Operation = self._queue.enqueue([seen, *self._parts])
        return put

    def take(self, count: int) -> list[_Element]:
        """Takes `count` elements, which are there."""
        with device(self._place):
            taken = [list(self._queue.dequeue()) for _ in range(count)]
        return [_Element(seen, parts) for seen, *parts in taken]

    def means(self, elements: list[_Element], now: Any) -> list[_Pair]:
        """The mean of the gradients for each variable, each gradient divided by its staleness."""
        means: list[_Pair] = []
        with device(self._place):
            shares = [1.0 / (len(elements) * cast(maximum(now - one.seen, 1), dt.float64)) for one in elements]
            parts = zip(*(one.parts for one in elements), strict=True)  # of all elements, one after the other
            for grad, var in self._pairs:
                indices = concat(list(next(parts)), 0) if isinstance(grad, IndexedSlices) else None
                dtype = grad.dtype.base_dtype
                values = [part * cast(share, dtype) for part, share in zip(next(parts), shares, strict=True)]
                if indices is not None:
                    means.append((IndexedSlices(concat(values, 0), indices, grad.dense_shape), var))
                    continue
                for value in values:
                    value.set_shape(var.get_shape())
                means.append((add_n(values), var))
        return means


def _by_place(pairs: list[_Pair]) -> dict[str, list[_Pair]]:
    """Gradients and variables by the device of the variable."""
    found: dict[str, list[_Pair]] = {}
    for grad, var in pairs:
        grad = grad if isinstance(grad, IndexedSlices) else convert_to_tensor(grad)
        found.setdefault(var.device, []).append((grad, var))
    return found
