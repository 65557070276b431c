"""ElasticAverageOptimizer: workers on springs to a common center (Zhang et al., arXiv:1412.6651)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.nest import flatten
from penstock.graph.operation import Operation
from penstock.graph.scopes import colocate_with, control_dependencies, device
from penstock.graph.typing import TensorLike
from penstock.ops.control.grouping import group
from penstock.ops.math.arithmetic import add_n
from penstock.ops.nn.cross_entropy import l2_loss
from penstock.ops.queue import staleness as clock_ops
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import RuleOptimizer
from penstock.train.session_run_hook import SessionRunHook
from penstock.train.sync_replicas import run_before_leaving
from penstock.train.worker_copies import DEADLINE_SECS, CopyingGetter, PullingHook, WorkerCopiesOptimizer, deadline_of
from penstock.variables.initialize import trainable_variables


class ElasticAverageCustomGetter(CopyingGetter):
    """Makes each trainable variable a local variable on `worker_device`, and beside it a center and a copy of that.

    The center is a global variable, which a replica device setter places; its copy, on the worker, is as the center was
    when they last met. Use it with `tf.get_variable`.

    >>> getter = tf.contrib.opt.ElasticAverageCustomGetter("/job:worker/task:0")
    >>> with tf.device(setter), tf.variable_scope("", custom_getter=getter):
    ...     w = tf.get_variable("w", [784, 10])
    """

    _aside = "local_center_variable"


class ElasticAverageOptimizer(WorkerCopiesOptimizer):
    """Has each worker train copies by `opt`; every `communication_period` steps copies and centers attract each other.

    With `d = copy - center`, `copy -= moving_rate * d` and `center += moving_rate * d`, for each worker when its time
    comes, whatever the others do. The rate is by default 0.9 / communication_period / num_worker, the paper's. Between
    these meetings `rho / 2 * |copy - center| ** 2`, with the center of the last meeting, is added to the loss; by
    default `rho` is moving_rate / learning_rate, and 0 lets workers explore freely. `global_step` counts the meetings
    of all workers. With `synchronous` all workers wait for each other before their first step, for `deadline_secs` at
    most (None: as long as it takes); a worker whose process is started again later goes on at once.

    >>> rule = tf.contrib.opt.ElasticAverageOptimizer(
    ...     tf.train.GradientDescentOptimizer(0.1), num_worker, getter, communication_period=10)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook(is_chief, task_index)]
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks) as sess: ...
    """

    BETA = 0.9  # how far the center moves towards the workers in a round of meetings
    _getter_class = ElasticAverageCustomGetter
    _argument = {"getter": "ea_custom_getter", "period": "communication_period"}

    def __init__(
        self,
        opt: Optimizer,
        num_worker: int,
        ea_custom_getter: ElasticAverageCustomGetter,
        communication_period: int = 10,
        moving_rate: float | None = None,
        rho: float | None = None,
        use_locking: bool = True,
        synchronous: bool = False,
        name: str = "ElasticAverageOptimizer",
        deadline_secs: float | None = DEADLINE_SECS,
    ) -> None:
        super().__init__(opt, num_worker, ea_custom_getter, communication_period, use_locking, name)
        if moving_rate is not None and not 0 <= moving_rate <= 1:
            raise ValueError(f"moving_rate must be from 0 to 1, received {moving_rate}.")
        if rho is not None and rho < 0:
            raise ValueError(f"rho must not be negative, received {rho}.")
        self._moving_rate = self.BETA / communication_period / num_worker if moving_rate is None else moving_rate
        self._rho = rho
        self._synchronous = synchronous
        self._deadline = deadline_of(deadline_secs)

    def compute_gradients(
        self,
        loss: TensorLike,
        var_list: Any = None,
        gate_gradients: int = Optimizer.GATE_OP,
        aggregation_method: int | None = None,
        colocate_gradients_with_ops: bool = False,
        grad_loss: TensorLike = None,
    ) -> list[tuple[Any, Any]]:
        """See the wrapped optimizer. The gradients are those of the loss with the pull towards the centers."""
        variables = trainable_variables() if var_list is None else flatten(var_list)
        self._require_copies(variables)
        rho = self._spring()
        if variables and not (isinstance(rho, (int, float)) and rho == 0):
            asides = self._getter._asides
            strain: Any = add_n([l2_loss(var - asides[var].read_value()) for var in variables])
            loss = convert_to_tensor(loss() if callable(loss) else loss) + rho * strain
        return self._opt.compute_gradients(
            loss, variables, gate_gradients, aggregation_method, colocate_gradients_with_ops, grad_loss
        )

    def _spring(self) -> Any:
        if self._rho is not None:
            return self._rho
        rate = learning_rate_of(self._opt)
        if rate is None:
            raise ValueError(f"rho is required: the learning rate of {type(self._opt).__name__} is not known.")
        return self._moving_rate / rate

    def _meeting(self, trained: list[Any], global_step: Any) -> Callable[[], Operation]:
        def meet() -> Operation:
            moves = []
            for var in trained:
                center, aside = self._getter._centers[var], self._getter._asides[var]
                seen = self._center_now(var)
                with device(var.device):
                    pull = self._moving_rate * (var.read_value() - seen)
                    moves.append(op_of(aside.assign(seen, use_locking=self._use_locking)))
                    moves.append(op_of(var.assign_sub(pull, use_locking=self._use_locking)))
                with device(center.device):
                    moves.append(op_of(center.assign_add(pull, use_locking=self._use_locking)))
            if global_step is not None:
                with control_dependencies(moves), colocate_with(global_step):
                    moves.append(op_of(global_step.assign_add(1)))
            return group(*moves)

        return meet

    def get_init_op(self, task_index: int) -> Operation:
        """The operation that a worker runs before its first step: all its copies start as the centers are.

        With `synchronous` it returns when all workers have run it.

        >>> sess.run(rule.get_init_op(task_index))
        """
        pulled = self._pull_all(task_index)
        return self._barrier(pulled, task_index) if self._synchronous else pulled

    def _pull_all(self, task_index: int) -> Operation:
        if not 0 <= task_index < self._num_worker:
            raise ValueError(
                f"task_index must be from 0 to num_worker - 1 = {self._num_worker - 1}, received {task_index}."
            )
        copies, asides = self._copies(), self._getter._asides
        with control_dependencies([self._pull(copies)]):
            return group(*(op_of(asides[var].assign(var.read_value())) for var in copies))

    def _barrier(self, ready: Operation, task_index: int) -> Operation:
        """Waits until all workers have come here once. The clock on the parameter server remembers who has."""
        with control_dependencies([ready]), self._at_start():
            return op_of(
                clock_ops.staleness_clock_arrive(self._start(), worker=task_index, deadline_secs=self._deadline)
            )

    def _at_start(self) -> Any:
        return device(next(iter(self._getter._centers.values())).device)

    def _start(self) -> Any:
        """A clock that never advances: all workers arrive at its first tick."""
        return clock_ops.staleness_clock(num_workers=self._num_worker, staleness=0, shared_name=f"{self._name}/start")

    def make_session_run_hook(self, is_chief: bool, task_index: int) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook(is_chief, 0)])
        """
        return _ElasticAverageHook(self, task_index)


class _ElasticAverageHook(PullingHook):
    """Waits for the other workers only once. When the session is made again, it lets everybody pass.

    A parameter server that was started again does not know that the workers have met.
    """

    def __init__(self, rule: ElasticAverageOptimizer, task_index: int) -> None:
        check = rule._check_cluster if rule._synchronous else None
        super().__init__(lambda: rule._pull_all(task_index), check)
        self._rule, self._task_index = rule, task_index
        self._met = False

    def begin(self) -> None:
        super().begin()
        if self._rule._synchronous:
            self._barrier_op = self._rule._barrier(self._init_op, self._task_index)
            with self._rule._at_start():
                self._open_op = clock_ops.staleness_clock_set_staleness(self._rule._start(), -1)
                self._leave_op = clock_ops.staleness_clock_leave(self._rule._start(), worker=self._task_index)

    def after_create_session(self, session: Any, coord: Any) -> None:
        super().after_create_session(session, coord)
        if self._rule._synchronous:
            session.run(self._open_op if self._met else self._barrier_op)
            self._met = True

    def end(self, session: Any) -> None:
        if self._rule._synchronous:
            run_before_leaving(session, [self._leave_op])


def learning_rate_of(opt: Optimizer) -> Any:
    """The learning rate that an optimizer was made with, or None if it does not say."""
    if isinstance(opt, RuleOptimizer):
        rate = opt._settings.get("lr", (None,))[0]
    else:
        rate = getattr(opt, "_learning_rate", getattr(opt, "_lr", None))
    return opt._call_if_callable(rate)
