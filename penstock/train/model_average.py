"""ModelAverageOptimizer: workers train by themselves, and from time to time all take their mean (arXiv:1410.7455).

In each meeting every worker adds its copies to accumulators on the parameter servers and waits for a token. The chief
takes the means once all workers have added theirs, makes them the centers, raises the global step and puts out a token
for each other worker. With its token a worker copies the centers. A token is the number of its meeting, which is the
global step before it.

Two queues hold the tokens, of meetings with an even and an odd number: a fast worker that comes to the next meeting
must not take the token that a slow one has not fetched yet. Two are enough, since no meeting ends without every worker.

A token of an earlier meeting was for a worker that died before it could take it, and is thrown away. So a chief that
comes back can put out the tokens of the last meeting once more, in case it died before it had. If it died when it had
taken means but not raised the global step, it first ends that meeting: the steps of the accumulators, which rise with
each take, tell so. A center whose mean died with the chief stays as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import CancelledError, FailedPreconditionError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import fill
from penstock.ops.array.joining import stack
from penstock.ops.control.flow import cond, while_loop
from penstock.ops.control.grouping import group, no_op
from penstock.ops.math.arithmetic import floormod
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, greater_equal, less, logical_and, logical_not
from penstock.ops.math.reduce import reduce_any
from penstock.ops.queue.accumulator import ConditionalAccumulator
from penstock.ops.queue.awaiting import await_size
from penstock.ops.queue.queues import FIFOQueue
from penstock.optim.optimizer import Optimizer, op_of
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.sync_replicas import run_before_leaving
from penstock.train.worker_copies import DEADLINE_SECS, CopyingGetter, PullingHook, WorkerCopiesOptimizer, deadline_of


class ModelAverageCustomGetter(CopyingGetter):
    """Makes each trainable variable a local variable on `worker_device`, and beside it a global one for the averages.

    Use it with `tf.get_variable` and a replica device setter, which places the global variables.

    >>> getter = tf.contrib.opt.ModelAverageCustomGetter("/job:worker/task:0")
    >>> with tf.device(setter), tf.variable_scope("", custom_getter=getter):
    ...     w = tf.get_variable("w", [784, 10])
    """


class ModelAverageOptimizer(WorkerCopiesOptimizer):
    """Has each worker train its copies by `opt`; every `interval_steps` steps all of them take the mean of all workers.

    `global_step` counts the averages. All workers must make the same number of steps. One that has waited for the
    others for `deadline_secs` gets DeadlineExceededError; None for no limit.

    >>> rule = tf.contrib.opt.ModelAverageOptimizer(
    ...     tf.train.MomentumOptimizer(0.1, 0.9), num_worker, is_chief, getter, interval_steps=20)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook()]
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks) as sess: ...
    """

    _getter_class = ModelAverageCustomGetter
    _argument = {"getter": "ma_custom_getter", "period": "interval_steps"}

    def __init__(
        self,
        opt: Optimizer,
        num_worker: int,
        is_chief: bool,
        ma_custom_getter: ModelAverageCustomGetter,
        interval_steps: int = 100,
        use_locking: bool = True,
        name: str = "ModelAverageOptimizer",
        deadline_secs: float | None = DEADLINE_SECS,
    ) -> None:
        super().__init__(opt, num_worker, ma_custom_getter, interval_steps, use_locking, name)
        self._deadline = deadline_of(deadline_secs)
        self._is_chief = is_chief
        self._queues: list[Any] = []
        self._chief_init_op: Any = None

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        if global_step is None:
            raise ValueError("global_step is required: it numbers the averages.")
        return super().apply_gradients(grads_and_vars, global_step, name)

    def _meeting(self, trained: list[Any], global_step: Any) -> Callable[[], Operation]:
        centers = [self._getter._centers[var] for var in trained]
        accumulators: list[Any] = []
        with name_scope(None, f"{self._name}/global"):
            with device(global_step.device):
                self._queues = [
                    FIFOQueue(-1, [dt.int64], shapes=[[]], shared_name=f"sync_queue_{kind}") for kind in ("even", "odd")
                ]
            for center in centers:
                with device(center.device):
                    accumulators.append(
                        ConditionalAccumulator(
                            center.dtype.base_dtype, shape=center.get_shape(), shared_name=f"{center.name}/var_accum"
                        )
                    )
            with control_dependencies([self._end_meeting(centers, accumulators, global_step)]):
                with device(global_step.device):
                    last: Any = cast(global_step.read_value(), dt.int64) - 1
                    set_steps = [self._put_tokens(last)]
                for center, accumulator in zip(centers, accumulators, strict=True):
                    with device(center.device):
                        set_steps.append(accumulator.set_global_step(last + 1, name="SetGlobalStep"))
            self._chief_init_op = group(*set_steps)

        def meet() -> Operation:
            # Read before anything is added: once all have added theirs, the chief may raise it.
            with device(global_step.device):
                number: Any = cast(global_step.read_value(), dt.int64)
            added = []
            for var, center, accumulator in zip(trained, centers, accumulators, strict=True):
                with device(center.device):
                    added.append(accumulator.apply_grad(var.read_value(), local_step=number))
            with control_dependencies(added):
                agreed = (
                    self._lead(number, centers, accumulators, global_step) if self._is_chief else self._wait(number)
                )
            with control_dependencies([agreed]):
                return self._pull(trained)

        return meet

    def _end_meeting(self, centers: list[Any], accumulators: list[Any], global_step: Any) -> Operation:
        """Takes the means that are left, and counts, if the chief died in the midst of a meeting."""
        with device(global_step.device):
            next_number: Any = cast(global_step.read_value(), dt.int64) + 1
        taken = []
        for center, accumulator in zip(centers, accumulators, strict=True):
            with device(center.device):
                taken.append(equal(accumulator._global_step(), next_number))

        def end() -> Operation:
            moves = []
            for was_taken, center, accumulator in zip(taken, centers, accumulators, strict=True):
                with device(center.device):
                    # A parameter server that was started again has not all copies: nobody waits for them.
                    has_all = greater_equal(accumulator.num_accumulated(), self._num_worker)
                    take = functools.partial(self._take, center, accumulator)
                    moves.append(op_of(cond(logical_and(has_all, logical_not(was_taken)), take, no_op)))
            with control_dependencies(moves), colocate_with(global_step):
                return op_of(global_step.assign_add(1))

        with device(global_step.device):
            return op_of(cond(reduce_any(stack(taken)), end, no_op))

    def _take(self, center: Any, accumulator: Any) -> Operation:
        """Makes the mean of all workers a center."""
        why = f"the chief averages the copies of num_worker = {self._num_worker} workers. Are all of them running?"
        with control_dependencies([self._awaited(accumulator.accumulator_ref, self._num_worker, why)]):
            mean = accumulator.take_grad(self._num_worker)
        return op_of(center.assign(mean, use_locking=self._use_locking))

    def _lead(self, number: Any, centers: list[Any], accumulators: list[Any], global_step: Any) -> Operation:
        """The chief's part: takes the means, counts, and puts out the tokens."""
        moves = []
        for center, accumulator in zip(centers, accumulators, strict=True):
            with device(center.device):
                moves.append(self._take(center, accumulator))
        with control_dependencies(moves), colocate_with(global_step):
            counted = op_of(global_step.assign_add(1))
        with control_dependencies([counted]), device(global_step.device):
            return self._put_tokens(number)

    def _put_tokens(self, number: Any) -> Operation:
        tokens = fill([self._num_worker - 1], number)
        return op_of(self._at(number, lambda queue: queue.enqueue_many((tokens,))))

    def _wait(self, number: Any) -> Operation:
        """Takes tokens until there is one of this meeting."""
        none: Any = convert_to_tensor(-1, dtype=dt.int64)
        why = f"the chief has not averaged the copies of num_worker = {self._num_worker} workers. Is it running?"

        def dequeue(queue: Any) -> Any:
            with control_dependencies([self._awaited(queue.queue_ref, 1, why)]):
                return queue.dequeue()

        with device(self._queues[0].queue_ref.device):
            return op_of(while_loop(lambda token: less(token, number), lambda _: self._at(number, dequeue), [none]))

    def _awaited(self, handle: Any, count: int, why: str) -> Operation:
        waited: Operation = await_size(handle, count, deadline_secs=self._deadline, why=why)
        return waited

    def _at(self, number: Any, do: Callable[[Any], Any]) -> Any:
        """Does something with the token queue of a meeting."""
        even, odd = self._queues
        return cond(equal(floormod(number, 2), 0), lambda: do(even), lambda: do(odd))

    def get_init_op(self) -> Operation:
        """The operation that a worker runs before its first step: its copies start as the centers are.

        >>> sess.run(rule.get_init_op())
        """
        if self._chief_init_op is None:
            raise ValueError("get_init_op() must be called after apply_gradients() or minimize().")
        # The chief may end a meeting first, which changes the centers.
        with control_dependencies([self._chief_init_op] if self._is_chief else []):
            return self._pull(self._copies())

    def make_session_run_hook(self) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook()])
        """
        return _ModelAverageHook(self)


class _ModelAverageHook(PullingHook):
    """Also ends the waiting of the others when the chief leaves: a MonitoredSession takes it as the end of the data."""

    def __init__(self, rule: ModelAverageOptimizer) -> None:
        super().__init__(rule.get_init_op, rule._check_cluster)
        self._rule = rule

    def begin(self) -> None:
        super().begin()
        self._close = [queue.close(cancel_pending_enqueues=True) for queue in self._rule._queues]

    def after_create_session(self, session: Any, coord: Any) -> None:
        try:
            super().after_create_session(session, coord)
        except CancelledError as error:
            raise FailedPreconditionError(
                None,
                self._init_op,
                "The queues 'sync_queue_even' and 'sync_queue_odd' are closed: an earlier job on these parameter "
                "servers has ended. Start them anew, or clear them by tf.Session.reset().",
            ) from error

    def end(self, session: Any) -> None:
        if self._rule._is_chief:
            run_before_leaving(session, self._close)
