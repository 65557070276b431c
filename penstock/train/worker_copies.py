"""Workers that train copies of their own: what the averaging optimizers have in common.

A custom getter makes each trainable variable a local variable of the worker, and beside it a global one, the *center*,
which the device function of the program places on a parameter server. A worker trains its copies by a rule of its own,
without the network, and every so many steps brings them together with the centers, each optimizer in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, ClassVar

from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation
from penstock.graph.scopes import control_dependencies, device, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group, no_op
from penstock.ops.math.arithmetic import floormod
from penstock.ops.math.compare import equal
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import require_whole
from penstock.optim.wrapper import WrapperOptimizer
from penstock.train.moving_average_optimizer import swapped_saver
from penstock.train.saver import Saver
from penstock.train.session_run_hook import SessionRunHook
from penstock.variables.creation import variable_creator_scope
from penstock.variables.initialize import global_variables, trainable_variables
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.variable import Variable

CENTER = "global_center_variable"
DEADLINE_SECS = 600.0  # how long workers wait for each other, by default
_SERVING_JOBS = ("ps", "evaluator")  # jobs whose tasks train nothing


class CopyingGetter:
    """Base class of the custom getters. `_aside` names a further local variable for each copy, if one is needed."""

    _aside: ClassVar[str | None] = None

    def __init__(self, worker_device: str) -> None:
        if not isinstance(worker_device, str) or not worker_device:
            raise ValueError(
                f"worker_device must name the device of the worker, such as '/job:worker/task:0', "
                f"received {worker_device!r}."
            )
        self._worker_device = worker_device
        self._centers: dict[Any, Any] = {}
        self._asides: dict[Any, Any] = {}

    def __call__(
        self,
        getter: Callable[..., Any],
        name: str,
        trainable: bool | None = None,
        collections: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if trainable is False:
            is_local = GraphKeys.LOCAL_VARIABLES in (collections or ())
            with device(self._worker_device) if is_local else nullcontext():
                return getter(name, *args, trainable=False, collections=collections, **kwargs)
        local = [GraphKeys.LOCAL_VARIABLES]
        with device(self._worker_device):
            copy = getter(name, *args, trainable=True, collections=local, **kwargs)
        more = {**kwargs, "trainable": False, "regularizer": None}  # the penalty is for the copy that is trained
        center = getter(f"{CENTER}/{name}", *args, collections=[GraphKeys.GLOBAL_VARIABLES], **more)
        self._centers.update(zip(_parts(copy), _parts(center), strict=True))
        if self._aside is not None:
            with device(self._worker_device):
                aside = getter(f"{self._aside}/{name}", *args, collections=local, **more)
            self._asides.update(zip(_parts(copy), _parts(aside), strict=True))
        return copy


class WorkerCopiesOptimizer(WrapperOptimizer):
    """Base class of optimizers that train a worker's copies by `opt` and meet the centers every `period` steps.

    A subclass has `_meeting`, which gives the operation of such a meeting, and says in `_argument` how its constructor
    calls the getter and the period.
    """

    _getter_class: type[CopyingGetter]
    _argument: ClassVar[dict[str, str]]

    def __init__(self, opt: Optimizer, num_worker: int, getter: Any, period: int, use_locking: bool, name: str) -> None:
        super().__init__(opt, use_locking, name)
        require_whole(1, **{"num_worker": num_worker, self._argument["period"]: period})
        if not isinstance(getter, self._getter_class):
            raise TypeError(
                f"{self._argument['getter']} must be a {self._getter_class.__name__}, received {getter!r}. Make one, "
                "and the model's variables by tf.get_variable inside tf.variable_scope('', custom_getter=...)."
            )
        self._num_worker, self._period = num_worker, period
        self._getter: CopyingGetter = getter
        with device(getter._worker_device), name_scope(None):
            self._local_step = Variable(0, trainable=False, collections=[GraphKeys.LOCAL_VARIABLES], name="local_step")

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """The operation of a step of the worker: it changes the copies and, if it is time, meets the centers."""
        pairs = list(grads_and_vars)
        trained = [var for grad, var in pairs if grad is not None]
        if not trained:
            raise ValueError("grads_and_vars must have a gradient for at least one variable.")
        self._require_copies(trained)
        # The rule's slots belong to the copies: no other worker has them, and the chief cannot initialise them.
        with variable_creator_scope(_as_local):
            applied = self._opt.apply_gradients(pairs)
        meet = self._meeting(trained, global_step)
        with control_dependencies([applied, *self._keep(pairs)]):
            counted = op_of(self._local_step.assign_add(1))
        with control_dependencies([counted]):
            due = equal(floormod(self._local_step.read_value(), self._period), 0)
            return op_of(cond(due, meet, no_op, name=name))

    def _keep(self, pairs: list[tuple[Any, Any]]) -> list[Operation]:
        """Operations that keep something of a step for the next meeting."""
        return []

    def _meeting(self, trained: list[Any], global_step: Any) -> Callable[[], Operation]:
        """A function that adds the operation of a meeting to the graph of a branch."""
        raise NotImplementedError

    def _require_copies(self, variables: Iterable[Any]) -> None:
        strange = [str(var.name) for var in variables if var not in self._getter._centers]
        if strange:
            raise ValueError(
                f"{self._argument['getter']} has no copies of {strange}: make them by tf.get_variable inside "
                f"tf.variable_scope('', custom_getter=...), not before and not by tf.Variable."
            )

    def _copies(self) -> list[Any]:
        """The trainable variables of the graph, all of which must be copies."""
        variables = trainable_variables()
        if not variables:
            raise ValueError(f"{self._argument['getter']} has made no variables: there is nothing to train.")
        self._require_copies(variables)
        return variables

    def _pull(self, variables: Iterable[Any]) -> Operation:
        """Sets copies to their centers."""
        moves = []
        for var in variables:
            value = self._center_now(var)
            with device(var.device):
                moves.append(op_of(var.assign(value, use_locking=self._use_locking)))
        return group(*moves)

    def _center_now(self, var: Any) -> Any:
        """The center of a copy, read where it is, so that what waits for an update is the read itself."""
        center = self._getter._centers[var]
        with device(center.device):
            return center.read_value()

    def _check_cluster(self, session: Any) -> None:
        require_workers(session, num_worker=self._num_worker)

    def swapping_saver(self, var_list: Any = None, name: str = "swapping_saver", **kwargs: Any) -> Saver:
        """A Saver in whose files the centers have the names of the model's variables.

        Evaluation restores them as usual. Without `var_list` it saves the model, and of the global variables all but
        the centers: the global step and the like. Other arguments are those of `tf.train.Saver`.

        >>> scaffold = tf.train.Scaffold(saver=rule.swapping_saver())
        """
        centers = self._getter._centers
        if not centers:
            raise RuntimeError(f"swapping_saver() must be called after {self._argument['getter']} has made variables.")
        if var_list is None:
            saved = {id(center) for center in centers.values()}
            var_list = [*trainable_variables(), *(v for v in global_variables() if id(v) not in saved)]
        return swapped_saver(var_list, centers, name, kwargs)


class PullingHook(SessionRunHook):
    """Runs an optimizer's init op when the session is made: the worker's copies start as the centers are."""

    def __init__(self, make_init_op: Callable[[], Operation], check: Callable[[Any], None] | None = None) -> None:
        self._make_init_op = make_init_op
        self._check = check

    def begin(self) -> None:
        self._init_op = self._make_init_op()

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self._check is not None:
            self._check(session)
        session.run(self._init_op)


def deadline_of(deadline_secs: float | None) -> float:
    """The seconds that a worker may wait, infinity for None."""
    if deadline_secs is not None and not deadline_secs > 0:
        raise ValueError(f"deadline_secs must be positive, or None for no limit, received {deadline_secs!r}.")
    return math.inf if deadline_secs is None else float(deadline_secs)


def require_workers(session: Any, **counts: int) -> None:
    """Raises for a number of workers that the cluster does not have: the workers would wait for ever."""
    jobs = {job: tasks for job, tasks in session._whole_cluster().items() if job not in _SERVING_JOBS}
    found = sum(map(len, jobs.values()))
    for argument, count in counts.items():
        if jobs and found != count:
            raise ValueError(
                f"{argument} is {count}, but the cluster has {found} tasks that train: "
                f"{ {job: len(tasks) for job, tasks in jobs.items()} }."
            )


def _parts(variable: Any) -> list[Any]:
    return list(variable) if isinstance(variable, PartitionedVariable) else [variable]


def _as_local(make: Callable[..., Any], **kwargs: Any) -> Any:
    collections = kwargs.get("collections") or [GraphKeys.GLOBAL_VARIABLES]
    moved = [GraphKeys.LOCAL_VARIABLES if c == GraphKeys.GLOBAL_VARIABLES else c for c in collections]
    return make(**{**kwargs, "collections": moved})
