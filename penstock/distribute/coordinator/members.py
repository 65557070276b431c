"""Members: the workers that a coordinator has now, with a thread for each. They join and leave while functions run."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from penstock import logging
from penstock.distribute.coordinator.closures import Closure
from penstock.distribute.coordinator.dispatch import Dispatcher, new_session
from penstock.distribute.coordinator.workers import RemoteWorker
from penstock.eager.cluster import before_leaving, connected_task, member_count, when_members_change
from penstock.eager.runtime import runtime
from penstock.errors import AbortedError, CancelledError, InvalidArgumentError, OpError, UnavailableError


class Members(Dispatcher):
    """Connects to the workers of a job, and again after one was lost. A ClusterCoordinator is one."""

    _task = staticmethod(partial(connected_task, "worker"))  # connects to a worker

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy)
        for number in range(self._queue.workers):
            self._begin_with(number)
        when_members_change(self._begin_to_follow)
        self._follow()
        before_leaving(self.close)

    # Joining and leaving

    def _begin_to_follow(self) -> None:
        """Follows in a thread of its own, since the one that hears of members may hold the lock of a connection."""
        self._waits.begin("members", self._follow)

    def _follow(self) -> None:
        """Has the workers that the job has now: those that leave finish what they run, and get nothing more."""
        with self._changed:
            if self._waits.is_stopped:
                return
            before, count = self._queue.workers, member_count("worker")
            if count == before:
                return
            logging.info("The job has %d workers now, before it had %d.", count, before)
            for worker in self._workers[count:before]:
                worker.leave()
            for left in self._workers[before:count]:
                self._take_back(left)  # it may still run something, and another one joins in its place
            self._queue.resize(count)
            for number in range(before, count):
                self._begin_with(number)
            for condition in self._needed:
                condition.notify_all()
            self._changed.notify_all()
        self._apply_if_due()
        self._send_to_all()

    def _begin_with(self, number: int) -> None:
        """Has a thread connect to a worker and serve it, one that joins in the place of one that has left included."""
        worker = RemoteWorker(number, new_session(), partial(self._task, number))
        name = f"penstock-coordinator-{number}"
        thread = threading.Thread(target=self._waits.watched, args=(self._serve, worker), name=name, daemon=True)
        with self._changed:
            if number == len(self._workers):
                self._needed.append(threading.Condition(self._lock))
            self._workers[number : number + 1], self._threads[number : number + 1] = [worker], [thread]
        thread.start()

    # A thread for each worker

    def _serve(self, worker: RemoteWorker) -> None:
        """Connects to a worker, makes its resources, and registers functions there, again after it was lost."""
        number = worker.number
        while not self._is_done_with(worker):
            try:
                if not self._queue.present[number]:
                    self._connect(worker)
                with self._changed:
                    # Not a wait of the program: it ends with the coordinator.
                    self._needed[number].wait_for(lambda: self._is_done_with(worker) or self._has_work(worker))
                    if worker.is_leaving:
                        continue
                    closure = self._queue.peek(number)
                if closure is not None:
                    if not worker.is_connected:  # nobody else tells of a worker that was lost while it had nothing
                        raise UnavailableError("The connection was lost while it had no function to run.")
                    self._register(worker, closure)
                    del closure  # which would live as long as this waits
                    self._send_to(worker)
            except OpError as error:
                self._failed(worker, error)
        if not self._waits.is_stopped:
            self._lost(worker, CancelledError("It has left the job."))
            worker.close()

    def _is_done_with(self, worker: RemoteWorker) -> bool:
        """Tells if the thread of a worker ends: the worker has left, and has run what it had."""
        number = worker.number
        has_nothing = self._workers[number] is not worker or not self._queue.running[number]
        return self._waits.is_stopped or (worker.is_leaving and has_nothing)

    def _register(self, worker: RemoteWorker, closure: Closure) -> None:
        try:
            worker.register(closure.function)
        except OpError:
            raise
        except Exception as error:  # values in a graph may be of any kind, and not all can travel
            logging.error("penstock: a function cannot be sent", exc_info=error)
            name = closure.function.name
            raise InvalidArgumentError(
                f"The function '{name}' cannot be sent to worker {worker.number}: {type(error).__name__}: {error}"
            ) from error

    def _has_work(self, worker: RemoteWorker) -> bool:
        if not self._queue.present[worker.number]:
            return True
        closure = self._queue.peek(worker.number)
        return closure is not None and not (worker.is_connected and worker.knows(closure.function))

    def _connect(self, worker: RemoteWorker) -> None:
        """Connects to a worker, and has it make the resources that all workers have."""
        worker.connect()
        made = 0
        while True:
            with self._changed:
                missing = self._resources[made:]
                if worker.is_leaving:
                    return
                if not missing:
                    self._queue.back(worker.number)
                    self._changed.notify_all()
                    break
            for make in missing:
                changes = self._boundary.changes
                try:
                    worker.run(make(worker.number))
                except OpError as error:
                    if not worker.is_connected:
                        raise
                    if self._boundary.passed_since(changes):
                        break  # it may have used a variable that has moved: it is run again
                    with self._changed:
                        self._fail(error)
                        self._changed.notify_all()
                made += 1
        self._send_to(worker)

    def _failed(self, worker: RemoteWorker, error: OpError) -> None:
        if not worker.is_connected or not worker.answers():
            self._lost(worker, error)
            return
        with self._changed:
            if worker.is_leaving:
                return  # others get the function
            if self._kept is not None and isinstance(error, (AbortedError, UnavailableError)):
                self._begin_recovery(error)
                return
            closure = self._queue.take(worker.number)
            if closure is not None:  # its function cannot be registered
                self._queue.ended(worker.number, closure, has_failed=True)
                closure.result._fail(error)
            self._fail(error)
            self._changed.notify_all()
        self._cancel_all()

    def close(self) -> None:
        """Ends the threads, and has the workers forget the functions."""
        runtime.recovered = None
        self._waits.stop(CancelledError("The coordinator is closed: its process has left the cluster."))
        for worker in self._workers:
            worker.close()
        for thread in self._threads:
            thread.join(5.0)
