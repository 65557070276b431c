"""BoundedStalenessOptimizer: no worker runs more than s steps ahead of the slowest one (stale synchronous parallel).

Ho, Cipar, Cui, Lee, Kim, Gibbons, Gibson, Ganger, Xing 2013, "More Effective Distributed ML via a Stale Synchronous
Parallel Parameter Server", NIPS.

A clock on a parameter server (`ops/queue/clock_resources.py`) counts the steps of each worker. A train op ends when its
worker may begin the next step, so that the next reads of variables see all updates that they must. The clock knows
workers by their number, and survives them: one that is started again goes on at its own clock, or at that of the
slowest other worker if that is later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.queue import staleness as clock_ops
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import require_whole
from penstock.optim.wrapper import WrapperOptimizer
from penstock.train.recovery import note_rejoin
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.sync_replicas import note_departure, run_before_leaving
from penstock.train.worker_copies import DEADLINE_SECS, deadline_of, require_workers


class BoundedStalenessOptimizer(WrapperOptimizer):
    """Has each worker apply its gradients by `opt`, and wait while it is `staleness` steps ahead of the slowest.

    With 0 the workers are in step: they apply their gradients only when all have computed theirs, so that all gradients
    of a step are of the same variables, as in synchronous training with the sum of the gradients. None or infinity
    lets nobody wait. `set_staleness` changes the bound while the job runs. A worker that waits for longer than
    `deadline_secs` gets DeadlineExceededError, which names those who are behind; None waits as long as it takes.

    >>> rule = tf.contrib.opt.BoundedStalenessOptimizer(
    ...     tf.train.GradientDescentOptimizer(0.1), 3, total_num_replicas=4, task_index=task_index)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook()]
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks) as sess: ...
    """

    def __init__(
        self,
        opt: Optimizer,
        staleness: float | None,
        total_num_replicas: int,
        task_index: int,
        deadline_secs: float | None = DEADLINE_SECS,
        use_locking: bool = False,
        name: str = "bounded_staleness",
    ) -> None:
        super().__init__(opt, use_locking, name)
        require_whole(1, total_num_replicas=total_num_replicas)
        if isinstance(task_index, bool) or not isinstance(task_index, int) or not 0 <= task_index < total_num_replicas:
            raise ValueError(
                f"task_index must be from 0 to total_num_replicas - 1 = {total_num_replicas - 1}, "
                f"received {task_index!r}."
            )
        self._staleness = bound_of(staleness)
        self._total_num_replicas, self._task_index = total_num_replicas, task_index
        self._deadline = deadline_of(deadline_secs)
        self._place = ""
        self._clock: Any = None

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """The operation that applies the gradients, and returns when this worker may make its next step."""
        pairs = list(grads_and_vars)
        given = [(grad, var) for grad, var in pairs if grad is not None]
        if not given:
            raise ValueError("grads_and_vars must have a gradient for at least one variable.")
        self._place = (given[0][1] if global_step is None else global_step).device
        worker: dict[str, Any] = {"worker": self._task_index, "deadline_secs": self._deadline}
        with name_scope(None, self._name), device(self._place):
            self._clock = clock_ops.staleness_clock(
                num_workers=self._total_num_replicas, staleness=self._staleness, shared_name=f"{self._name}/clock"
            )
            with control_dependencies([grad if isinstance(grad, Tensor) else grad.op for grad, _ in given]):
                arrived = clock_ops.staleness_clock_arrive(self._clock, **worker)
        with control_dependencies([arrived]):
            applied = self._opt.apply_gradients(pairs, global_step=global_step, name=name)
        with control_dependencies([applied]), name_scope(None, self._name), device(self._place):
            train = op_of(clock_ops.staleness_clock_advance(self._clock, **worker))
        graph = get_default_graph()
        note_departure(graph, self._leave, of_chief=True)
        note_rejoin(graph, self.get_init_op())
        return train

    def get_init_op(self) -> Operation:
        """The operation that a worker runs before its first step, and before the next one after an error.

        It returns when the worker may begin.

        >>> sess.run(rule.get_init_op())
        """
        self._require_clock("get_init_op")
        with name_scope(None, self._name), device(self._place):
            return op_of(
                clock_ops.staleness_clock_join(self._clock, worker=self._task_index, deadline_secs=self._deadline)
            )

    def make_session_run_hook(self) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs: the worker joins, and at the end leaves.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook()])
        """
        return _ClockHook(self)

    def set_staleness(self, staleness: Any) -> Tensor:
        """A tensor that changes the bound for all workers when it is run: the chief's choice, at any time.

        0 makes the training synchronous, None or infinity asynchronous. Its value is the clock from which the new bound
        is in force, for all workers: the first that none has begun. Workers that are behind go on there, so that nobody
        waits for longer than a step of another. A tensor of an integer may be given too, with -1 for no bound. A
        parameter server that is started again begins with the bound of the constructor.

        >>> sess.run(rule.set_staleness(None))
        """
        self._require_clock("set_staleness")
        if not isinstance(staleness, Tensor):
            staleness = bound_of(staleness)
        with name_scope(None, self._name), device(self._place):
            bound = convert_to_tensor(staleness, dtype=dt.int64)
            changed: Tensor = clock_ops.staleness_clock_set_staleness(self._clock, bound)
        return changed

    def clocks(self) -> tuple[Tensor, Tensor]:
        """The clock of each worker, and the bound that was set last, with -1 for none.

        >>> clocks, bound = sess.run(rule.clocks())
        """
        self._require_clock("clocks")
        with name_scope(None, self._name), device(self._place):
            clocks, _, bound = clock_ops.staleness_clock_state(self._clock)
        return clocks, bound

    def staleness_record(self) -> tuple[Tensor, Tensor]:
        """Two histograms of the gradients that were applied, with rows of a staleness and a count.

        The first counts updates of other workers between a gradient's reads of variables and its own update. The second
        counts clocks by which its worker was ahead of the slowest when it began: these are never more than the bound.

        >>> updates, clocks = sess.run(rule.staleness_record())
        """
        self._require_clock("staleness_record")
        with name_scope(None, self._name), device(self._place):
            updates, clocks = clock_ops.staleness_record(self._clock)
        return updates, clocks

    def _leave(self) -> Operation:
        with name_scope(None, self._name), device(self._place):
            left: Operation = clock_ops.staleness_clock_leave(self._clock, worker=self._task_index)
        return left

    def _require_clock(self, method: str) -> None:
        if self._clock is None:
            raise ValueError(f"{method}() must be called after apply_gradients() or minimize().")


def bound_of(staleness: Any) -> int:
    """A bound as the clock takes it: -1 for None and infinity.

    >>> bound_of(2), bound_of(None), bound_of(float("inf"))
    (2, -1, -1)
    """
    if staleness is None or staleness == math.inf:
        return -1
    if isinstance(staleness, bool) or staleness != staleness or int(staleness) != staleness or staleness < 0:
        raise ValueError(
            f"staleness must be a whole number of at least 0, or None or infinity for no bound, received {staleness!r}."
        )
    return int(staleness)


class _ClockHook(SessionRunHook):
    """Lets a worker join when its session is made, at first and after a failure, and leave at the end."""

    def __init__(self, rule: BoundedStalenessOptimizer) -> None:
        self._rule = rule

    def begin(self) -> None:
        self._join, self._leave = self._rule.get_init_op(), self._rule._leave()

    def after_create_session(self, session: Any, coord: Any) -> None:
        require_workers(session, total_num_replicas=self._rule._total_num_replicas)
        session.run(self._join)

    def end(self, session: Any) -> None:
        run_before_leaving(session, [self._leave])
