"""SyncReplicasOptimizer: replicas in step. Their gradients gather on the parameter servers and are applied as one.

Tokens keep the replicas in step. A token is the number of a step. A replica that holds one (its `local_step`) may add
one gradient to that step; it then waits in a queue for the next. One thread, in the chief, waits until there are
`replicas_to_aggregate` gradients, applies their mean and puts out tokens for the next step, as many as there are
replicas or gradients needed, whichever is more. Gradients with the token of a step that is over are dropped.

So a token of the current step is in the queue, or with a replica that is going to add a gradient for it, or used for a
gradient that was added. There are as many as gradients are needed, or more: the step cannot fail to be completed, as
long as no token of it gets lost. Surplus tokens do no harm: those of a step that is over are used up by gradients
that are dropped.

- A replica that leaves gives its token back, so that the others can do its share (the hook's `end`, a Supervisor's
  `stop`, or the end of the program).
- A replica that dies takes its token along. When it comes back, its `local_step` is set to the global step, which is a
  token in its place. If it had none when it died, that one is a surplus.
- When the chief leaves, nobody applies updates any more: it closes the queue, and whoever waits gets OutOfRangeError,
  the end of the data to a MonitoredSession. Without one, it first puts out some last tokens.
- When the chief dies, the others wait. When it comes back it sets the step of the accumulators to what it has restored
  and puts out new tokens: enough for a step, whatever had become of the old ones.
- When the chief has lost another task and makes its session anew, the queue stays open for the same reason.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Iterable
from typing import Any

from tensorboard.compat.proto import config_pb2

from penstock import logging
from penstock.errors import CancelledError, FailedPreconditionError, OpError, OutOfRangeError
from penstock.graph.graph import Graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import fill
from penstock.ops.control.grouping import group, no_op
from penstock.ops.queue.accumulator import ConditionalAccumulator, SparseConditionalAccumulator
from penstock.ops.queue.queues import FIFOQueue
from penstock.optim.optimizer import Optimizer
from penstock.train.coordinator import Coordinator
from penstock.train.queue_runner import QueueRunner
from penstock.train.recovery import note_synchronous
from penstock.train.session_manager import _ready
from penstock.train.session_run_hook import SessionRunHook
from penstock.variables.initialize import global_variables, report_uninitialized_variables
from penstock.variables.resource import ResourceVariable
from penstock.variables.updates import assign
from penstock.variables.variable import Variable

_PATIENCE_MS = 10_000  # of one who leaves, with a parameter server that does not answer


class SyncReplicasOptimizer(Optimizer):
    """Has `opt` apply the mean of `replicas_to_aggregate` gradients, which `total_num_replicas` replicas compute.

    With fewer gradients than replicas the slowest are not waited for; with more, replicas compute several per step.

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
    """The same for the chief, which also tells the accumulators at which step the training is."""

    ready_for_local_init_op: Any
    """The names of the global variables that must be initialised before either."""

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
        """As those of the optimizer inside."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Any:
        """The tensor that adds gradients to the accumulators, waits for the next token and becomes it.

        >>> train = rule.apply_gradients(grads_and_vars, global_step=step)
        """
        pairs = list(grads_and_vars)
        if not pairs:
            raise ValueError("Must supply at least one variable")
        if global_step is None:
            raise ValueError("Global step is required to check staleness")
        self._global_step = global_step
        # A variable would go to a parameter server; beside an operation that does not, it stays with the replica.
        with colocate_with(no_op()):
            self._local_step = Variable(
                0,
                trainable=False,
                collections=[GraphKeys.LOCAL_VARIABLES],
                dtype=global_step.dtype.base_dtype,
                name="sync_rep_local_step",
            )
        self.local_step_init_op = assign(self._local_step, global_step)
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
            told = []
            for accumulator, place in self._accumulator_list:
                with device(place):
                    told.append(accumulator.set_global_step(global_step, name="SetGlobalStep"))
            self.chief_init_op = group(self.local_step_init_op, *told)
        self._gradients_applied = True
        _made_in(self._local_step.graph).append(self)
        note_synchronous(self._local_step.graph)
        return train

    def _accumulate(self, grad: Any, var: Any) -> tuple[Any, Any]:
        """What adds a gradient, and the mean of those of a step. Replicas know the accumulator by its shared name."""
        if grad is None:
            return None, None
        shared_name = f"{var.name}/grad_accum"
        accumulator: Any
        if isinstance(grad, Tensor):
            accumulator = ConditionalAccumulator(grad.dtype, shape=var.get_shape(), shared_name=shared_name)
            added = accumulator.apply_grad(grad, local_step=self._local_step)
            mean = accumulator.take_grad(self._replicas_to_aggregate)
        elif isinstance(grad, IndexedSlices):
            accumulator = SparseConditionalAccumulator(grad.dtype, shape=(), shared_name=shared_name)
            added = accumulator.apply_indexed_slices_grad(grad, local_step=self._local_step)
            mean = accumulator.take_indexed_slices_grad(self._replicas_to_aggregate)
        else:
            raise ValueError(
                f"Unknown grad type! For '{var.name}' expected a Tensor or IndexedSlices, received {grad!r}."
            )
        self._accumulator_list.append((accumulator, var.device))
        return added, mean

    def _make_tokens(self, added: list[Any], updated: Any) -> Any:
        """The queue of tokens and what the chief does with it; gives what a replica does."""
        queue = FIFOQueue(
            -1, self._local_step.dtype.base_dtype, shapes=(), name="sync_token_q", shared_name="sync_token_q"
        )
        self._sync_token_queue = queue
        with control_dependencies(added):
            token = queue.dequeue()
        train = assign(self._local_step, token)
        with control_dependencies([updated]):
            put = queue.enqueue_many((fill([self._tokens_per_step], _step_after(updated, self._global_step)),))
        if self._variable_averages is not None:
            with control_dependencies([put]), name_scope(""):
                put = self._variable_averages.apply(self._variables_to_average)
        self._chief_queue_runner = _ChiefQueueRunner(queue, [put])
        return train

    def get_chief_queue_runner(self) -> QueueRunner:
        """The thread that applies updates and puts out tokens, for the chief to start.

        >>> supervisor.start_queue_runners(sess, [rule.get_chief_queue_runner()])
        """
        if self._chief_queue_runner is None or not self._gradients_applied:
            raise ValueError("get_chief_queue_runner() should be called after apply_gradients().")
        return self._chief_queue_runner

    def get_init_tokens_op(self, num_tokens: int = -1) -> Any:
        """Puts out the first tokens, which the chief does before it starts its queue runner.

        >>> sess.run(rule.get_init_tokens_op())
        """
        if not self._gradients_applied:
            raise ValueError("get_init_tokens_op() should be called after apply_gradients().")
        needed = self._replicas_to_aggregate - self._total_num_replicas  # each replica begins with a token
        if num_tokens == -1:
            num_tokens = self._replicas_to_aggregate
        elif num_tokens < needed:
            raise ValueError(f"Too few tokens to finish the first step: {num_tokens} (given) vs {needed} (needed)")
        if num_tokens <= 0:
            return no_op(name="no_init_tokens")
        with device(self._global_step.device), name_scope(""):
            put = self._sync_token_queue.enqueue_many((fill([num_tokens], self._global_step),))
        if self._chief_queue_runner is not None:
            # Two for each of the others: they come out of the step in which they wait, and see in one more that it is
            # the last.
            self._chief_queue_runner.farewell = [put] * -(-2 * (self._total_num_replicas - 1) // num_tokens)
        note_synchronous(self._local_step.graph, put)  # a parameter server that comes back has no tokens
        return put

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """The hook that a MonitoredSession of a replica needs.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[rule.make_session_run_hook(is_chief)])
        """
        return _SyncReplicasOptimizerHook(self, is_chief, num_tokens)

    def _give_back(self) -> Operation:
        """Puts the token of this replica back into the queue."""
        with device(self._global_step.device), name_scope(""):
            put: Operation = self._sync_token_queue.enqueue((self._local_step,))
        return put

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As that of the optimizer inside."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """As those of the optimizer inside."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[Any]:
        """As those of the optimizer inside."""
        return self._opt.variables()


def _made_in(graph: Graph) -> list[SyncReplicasOptimizer]:
    """The optimizers of a graph. The graph has them, so that both go together."""
    made: list[SyncReplicasOptimizer] = vars(graph).setdefault("_sync_replicas", [])
    return made


class Departure:
    """Gives the tokens of a replica back when it leaves; for programs that have no hook to do so.

    >>> departure = Departure(graph); departure.begin(sess); departure.end()
    """

    def __init__(self, graph: Graph) -> None:
        self._operations = [rule._give_back() for rule in _made_in(graph)]
        self._session: weakref.ref[Any] | None = None

    def begin(self, sess: Any) -> None:
        """The replica runs in this session, until `end` or the end of the program."""
        if self._operations:
            self._session = weakref.ref(sess)
            atexit.register(_end_at_exit, weakref.ref(self))

    def end(self) -> None:
        """The replica leaves."""
        session = None if self._session is None else self._session()
        self._session = None
        if session is not None:
            _run_last(session, self._operations)


def _end_at_exit(departure: weakref.ref[Departure]) -> None:
    leaving = departure()
    if leaving is not None:
        leaving.end()


def _run_last(sess: Any, operations: Iterable[Any]) -> None:
    """What is done when leaving. The session may be closed already, or the queue, or the parameter server gone."""
    options = config_pb2.RunOptions(timeout_in_ms=_PATIENCE_MS)
    try:
        for operation in operations:
            sess.run(operation, options=options)
    except (OpError, RuntimeError) as error:
        logging.vlog(1, "Ignored exception: %s", error)


def _step_after(updated: Operation, global_step: Any) -> Any:
    """The global step that `updated` has made. The usual snapshot of a reference may be older."""
    if updated.type == "AssignAdd" and updated.inputs[0].op is global_step.op:
        return updated.outputs[0]
    return global_step if isinstance(global_step, ResourceVariable) else global_step.read_value()


class _ChiefQueueRunner(QueueRunner):
    """Applies updates and puts out tokens, until the queue is closed.

    A coordinator does not wait for the thread: it waits for gradients, which only the end of the session ends.
    """

    _waited_for = False

    def __init__(self, queue: FIFOQueue, enqueue_ops: list[Any]) -> None:
        # A closed queue refuses tokens with CancelledError.
        super().__init__(queue, enqueue_ops, queue_closed_exception_types=(OutOfRangeError, CancelledError))
        self.farewell: list[Any] = []

    def create_threads(
        self, sess: Any, coord: Coordinator | None = None, daemon: bool = False, start: bool = False
    ) -> list[Any]:
        # Always a daemon: a program must be able to end while the thread waits for gradients.
        threads = super().create_threads(sess, coord, daemon=True, start=start)
        if threads:
            # Many programs just end, without a word to their supervisor.
            atexit.register(_close_at_exit, weakref.ref(self), weakref.ref(sess))
        return threads

    def _close_on_stop(self, sess: Any, coord: Coordinator) -> None:
        coord.wait_for_stop()
        if coord.lost:
            # The chief comes back, and the queue stays open for it. Its step may wait for a token that nobody puts out
            # any more, on a server that is well: only the end of the session wakes it.
            sess.close()
        else:
            self.leave(sess)

    def leave(self, sess: Any) -> None:
        """Closes the queue, with a few last tokens in it.

        To programs without a MonitoredSession, OutOfRangeError is a failure. Most look at the global step after each of
        theirs, and end by themselves if they are let out of the one in which they wait.
        """
        _run_last(sess, [*self.farewell, self._cancel_op])

    def close(self, sess: Any) -> None:
        """Closes the queue: there are no more steps."""
        self._try(sess, self._cancel_op)


def _close_at_exit(runner: weakref.ref[_ChiefQueueRunner], sess: weakref.ref[Any]) -> None:
    chief, session = runner(), sess()
    if chief is not None and session is not None:
        chief.leave(session)


class _SyncReplicasOptimizerHook(SessionRunHook):
    """Begins and ends the part of one replica."""

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
            self._give_back_op = rule._give_back()

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
        _run_last(session, [self._give_back_op])
