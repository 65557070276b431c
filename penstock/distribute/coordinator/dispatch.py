"""Dispatcher: sends closures to workers and takes their answers, whatever is lost meanwhile."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from penstock import logging
from penstock.distribute.coordinator.boundary import Boundary
from penstock.distribute.coordinator.closures import Closure, RemoteValue, cancelled_by
from penstock.distribute.coordinator.queue import ClosureQueue
from penstock.distribute.coordinator.rounds import Rounds
from penstock.distribute.coordinator.visits import Visits
from penstock.distribute.coordinator.waiting import Waits
from penstock.distribute.coordinator.workers import RemoteWorker
from penstock.distribute.synchronous import GradientExchange
from penstock.eager.cluster import process_number, reconnect, was_restarted
from penstock.eager.runtime import runtime
from penstock.errors import (
    AbortedError,
    FailedPreconditionError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    UnavailableError,
)
from penstock.wire.messages import Done

# A worker that did not know the process before gets these errors from a parameter server that was restarted.
_OF_A_NEW_PROCESS = (FailedPreconditionError, NotFoundError)


class Dispatcher:
    """The closures that the workers of a strategy's cluster run."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._writer = process_number()  # names the closures of this process on parameter servers
        self._kept = strategy.kept_state
        self._log: list[Closure] = []  # closures that have run since the last checkpoint
        self._repeated: list[Closure] = []  # by the last recovery
        self._recovering = self._is_saving = self._is_applying = False  # nothing is sent meanwhile
        self._own: set[threading.Thread] = set()  # which do that, and wait for no recovery
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for the program, which waits for results
        count = strategy.cluster_resolver.cluster_spec().num_tasks("worker")
        rounds = Rounds(count, strategy.backup_workers) if strategy.synchronous else None
        self._queue = ClosureQueue(count, rounds)
        self._needed: list[threading.Condition] = []  # for the thread of each worker
        self._waits = Waits(self._changed, self._queue, self._needed)
        self._exchanges: list[GradientExchange] = []  # of the current round
        self._waiters = 0  # threads that wait for results, and schedule nothing meanwhile
        self._visits = Visits()
        self._workers: list[RemoteWorker] = []  # by number; those that have left, too
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None
        self._to_cancel: list[tuple[RemoteWorker, Closure, OpError]] = []
        self._resources: list[Callable[[int], Closure]] = []  # make what each worker holds, such as iterators
        if self._kept is not None:
            runtime.recovered = self._recovered
        self._boundary = Boundary(self._changed, self._queue, self._waits, self._go_on)

    def _is_over(self) -> bool:
        return self._queue.is_empty and not self._recovering and not self._is_applying and not self._exchanges

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """A context in which this thread waits: a round of synchronous training may then be smaller."""
        with self._changed:
            self._waiters += 1
        self._apply_if_due()
        try:
            yield
        finally:
            with self._changed:
                self._waiters -= 1

    def _wait_for_result(self, ready: Callable[[], bool]) -> None:
        with self._waiting(), self._changed:
            self._waits.until(ready, "RemoteValue.get")

    def _raise_error(self) -> None:
        self._waits.raise_if_stopped()
        if self._error is not None and self._queue.is_idle:
            error, self._error = self._error, None
            raise error

    # Sending

    def _send_to_all(self) -> None:
        """Sends what waits to all workers that have room, in the order of their numbers."""
        number = -1
        while True:
            with self._changed:
                found = self._queue.next_with_room(number)
                if found is None:
                    return
                number = found
                worker = self._workers[number]
            self._send_to(worker)

    def _send_to(self, worker: RemoteWorker) -> None:
        """Sends closures that a worker can take at once; leaves the others to the worker's thread."""
        while True:
            with self._changed:
                closure = self._queue.peek(worker.number)
                if closure is None:
                    if worker.is_leaving:
                        self._needed[worker.number].notify_all()  # its thread ends when it has run all that it had
                    return
                if not worker.is_connected or not worker.knows(closure.function):
                    self._needed[worker.number].notify()  # its thread connects, and registers the function, first
                    return
                self._queue.take(worker.number)
                if not self._has_elements(worker, closure):
                    continue
                settled = self._queue.settled
            self._start(worker, closure, settled)

    def _has_elements(self, worker: RemoteWorker, closure: Closure) -> bool:
        """Gives a closure the elements that it visits when it is first sent. If there are none left, it fails."""
        if closure.elements is None:
            closure.elements = self._visits.give(closure.function.iterators, worker.number)
        if closure.elements is None:
            self._queue.ended(worker.number, closure, has_failed=True)
            error = OutOfRangeError("End of sequence: all elements of the dataset were given to functions before.")
            closure.result._fail(error)
            self._fail(error)
            self._changed.notify_all()
        return closure.elements is not None

    def _start(self, worker: RemoteWorker, closure: Closure, settled: int) -> None:
        try:
            worker.start(closure, self._writer, settled, partial(self._waits.watched, self._answered, worker))
        except OpError as error:
            self._answered(worker, closure, error)

    def _answered(
        self, worker: RemoteWorker, closure: Closure, result: Done | OpError, are_servers_checked: bool = False
    ) -> None:
        """Takes the answer to a closure, in the thread that reads from the worker."""
        if isinstance(result, OpError) and not worker.is_connected:
            self._lost(worker, result)
            return
        if self._kept is not None and isinstance(result, _OF_A_NEW_PROCESS) and not are_servers_checked:
            self._check_servers(worker, closure, result)
            return
        with self._changed:
            if closure.number not in self._queue.running[worker.number]:
                return  # the worker was counted as lost meanwhile
            self._waits.answers += 1
            if self._kept is not None and isinstance(result, (AbortedError, UnavailableError)):
                self._queue.again(worker.number, closure)
                self._begin_recovery(result)
                self._changed.notify_all()
                return
            in_time = self._queue.rounds is not None and self._queue.rounds.has(closure.number)
            if isinstance(result, OutOfRangeError) and self._has_other_elements(worker, closure, result):
                self._queue.again(worker.number, closure)
            elif isinstance(result, OpError):
                self._queue.ended(worker.number, closure, has_failed=True)
                closure.result._fail(result)
                self._fail(result)
            else:
                self._queue.ended(worker.number, closure)
                closure.result._set(result.values)
                if self._kept is not None and closure.worker is None:
                    self._log.append(closure)
                if in_time:
                    self._exchanges += [e for e in closure.function.exchanges if e not in self._exchanges]
            self._changed.notify_all()
        self._cancel_all()
        self._apply_if_due()
        self._send_to(worker)
        if isinstance(result, OpError):
            self._send_to_all()  # what it had may be for others

    def _check_servers(self, worker: RemoteWorker, closure: Closure, error: OpError) -> None:
        """Asks, in another thread, if a parameter server was restarted, since a variable has no value there."""

        def check() -> None:
            found = AbortedError(f"It was restarted: {error.message}") if was_restarted("ps") else error
            self._answered(worker, closure, found, are_servers_checked=True)

        self._waits.begin("check", check)

    def _has_other_elements(self, worker: RemoteWorker, closure: Closure, error: OutOfRangeError) -> bool:
        """Gives a closure that came to the end of a dataset elements that are left, if there are any."""
        which = closure.function.visit_of(error)
        if which is None or closure.elements is None:
            return False
        return self._visits.ended(closure.function.iterators, closure.elements, which, worker.number)

    def _fail(self, error: Exception) -> None:
        """Keeps the first error for the next call, and cancels all that has not run."""
        if self._error is not None:
            return
        self._error = error
        why = cancelled_by(error)
        for closure in self._queue.drop():
            closure.result._fail(why)
        for worker, running in zip(self._workers, self._queue.running, strict=True):
            # Elements that were given to a closure are visited by no other; what a worker makes is needed later.
            self._to_cancel += [(worker, c, why) for c in running.values() if c.worker is None and not c.elements]

    def _cancel_all(self) -> None:
        """Cancels what workers run for nothing; not while the lock is held, since this sends messages."""
        with self._changed:
            cancelled, self._to_cancel = self._to_cancel, []
        for worker, closure, why in cancelled:
            worker.cancel(closure, why)

    # Synchronous training

    def _apply_if_due(self) -> None:
        """Has the gradients of a round applied if the round is over."""
        rounds = self._queue.rounds
        if rounds is None:
            return
        with self._changed:
            if not rounds.may_be_over:
                return
            more_come = self._queue.waiting > 0 or not self._waiters
            count = rounds.gradients(self._queue.takers, more_come)
            if not count or self._is_applying or not self._exchanges:
                return
            self._is_applying = True
            self._note_pause()
            exchanges, self._exchanges = self._exchanges, []
        self._waits.begin("apply", self._apply, exchanges, count)

    def _apply(self, exchanges: list[GradientExchange], count: int) -> None:
        error: Exception | None = None
        with self._by_itself():
            try:
                for exchange in exchanges:
                    exchange.apply(count)
            except Exception as failed:  # whatever it is, the program must hear of it
                error = failed
            is_lost = isinstance(error, OpError) and self._is_of_lost_server(error)
        with self._changed:
            assert self._queue.rounds is not None
            self._queue.rounds.next()
            self._exchanges.clear()  # gradients that came during the update were too late
            if is_lost:
                self._begin_recovery(error)  # type: ignore[arg-type]
            elif error is not None:
                self._fail(error)
            self._is_saving = is_due = error is None and self._kept is not None and self._kept.is_due
        if is_due:
            self._save()
        with self._changed:
            self._is_applying = False
            self._note_pause()
            self._changed.notify_all()
        self._cancel_all()
        self._send_to_all()

    def _is_of_lost_server(self, error: OpError) -> bool:
        """Tells if an update has failed since a parameter server was lost whose variables can be restored."""
        if self._kept is None:
            return False
        is_new = isinstance(error, _OF_A_NEW_PROCESS) and was_restarted("ps")
        return is_new or isinstance(error, (AbortedError, UnavailableError))

    # Parameter servers that change

    def _go_on(self, are_changed: bool) -> None:
        """Sends functions again, after parameter servers have changed, or after all have stayed as they were."""
        if are_changed:
            for worker in self._workers:
                worker.renew()
        self._waits.begin("goes-on", self._send_to_all)

    # Parameter servers that are lost

    def _note_pause(self) -> None:
        self._queue.is_paused = self._recovering or self._is_saving or self._is_applying

    @contextmanager
    def _by_itself(self) -> Iterator[None]:
        """A context in which operations of this thread wait for no recovery, which may wait for them."""
        thread = threading.current_thread()
        self._own.add(thread)
        try:
            yield
        finally:
            self._own.discard(thread)

    def _save_if_due(self) -> None:
        """Writes a checkpoint if it is time for one, but not within a round: that would not have its gradients."""
        if self._kept is None or not self._kept.is_due:
            return
        with self._changed:
            rounds = self._queue.rounds
            if self._queue.is_paused or not (rounds is None or rounds.is_new):
                return
            self._is_saving = True
            self._note_pause()
        self._save()
        self._send_to_all()

    def _save(self) -> None:
        """Writes a checkpoint once no function runs. Functions that lost workers have left half done come before."""
        assert self._kept is not None
        error: OpError | None = None
        with self._changed:
            self._waits.until(lambda: self._recovering or not self._queue.runs, "A checkpoint")
            can_save = self._queue.is_idle and not self._recovering and not self._waits.is_stopped
        if can_save:
            try:
                with self._by_itself():
                    self._kept.save()
            except (AbortedError, UnavailableError) as lost:
                error = lost
        with self._changed:
            if error is not None:
                self._begin_recovery(error)
            elif can_save:
                self._log.clear()
            self._is_saving = False
            self._note_pause()
            self._changed.notify_all()

    def _recovered(self, error: OpError) -> bool:
        """Waits for a recovery, for an operation of the program on a variable that was lost.

        The variables are what they were only when the functions have run again that had run before.
        """
        if threading.current_thread() in self._own:
            return False
        with self._waiting(), self._changed:
            self._begin_recovery(error)
            self._waits.until(self._is_as_before, "An operation on a lost variable")
            return self._error is None and not self._waits.is_stopped

    def _is_as_before(self) -> bool:
        is_applied = not self._is_applying and not self._exchanges
        return not self._recovering and is_applied and all(closure.result.is_ready for closure in self._repeated)

    def _begin_recovery(self, error: OpError) -> None:
        if self._recovering or self._waits.is_stopped:
            return
        logging.warning("Lost a parameter server: %s Its variables will be restored.", error.message)
        self._recovering = True
        self._note_pause()
        threading.Thread(
            target=self._waits.watched, args=(self._recover,), name="penstock-coordinator-recovery", daemon=True
        ).start()

    def _recover(self) -> None:
        """Waits for the parameter servers, restores all variables, and repeats what has run since they were saved."""
        assert self._kept is not None
        with self._changed:
            self._waits.until(lambda: not (self._queue.runs or self._is_applying or self._is_saving), "The recovery")
            if self._waits.is_stopped:
                return
        try:
            with self._by_itself():
                self._restore()
        except Exception as error:  # whatever it is, the program must hear of it
            with self._changed:
                self._recovering = False
                self._note_pause()
                for closure in self._queue.drop(even_sent=True):  # the variables that they need are lost
                    closure.result._fail(cancelled_by(error))
                self._fail(error)
                self._changed.notify_all()
            return
        session = new_session()
        with self._changed:
            # The closures get new numbers, so that parameter servers do not take what they remember for this run.
            for worker in self._workers:
                worker.renew(session)
            self._repeated = [closure.again(RemoteValue()) for closure in self._log]
            self._log.clear()
            self._exchanges.clear()
            self._queue.repeat(self._repeated)
            self._recovering = False
            self._note_pause()
            self._changed.notify_all()
        self._send_to_all()

    def _restore(self) -> None:
        assert self._kept is not None
        while not self._waits.is_stopped:
            reconnect()
            try:
                self._kept.restore()
                for exchange in self._strategy.extended.exchanges.values():
                    exchange.restart()
                return
            except (AbortedError, UnavailableError) as error:
                logging.warning("Lost a parameter server again: %s", error.message)

    def _lost(self, worker: RemoteWorker, error: OpError) -> None:
        """Has other workers run what a worker had."""
        with self._changed:
            if self._workers[worker.number] is not worker:
                return  # another one has joined in its place
            if self._queue.present[worker.number] and not worker.is_leaving:
                logging.warning("Lost worker %d: %s Others run its functions.", worker.number, error.message)
            self._take_back(worker)
        self._apply_if_due()
        self._send_to_all()

    def _take_back(self, worker: RemoteWorker) -> None:
        """Takes from a worker what it has, for others."""
        self._queue.lost(worker.number)
        self._visits.lost(worker.number)
        self._needed[worker.number].notify_all()
        self._changed.notify_all()


def new_session() -> str:
    """Makes the name of a session."""
    return f"{secrets.randbits(63):016x}"
