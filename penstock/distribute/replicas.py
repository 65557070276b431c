"""Replicas: the same function once per device, each in a thread of its own; they meet where values are merged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from penstock.autodiff import custom_gradient
from penstock.autograph.wrapper import converted_in_context
from penstock.distribute.context import Place, at, current_place
from penstock.distribute.values import PerReplica, ReduceOp, as_reduce_op, gathered, reduced, regroup, select
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import executing_eagerly, get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.recording import recorders
from penstock.graph.scopes import device
from penstock.ops.array.reshaping import shape
from penstock.ops.array.selection import one_hot
from penstock.ops.array.slicing import slice as slice_of
from penstock.variables.creation import creators


class ReplicaContext:
    """Tells the code of a replica which one it is, and lets it meet the others: `tf.distribute.get_replica_context()`.

    >>> def replica_fn(gradient):
    ...     return tf.distribute.get_replica_context().all_reduce("SUM", gradient)
    >>> strategy.run(replica_fn, args=(gradient,))
    """

    def __init__(self, strategy: Any, replica_id_in_sync_group: int = 0, thread: _Replica | None = None) -> None:
        self._strategy = strategy
        self._number = replica_id_in_sync_group
        self._thread = thread

    @property
    def strategy(self) -> Any:
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        count: int = self._strategy.num_replicas_in_sync
        return count

    @property
    def replica_id_in_sync_group(self) -> int:
        return self._number

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this replica."""
        return (self._strategy.extended.worker_devices[self._number],)

    def __enter__(self) -> ReplicaContext:
        self._entered = at(Place(self._strategy, self))
        self._entered.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._entered.__exit__(*exc)

    def merge_call(self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Calls `merge_fn(strategy, *args, **kwargs)` once, with the arguments of all replicas.

        Every replica must call it. Each gets its own part of the result.
        """
        if current_place().replica is not self:
            raise RuntimeError("merge_call must be called by the replica whose context this is.")
        merge_fn, kwargs = _converted(merge_fn), dict(kwargs or {})
        if self._thread is not None:
            return self._thread.merge(merge_fn, tuple(args), kwargs)
        with at(Place(self._strategy)):
            return merge_fn(self._strategy, *args, **kwargs)

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or mean of each tensor of a structure over all replicas. Gradients flow through it."""
        op = as_reduce_op(reduce_op)
        flat = [v if isinstance(v, IndexedSlices) else convert_to_tensor(v) for v in nest.flatten(value)]
        dense = iter(self._all_reduce_dense(op, [v for v in flat if not isinstance(v, IndexedSlices)]))
        sparse = iter(self._merged(op, [v for v in flat if isinstance(v, IndexedSlices)]))
        found = [next(sparse) if isinstance(v, IndexedSlices) else next(dense) for v in flat]
        return nest.pack_sequence_as(value, found) if nest.is_nested(value) else found[0]

    def _merged(self, op: ReduceOp, values: list[Any]) -> list[Any]:
        if not values or self.num_replicas_in_sync == 1:
            return values

        def merge(_: Any, *grouped: Any) -> list[Any]:
            return [reduced(op, v) for v in grouped]

        return list(self.merge_call(merge, args=values))

    def _all_reduce_dense(self, op: ReduceOp, tensors: list[Tensor]) -> list[Tensor]:
        if not tensors or self.num_replicas_in_sync == 1:
            return tensors

        @custom_gradient
        def reduce(*own: Any) -> Any:
            return self._merged(op, list(own)), lambda *dys: self._all_reduce_dense(op, list(dys))

        return list(reduce(*tensors))

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Each tensor of a structure, joined along an axis over all replicas. Gradients flow through it."""
        return nest.map_structure(lambda v: self._all_gather(convert_to_tensor(v), axis), value)

    def _all_gather(self, tensor: Tensor, axis: int) -> Tensor:
        if self.num_replicas_in_sync == 1:
            return gathered([tensor], axis)

        def merge(_: Any, grouped: PerReplica) -> Any:
            before: Any = 0
            begins = []
            for each in grouped:
                begins.append(convert_to_tensor(before))
                dims: Any = shape(each)
                before = before + dims[axis]
            return gathered(grouped, axis), PerReplica(begins)

        @custom_gradient
        def gather(own: Any) -> Any:
            joined, begin = self.merge_call(merge, args=(own,))

            def gradient(dy: Any) -> Any:
                (total,) = self._all_reduce_dense(ReduceOp.SUM, [dy])
                rank = own.shape.rank
                return slice_of(total, one_hot(axis % rank, rank, on_value=begin, off_value=0), shape(own))

            return joined, gradient

        found: Tensor = gather(tensor)
        return found


class _Stopped(BaseException):
    """Ends the thread of a replica after another one has failed."""


class _Outer:
    """The graph, scopes and tapes around a call of `run`: the threads of replicas start with them."""

    def __init__(self) -> None:
        self.graph = get_default_graph()
        self.scopes = dict(self.graph._scopes.__dict__)
        self.recorders = list(recorders.items)
        self.creators = list(creators.items)

    def copy_to_this_thread(self) -> None:
        copies = {k: list(v) if isinstance(v, list) else v for k, v in self.scopes.items()}
        self.graph._scopes.__dict__.update(copies)
        recorders.items, creators.items = list(self.recorders), list(self.creators)


class _Replica(threading.Thread):
    """Runs the function of one replica. It runs only while `run_replicas` waits for it."""

    def __init__(self, strategy: Any, number: int, call: Callable[[], Any], outer: _Outer) -> None:
        super().__init__(name=f"penstock-replica-{number}", daemon=True)
        self.context = ReplicaContext(strategy, number, self)
        self.result: Any = None
        self.error: BaseException | None = None
        self.wanted: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None  # a merge it waits for
        self.merged: Any = None
        self._call, self._outer = call, outer
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._stopped = False

    def advance(self) -> None:
        """Lets it run until it has ended or wants a merge."""
        self._go.release()
        self._paused.acquire()

    def stop(self) -> None:
        """Ends it where it waits."""
        self._stopped = True
        self._go.release()
        self.join()

    def _wait(self) -> None:
        self._go.acquire()
        if self._stopped:
            raise _Stopped

    def run(self) -> None:
        try:
            self._wait()
            self._outer.copy_to_this_thread()
            with self._outer.graph.as_default(), self.context, device(self.context.devices[0]):
                self.result = self._call()
        except _Stopped:
            return
        except BaseException as error:  # run_replicas raises it
            self.error = error
        self.wanted = None
        self._paused.release()

    def merge(self, merge_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Waits until all replicas want a merge and returns this one's part of its result."""
        if get_default_graph() is not self._outer.graph:
            raise RuntimeError(
                "merge_call was called in a tf.function, loop or branch that was begun inside of the replica's "
                "function: all replicas must reach it. Put the tf.function around strategy.run."
            )
        self.wanted = merge_fn, args, kwargs
        self._paused.release()
        self._wait()
        return self.merged


def _converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the program as AutoGraph has it, where a tf.function is traced."""
    return function if executing_eagerly() else converted_in_context(function)


def run_replicas(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Calls a function once per worker device of a strategy. Returns its results by replica.

    The replicas of several devices are threads that run one at a time, each until it ends or calls `merge_call`.
    """
    fn = _converted(fn)
    count = len(strategy.extended.worker_devices)
    if count == 1:
        context = ReplicaContext(strategy)
        with context, device(context.devices[0]):
            return fn(*select(args, 0), **select(kwargs, 0))
    outer = _Outer()

    def call(number: int) -> Callable[[], Any]:
        return lambda: fn(*select(args, number), **select(kwargs, number))

    replicas = [_Replica(strategy, i, call(i), outer) for i in range(count)]
    for replica in replicas:
        replica.start()
    try:
        while True:
            for replica in replicas:
                replica.advance()
                if replica.error is not None:
                    raise replica.error
            if not any(r.wanted for r in replicas):
                return regroup([r.result for r in replicas])
            _merge(strategy, replicas)
    finally:
        for replica in replicas:
            replica.stop()


def _merge(strategy: Any, replicas: list[_Replica]) -> None:
    wanted = [r.wanted for r in replicas if r.wanted is not None]
    if len(wanted) < len(replicas):
        raise RuntimeError("Some replicas have called merge_call (all_reduce, an assignment) and others have ended.")
    merge_fn = wanted[0][0]
    result = merge_fn(strategy, *regroup([w[1] for w in wanted]), **regroup([w[2] for w in wanted]))
    for number, replica in enumerate(replicas):
        replica.merged = select(result, number)
