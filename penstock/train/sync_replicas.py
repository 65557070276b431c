"""SyncReplicasOptimizer: synchronous training. The parameter servers apply the mean of the replicas' gradients.

Tokens keep the replicas in step. A token is the number of a step. A replica that holds one (its `local_step`) may add
one gradient to that step; it then waits in a queue for the next. One thread, in the chief, waits until there are
`replicas_to_aggregate` gradients, applies their mean and puts out tokens for the next step, as many as there are
replicas or gradients needed, whichever is more. Gradients with the token of a step that is over are dropped.

A token of the current step is in the queue, or with a replica that will add a gradient for it, or was used for a
gradient. There are at least as many tokens as gradients are needed, so the step completes as long as no token of it is
lost. Surplus tokens do no harm: once their step is over, their gradients are dropped.

- A replica that leaves returns its token, so that the others can do its share (in the hook's `end`, a Supervisor's
  `stop`, or at the end of the program).
- A replica that dies loses its token. When it comes back, its `local_step` is set to the global step, which is a new
  token. If it held none when it died, the new one is a surplus.
- When the chief leaves, no more updates are applied. The chief closes the queue, and waiting replicas get
  OutOfRangeError, which a MonitoredSession takes as the end of the data. Without a MonitoredSession the chief first
  puts out some last tokens.
- When the chief dies, the others wait. When it comes back, it sets the step of the accumulators to the restored one
  and puts out enough new tokens for a step.
- When the chief has lost another task and makes a new session, the queue stays open for the same reason.

When workers join or leave by `penstock scale`, the numbers of gradients and tokens keep their share of the replicas:
as many gradients as replicas stays that, and of eight replicas two are spared where one of four was
(`passes/replicas.py`). They change between two steps: each replica that stays has its token then, one that joins gets
its own when it sets `local_step`, for which it waits until it is a member, and that of one that leaves is not needed.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tensorboard.compat.proto import config_pb2

from penstock import logging
from penstock.errors import CancelledError, FailedPreconditionError, OpError, OutOfRangeError
from penstock.graph.dtype import int32
from penstock.graph.graph import Graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import constant, fill
from penstock.ops.control.grouping import group, no_op
from penstock.ops.queue.accumulator import ConditionalAccumulator, SparseConditionalAccumulator
from penstock.ops.queue.queues import FIFOQueue
from penstock.optim.compression import CompressingOptimizer
from penstock.optim.optimizer import Optimizer
from penstock.passes.join import SUMS_FOR
from penstock.passes.replicas import JOINS, OF_REPLICAS
from penstock.train.coordinator import Coordinator
from penstock.train.queue_runner import QueueRunner
from penstock.train.recovery import note_synchronous
from penstock.train.session_manager import _ready
from penstock.train.session_run_hook import SessionRunHook
from penstock.variables.initialize import global_variables, report_uninitialized_variables
from penstock.variables.resource import ResourceVariable
from penstock.variables.updates import assign
from penstock.variables.variable import Variable

_LEAVING_TIMEOUT_MS = 10_000  # how long a replica that leaves waits for a parameter server


class SyncReplicasOptimizer(Optimizer):
    """Applies, by `opt`, the mean of `replicas_to_aggregate` gradients that `total_num_replicas` replicas compute.

    With fewer gradients than replicas, a step does not wait for the slowest; with more, replicas compute several each.

    >>> rule = tf.train.SyncReplicasOptimizer(tf.train.AdamOptimizer(1e-3), replicas_to_aggregate=4)
    >>> train = rule.minimize(loss, global_step=step)
    >>> hooks = [rule.make_session_run_hook(is_chief), tf.train.StopAtStepHook(last_step=1000)]
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=hooks) as sess:
    ...     while not sess.should_stop():
    ...         sess.run(train)
    """

    local_step_init_op: Any
    """Sets the replica's token to the global step; for replicas that are not the chief."""

    chief_init_op: Any
    """The same for the chief; it also sets the step of the accumulators."""

    ready_for_local_init_op: Any
    """Reports the global variables that must be initialised before either."""

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        variable_averages: Any = None,
        variables_to_average: Any = None,
        use_locking: bool = False,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(use_locking, name)
        if isinstance(opt, CompressingOptimizer):
            kind = type(opt).__name__
            raise TypeError(f"opt would compress the mean, not what travels: use {kind}(SyncReplicasOptimizer(...)).")
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        logging.info("%s: a step is the mean of %s gradients of %s replicas.", name, replicas_to_aggregate, total)
        self._opt = opt
        self._replicas_to_aggregate = replicas_to_aggregate
        self._total_num_replicas = total
        self._tokens_per_step = max(total, replicas_to_aggregate)
        self._variable_averages = variable_averages
        self._variables_to_average = variables_to_average
        self._gradients_applied = False
        self._global_step: Any = None
        self._local_step: Any = None
        self._sync_token_queue: Any = None
        self._chief_queue_runner: _ChiefQueueRunner | None = None
        self._accumulator_list: list[tuple[Any, str]] = []

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """See the wrapped optimizer."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Any:
        """A tensor that adds the gradients to the accumulators and waits for the next token, which is its value.

        >>> train = rule.apply_gradients(grads_and_vars, global_step=step)
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        self._global_step = global_step
        # A device function may put a variable on a parameter server. Colocated with an operation it stays here.
        with colocate_with(no_op()):
            self._local_step = Variable(
                0,
                trainable=False,
                collections=[GraphKeys.LOCAL_VARIABLES],
                dtype=global_step.dtype.base_dtype,
                name="sync_rep_local_step",
            )
        self.local_step_init_op = assign(self._local_step, global_step)
        self.local_step_init_op.op._set_attr(JOINS, True)
        self.ready_for_local_init_op = report_uninitialized_variables(global_variables())
        with name_scope(None, self._name):
            added, means = [], []
            for grad, var in pairs:
                with device(var.device):
                    addition, mean = self._accumulate(grad, var)
                added += [] if addition is None else [addition]
                means.append((mean, var))
            with device(global_step.device), name_scope(""):
                updated = self._opt.apply_gradients(means, global_step)
                train = self._make_tokens(added, updated)
            set_steps = []
            for accumulator, place in self._accumulator_list:
                with device(place):
                    set_steps.append(accumulator.set_global_step(global_step, name="SetGlobalStep"))
            self.chief_init_op = group(self.local_step_init_op, *set_steps)
        self._gradients_applied = True
        note_departure(self._local_step.graph, self._return_token)
        note_synchronous(self._local_step.graph)
        return train

    def _accumulate(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """The op that adds a gradient, and the mean of a step's gradients. Replicas share the accumulator by name."""
        if grad is None:
            return None, None
        shared_name = f"{var.name}/grad_accum"
        accumulator: Any
        if isinstance(grad, Tensor):
            accumulator = ConditionalAccumulator(grad.dtype, shape=var.get_shape(), shared_name=shared_name)
            accumulator.accumulator_ref.op._set_attr(SUMS_FOR, var.op.name)
            added = accumulator.apply_grad(grad, local_step=self._local_step)
            mean = accumulator.take_grad(self._share(self._replicas_to_aggregate))
        elif isinstance(grad, IndexedSlices):
            accumulator = SparseConditionalAccumulator(grad.dtype, shape=(), shared_name=shared_name)
            added = accumulator.apply_indexed_slices_grad(grad, local_step=self._local_step)
            mean = accumulator.take_indexed_slices_grad(self._share(self._replicas_to_aggregate))
        else:
            raise ValueError(
                f"Unknown grad type! For '{var.name}' expected a Tensor or IndexedSlices, received {grad!r}."
            )
        self._accumulator_list.append((accumulator, var.device))
        return added, mean

    def _share(self, number: int) -> Tensor:
        """A number of gradients or tokens, which keeps its share of the replicas when workers join or leave."""
        share: Tensor = constant(number, dtype=int32, name="replicas")
        share.op._set_attr(OF_REPLICAS, self._total_num_replicas)
        return share

    def _make_tokens(self, added: list[Any], updated: Any) -> Any:
        """Makes the token queue and the op that the chief runs on it. Returns the train op of a replica."""
        queue = FIFOQueue(
            -1, self._local_step.dtype.base_dtype, shapes=(), name="sync_token_q", shared_name="sync_token_q"
        )
        self._sync_token_queue = queue
        with control_dependencies(added):
            token = queue.dequeue()
        train = assign(self._local_step, token)
        with control_dependencies([updated]):
            put = queue.enqueue_many(
                (fill([self._share(self._tokens_per_step)], _step_after(updated, self._global_step)),)
            )
        if self._variable_averages is not None:
            with control_dependencies([put]), name_scope(""):
                put = self._variable_averages.apply(self._variables_to_average)
        self._chief_queue_runner = _ChiefQueueRunner(queue, [put])
        return train

    def get_chief_queue_runner(self) -> QueueRunner:
        """The queue runner that the chief starts: its thread applies updates and puts out tokens.

        >>> supervisor.start_queue_runners(sess, [rule.get_chief_queue_runner()])
        """
        if self._chief_queue_runner is None or not self._gradients_applied:
            raise ValueError("get_chief_queue_runner() should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Any:
        """An operation that puts out the first tokens. The chief runs it before it starts its queue runner.

        >>> sess.run(rule.get_init_tokens_op())
        """
        if not self._gradients_applied:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        needed = self._replicas_to_aggregate - self._total_num_replicas  # each replica starts with a token
        if num_tokens == -1:
            num_tokens = self._replicas_to_aggregate
        elif num_tokens < needed:
            raise ValueError(f"Too few tokens to finish the first step: {num_tokens} (given) vs {needed} (needed)")
        if num_tokens <= 0:
            return no_op(name="no_init_tokens")
        with device(self._global_step.device), name_scope(""):
            put = self._sync_token_queue.enqueue_many((fill([self._share(num_tokens)], self._global_step),))
        if self._chief_queue_runner is not None:
            # Two tokens for each other replica: one ends the step in which it waits, and in one more step it can see
            # that the training is over.
            self._chief_queue_runner.last_token_ops = [put] * -(-2 * (self._total_num_replicas - 1) // num_tokens)
        note_synchronous(
            self._local_step.graph, put
        )  # to be run again after recovery: a parameter server that comes back has no tokens
        return put

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """The hook that the MonitoredSession of a replica needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook(is_chief)])
        """
        return _SyncReplicasOptimizerHook(self, is_chief, num_tokens)

    def _return_token(self) -> Operation:
        """An operation that puts the token of this replica back into the queue."""
        with device(self._global_step.device), name_scope(""):
            put: Operation = self._sync_token_queue.enqueue((self._local_step,))
        return put

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """See the wrapped optimizer."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """See the wrapped optimizer."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Any]:
        """See the wrapped optimizer."""
        return self._opt.variables()


def note_departure(graph: Graph, make_op: Callable[[], Operation], of_chief: bool = False) -> None:
    """Records what a replica does when it leaves, the chief only if `of_chief`. The graph keeps it."""
    vars(graph).setdefault("_departures", []).append((make_op, of_chief))


class Departure:
    """Returns the tokens of a replica and the like when it leaves, for programs without the hook.

    >>> departure = Departure(graph, is_chief=False); departure.begin(sess); departure.end()
    """

    def __init__(self, graph: Graph, is_chief: bool) -> None:
        noted: list[tuple[Callable[[], Operation], bool]] = vars(graph).get("_departures", [])
        self._operations = [make_op() for make_op, of_chief in noted if of_chief or not is_chief]
        self._session: weakref.ref[Any] | None = None

    def begin(self, sess: Any) -> None:
        """Called when the replica starts to run in this session. It runs until `end` or the end of the program."""
        if self._operations:
            self._session = weakref.ref(sess)
            atexit.register(_end_at_exit, weakref.ref(self))

    def end(self) -> None:
        """Called when the replica leaves."""
        session = None if self._session is None else self._session()
        self._session = None
        if session is not None:
            run_before_leaving(session, self._operations)


def _end_at_exit(departure: weakref.ref[Departure]) -> None:
    leaving = departure()
    if leaving is not None:
        leaving.end()


def run_before_leaving(sess: Any, operations: Iterable[Any]) -> None:
    """Runs operations and ignores errors: the session or queue may be closed, or the parameter server gone."""
    options = config_pb2.RunOptions(timeout_in_ms=_LEAVING_TIMEOUT_MS)
    try:
        for operation in operations:
            sess.run(operation, options=options)
    except (OpError, RuntimeError) as error:
        logging.vlog(1, "Ignored exception: %s", error)


def _step_after(updated: Operation, global_step: Any) -> Any:
    """The global step after `updated`. The usual snapshot of a reference may be older."""
    if updated.type == "AssignAdd" and updated.inputs[0].op is global_step.op:
        return updated.outputs[0]
    return global_step if isinstance(global_step, ResourceVariable) else global_step.read_value()


class _ChiefQueueRunner(QueueRunner):
    """Applies updates and puts out tokens, until the queue is closed.

    The coordinator does not wait for this thread, which may wait for gradients until the session ends.
    """

    _coordinator_waits = False

    def __init__(self, queue: FIFOQueue, enqueue_ops: list[Any]) -> None:
        # A closed queue refuses tokens with CancelledError.
        super().__init__(queue, enqueue_ops, queue_closed_exception_types=(OutOfRangeError, CancelledError))
        self.last_token_ops: list[Any] = []

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[Any]:
        # Always a daemon, so that a program can end while the thread waits for gradients.
        threads = super().create_threads(sess, coord, daemon=True, start=start)
        if threads:
            # Many programs end without stopping their supervisor.
            atexit.register(_close_at_exit, weakref.ref(self), weakref.ref(sess))
        return threads

    def _close_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        if coord.lost:
            # The queue stays open, since the chief comes back. Its own step may wait on a healthy server for a token
            # that never comes: only closing the session wakes it.
            sess.close()
        else:
            self.leave(sess)

    def leave(self, sess: Any) -> None:
        """Puts out the last tokens and closes the queue.

        For programs without a MonitoredSession, OutOfRangeError is a failure. Most of them check the global step after
        each step, and end by themselves once the step in which they wait returns.
        """
        run_before_leaving(sess, [*self.last_token_ops, self._cancel_op])

    def close(self, sess: Any) -> None:
        """Closes the queue, since there are no more steps."""
        self._run_ignoring_errors(sess, self._cancel_op)


def _close_at_exit(runner: weakref.ref[_ChiefQueueRunner], sess: weakref.ref[Any]) -> None:
    chief, session = runner(), sess()
    if chief is not None and session is not None:
        chief.leave(session)


class _SyncReplicasOptimizerHook(SessionRunHook):
    """Initialises a replica when its session is made, and returns its token, or closes the queue, at the end."""

    def __init__(self, sync_optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._sync_optimizer = sync_optimizer
        self._is_chief = is_chief
        self._num_tokens = num_tokens

    def begin(self) -> None:
        rule = self._sync_optimizer
        if not rule._gradients_applied:
            raise ValueError("SyncReplicasOptimizer.apply_gradient should be called before using the hook.")
        self._ready_for_local_init_op = rule.ready_for_local_init_op
        self._q_runner: Any = None
        self._init_tokens_op: Any = None
        self._give_back_op: Any = None
        if self._is_chief:
            self._local_init_op = rule.chief_init_op
            self._q_runner = rule.get_chief_queue_runner()
            self._init_tokens_op = rule.get_init_tokens_op(self._num_tokens)
        else:
            self._local_init_op = rule.local_step_init_op
            self._give_back_op = rule._return_token()

    def after_create_session(self, session: Any, coord: Any) -> None:
        ready, why = _ready(
            self._ready_for_local_init_op, session, "Model is not ready for SyncReplicasOptimizer local init."
        )
        if not ready:
            raise RuntimeError(
                "Init operations did not make model ready for SyncReplicasOptimizer local_init. Init op: "
                f"{self._local_init_op.name}, error: {why}"
            )
        session.run(self._local_init_op)
        if self._init_tokens_op is not None:
            try:
                session.run(self._init_tokens_op)
            except CancelledError as error:
                raise FailedPreconditionError(
                    None,
                    self._init_tokens_op,
                    "The token queue 'sync_token_q' is closed: an earlier job on these parameter servers has ended. "
                    "Start them anew, or clear them by tf.Session.reset().",
                ) from error
        if self._q_runner is not None:
            self._q_runner.create_threads(session, coord=coord, daemon=True, start=True)

    def end(self, session: Any) -> None:
        if self._q_runner is not None:
            self._q_runner.close(session)
            return
        run_before_leaving(session, [self._give_back_op])
