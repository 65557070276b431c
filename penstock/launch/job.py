"""Decides the next actions for a job of many tasks: a pure state machine.

Events go in with their times, instructions come out. Nothing here starts, signals or waits; the caller does, and calls
`due` at `deadline` at the latest.

>>> worker = Task("worker", 0)
>>> job = Job([worker], Policy(max_restarts=1))
>>> job.start()
[Start(task=Task(job='worker', index=0), attempt=0)]
>>> job.under_way(worker)
>>> job.ended(worker, 3, now=10.0)
[Say(text='worker:0 exited with code 3: restart 1 of 1 in 1 s')]
>>> job.deadline
11.0
>>> job.due(now=11.0)
[Start(task=Task(job='worker', index=0), attempt=1)]
>>> job.ended(worker, 0, now=12.0)
[Say(text='worker:0 is done'), Say(text='worker:0 failed once: exited with code 3'), Finish(code=0)]
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from penstock.launch.cluster import CHIEF, EVALUATOR, PS, WORKER, LaunchError, Task

# A signal that arrives twice at once was meant once: a terminal and a wrapper may both send it.
_SECOND_SIGNAL_AFTER = 1.0
# Errors that report another task: a task that has one may well succeed after a restart.
_ERRORS_OF_OTHERS = re.compile(r"(\w+\.)*(Unavailable|Aborted|DeadlineExceeded)Error\b")


@dataclass(frozen=True)
class Start:
    """Start a task; `attempt` is the number of earlier starts."""

    task: Task
    attempt: int


@dataclass(frozen=True)
class Terminate:
    """Ask a task to end."""

    task: Task


@dataclass(frozen=True)
class Kill:
    """End a task."""

    task: Task


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """All processes have ended; `code` is the job's exit code."""

    code: int


Instruction = Start | Terminate | Kill | Say | Finish


@dataclass(frozen=True)
class Policy:
    """The patience of a job; times in seconds."""

    max_restarts: int = 3  # per task
    grace: float = 60.0  # for the others after the chief is done
    kill_after: float = 10.0  # between asking a task to end and killing it
    first_delay: float = 1.0  # before a restart; doubles with each
    longest_delay: float = 30.0

    def __post_init__(self) -> None:
        for option, value in (
            ("--max-restarts", self.max_restarts),
            ("--grace", self.grace),
            ("--kill-after", self.kill_after),
        ):
            if not value >= 0:
                raise LaunchError(f"{option} must not be negative, received {value}. Give 0 for none.")

    def delay(self, restart: int) -> float:
        """The time to wait before the n-th restart, counted from 1."""
        return min(self.first_delay * 2.0 ** min(restart - 1, 60), self.longest_delay)


class _Phase(Enum):
    RUNNING = auto()
    WAITING = auto()  # for a restart
    ENDED = auto()  # by itself and without error, unless the job is being stopped


class Job:
    """The tasks of a job, from start to finish."""

    def __init__(self, tasks: Sequence[Task], policy: Policy) -> None:
        self._policy = policy
        self._phases = dict.fromkeys(tasks, _Phase.WAITING)
        self._trainers = [task for task in tasks if task.job in (CHIEF, WORKER)]
        self._waited_for = [task for task in tasks if task.job in (CHIEF, WORKER, EVALUATOR)]
        chief = Task(CHIEF, 0)
        self._chief = chief if chief in self._phases else Task(WORKER, 0)
        self._under_way: set[Task] = set()
        self._serving: set[Task] = set()
        self._failures: dict[Task, Counter[str]] = {}
        self._restarts: Counter[Task] = Counter()
        self._starts: Counter[Task] = Counter()
        self._restart_at: dict[Task, float] = {}
        self._joining: set[Task] = set()  # these are no part of the job yet
        self._leaving: dict[Task, float] = {}  # these are none any more: when more is done to end them
        self._asked_to_leave: set[Task] = set()
        self._moving: set[Task] = set()  # these were asked to end, to be started with new addresses
        self._moved_by: float | None = None
        self._over_by: float | None = None
        self._code: int | None = None
        self._stopped_at = 0.0
        self._kill_at: float | None = None

    @property
    def stopping(self) -> bool:
        """Tells if the job is being stopped for any reason; no more tasks are started."""
        return self._code is not None

    @property
    def deadline(self) -> float | None:
        """The time at which `due` must be called, if nothing happens before."""
        times = [*self._restart_at.values(), *self._leaving.values(), self._moved_by, self._over_by, self._kill_at]
        return min((time for time in times if time is not None), default=None)

    def start(self) -> list[Instruction]:
        """Starts all tasks."""
        return [self._start(task) for task in self._phases]

    def under_way(self, task: Task, serves: bool = False) -> None:
        """Records that a task does its work: if it fails from now on, its program need not be wrong.

        One that only `serves` others, as the workers of a coordinator do, is not waited for when the chief is done.
        """
        self._under_way.add(task)
        if serves:
            self._serving.add(task)

    def join(self, tasks: Sequence[Task]) -> list[Instruction]:
        """Starts more tasks. If one ends before `joined`, that is no failure of the job."""
        self._joining.update(tasks)
        self._phases.update(dict.fromkeys(tasks, _Phase.WAITING))
        self._under_way.difference_update(tasks)
        return [self._start(task) for task in tasks]

    def is_under_way(self, task: Task) -> bool:
        """Tells if a task does its work."""
        return task in self._under_way

    def is_leaving(self, task: Task) -> bool:
        """Tells if a task is no part of the job any more, and has not ended yet."""
        return task in self._leaving

    def joined(self, tasks: Sequence[Task]) -> list[Instruction]:
        """Records that tasks are part of the job: it waits for them, and restarts them, even if they ended just now."""
        self._joining.difference_update(tasks)
        self._trainers += [task for task in tasks if task.job in (CHIEF, WORKER)]
        self._waited_for += [task for task in tasks if task.job in (CHIEF, WORKER, EVALUATOR)]
        return [self._start(task) for task in tasks if task not in self._phases]

    def leave(self, tasks: Sequence[Task], now: float) -> list[Instruction]:
        """Ends tasks, which are no part of the job from now on. Workers have a while to end by themselves."""
        instructions: list[Instruction] = []
        for each in (self._trainers, self._waited_for):
            each[:] = [task for task in each if task not in tasks]
        for task in tasks:
            self._joining.discard(task)
            self._restart_at.pop(task, None)
            if self._phases.get(task) is not _Phase.RUNNING:
                self._phases.pop(task, None)
            elif task.job == PS or task not in self._under_way:
                instructions += self._ask_to_leave(task, now)
            else:
                self._leaving[task] = now + self._policy.kill_after
        return [*instructions, *(self._progress(now) if not self.stopping else [])]

    def _ask_to_leave(self, task: Task, now: float) -> list[Instruction]:
        self._asked_to_leave.add(task)
        self._leaving[task] = now + self._policy.kill_after
        return [Terminate(task)]

    def _overdue(self, task: Task, now: float) -> list[Instruction]:
        """Ends a task that leaves and has not ended yet: by asking, and then without."""
        if task not in self._asked_to_leave:
            return self._ask_to_leave(task, now)
        self._leaving[task] = now + self._policy.kill_after
        return [Kill(task)]

    def _gone(self, task: Task) -> None:
        del self._phases[task]
        self._leaving.pop(task, None)
        self._asked_to_leave.discard(task)
        self._joining.discard(task)
        self._moving.discard(task)

    def moved(self, tasks: Collection[Task], now: float) -> list[Instruction]:
        """Records that tasks have new addresses: all others that run are stopped, and started anew to learn them."""
        if self.stopping:
            return []
        others = [task for task, phase in self._phases.items() if phase is _Phase.RUNNING and task not in tasks]
        asked = [task for task in others if task not in self._moving]
        self._moving.update(asked)
        if not asked:
            return []
        self._moved_by = now + self._policy.kill_after
        why = f"{_listed(tasks)} moved to another address: restarting {_listed(asked)}, which must learn it"
        return [Say(why), *map(Terminate, asked)]

    def ended(self, task: Task, code: int, now: float, error: str = "", why: str = "") -> list[Instruction]:
        """Records that a task ended, with an exit code or with minus the number of the signal that ended it.

        `error` is the last line of the traceback that it printed, if any. `why` says how it ended, if it did not end
        by itself.
        """
        self._phases[task] = _Phase.ENDED
        if self.stopping:
            # A task that ends because the others do has not failed.
            if code > 0 and error and not _ERRORS_OF_OTHERS.match(error):
                self._note_failure(task, code, error)
            return self._finish()
        if task in self._leaving:
            self._gone(task)
            return [Say(f"{task} has left")]
        if task in self._joining:
            self._gone(task)
            return [Say(f"{task} {why or how(code)}{f' ({error})' if error else ''} before it could join")]
        if task in self._moving:
            # Its code says nothing: it was asked to end.
            self._moving.discard(task)
            return [self._start(task)]
        if code != 0:
            return self._failed(task, code, now, error, why)
        if task.job == PS:
            return [Say(f"{task} ended by itself, without an error, before the workers: it is not restarted")]
        return [Say(f"{task} is done"), *self._progress(now)]

    def due(self, now: float) -> list[Instruction]:
        """Acts on all times that have passed."""
        if self._kill_at is not None and now >= self._kill_at:
            return [Say(f"still running after {self._policy.kill_after:g} s: {self._running()}"), *self._kill()]
        if self._moved_by is not None and now >= self._moved_by:
            self._moved_by = None
            return [Kill(task) for task in self._moving]
        if overdue := [task for task, time in self._leaving.items() if now >= time]:
            return [instruction for task in overdue for instruction in self._overdue(task, now)]
        if self._over_by is not None and not self._needed(self._waited_for):  # the last ones turned out to serve
            return self.stop(0, "", now)
        if self._over_by is not None and now >= self._over_by:
            late = _listed(self._needed(self._waited_for))
            first = f"the chief ({self._chief}) is" if self._needed(self._trainers) else "the workers are"
            why = (
                f"{first} done, and {late} did not end within {self._policy.grace:g} s: stopped; the job counts as done"
            )
            return self.stop(0, why, now)
        restarts = [task for task, time in self._restart_at.items() if now >= time]
        return [self._start(task) for task in restarts]

    def interrupted(self, number: int, now: float) -> list[Instruction]:
        """Records that the launcher got a signal; a second one means to stop at once."""
        name = signal.Signals(number).name
        if not self.stopping:
            return self.stop(128 + number, f"{name}: stopping all tasks", now)
        if self._kill_at is None or now < self._stopped_at + _SECOND_SIGNAL_AFTER:
            return []
        return [Say(f"{name} again: ending {self._running()} at once"), *self._kill()]

    def stop(self, code: int, why: str, now: float) -> list[Instruction]:
        """Ends all tasks; the job's exit code will be `code`. Has no effect if the job is already being stopped."""
        if self.stopping:
            return []
        self._code = code
        self._stopped_at = now
        self._over_by = None
        self._restart_at.clear()
        self._moving.clear()
        self._leaving.clear()
        self._moved_by = None
        asked: list[Instruction] = []
        for task, phase in self._phases.items():
            if phase is _Phase.RUNNING:
                asked.append(Terminate(task))
            else:
                self._phases[task] = _Phase.ENDED
        self._kill_at = now + self._policy.kill_after if asked else None
        said: list[Instruction] = [Say(why)] if why else []
        return [*said, *asked, *self._finish()]

    def _start(self, task: Task) -> Start:
        self._phases[task] = _Phase.RUNNING
        self._restart_at.pop(task, None)
        self._starts[task] += 1
        return Start(task, self._starts[task] - 1)

    def _failed(self, task: Task, code: int, now: float, error: str, why: str) -> list[Instruction]:
        what = self._note_failure(task, code, error, why)
        most = self._policy.max_restarts
        if self._restarts[task] >= most:
            tries = f" after {most} restart{'s' * (most != 1)}" if most else ""
            return self.stop(exit_code(code), f"{task} {what}{tries}: stopping the job", now)
        # A signal comes from outside, and so do errors that report another task.
        if code > 0 and task not in self._under_way and not _ERRORS_OF_OTHERS.match(error):
            told = f"{task} {what} before its first step: it is not restarted, and the job is stopped"
            return self.stop(exit_code(code), told, now)
        self._restarts[task] += 1
        delay = self._policy.delay(self._restarts[task])
        self._phases[task] = _Phase.WAITING
        self._restart_at[task] = now + delay
        return [Say(f"{task} {what}: restart {self._restarts[task]} of {most} in {delay:g} s")]

    def _note_failure(self, task: Task, code: int, error: str, why: str = "") -> str:
        what = why or how(code)
        if error and code > 0:  # an error does not cause a signal
            what = f"{what} ({error})"
        self._failures.setdefault(task, Counter())[what] += 1
        return what

    def _progress(self, now: float) -> list[Instruction]:
        """Checks if the job is done, after a task that it waits for has ended."""
        if not self._needed(self._waited_for):
            return self.stop(0, "", now)
        # An evaluator has yet to see the last checkpoint, so its grace period begins when training is over.
        if not self._needed(self._trainers) or (self._has_ended(self._chief) and self._over_by is None):
            self._over_by = now + self._policy.grace
        return []

    def _needed(self, tasks: Sequence[Task]) -> list[Task]:
        """Those of the tasks that the job waits for. Tasks that only serve have nobody to serve without the chief."""
        left = [task for task in tasks if not self._has_ended(task)]
        return [task for task in left if task not in self._serving] if self._has_ended(self._chief) else left

    def _has_ended(self, task: Task) -> bool:
        return self._phases[task] is _Phase.ENDED

    def _kill(self) -> list[Instruction]:
        self._kill_at = None
        return [Kill(task) for task, phase in self._phases.items() if phase is _Phase.RUNNING]

    def _running(self) -> str:
        return _listed(task for task, phase in self._phases.items() if phase is _Phase.RUNNING)

    def _finish(self) -> list[Instruction]:
        if self._code is None or not all(map(self._has_ended, self._phases)):
            return []
        self._kill_at = None
        told = [f"{task} failed {_times(whys.total())}: {_counted(whys)}" for task, whys in self._failures.items()]
        return [*map(Say, told), Finish(self._code)]


def exit_code(code: int) -> int:
    """The exit code a shell would show: 128 + n for signal n.

    >>> exit_code(-9), exit_code(3)
    (137, 3)
    """
    return code if code >= 0 else 128 - code


def how(code: int) -> str:
    """Describes how a process ended.

    >>> how(3), how(-9)
    ('exited with code 3', 'was ended by SIGKILL')
    """
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-code}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _counted(whys: Counter[str]) -> str:
    if len(whys) == 1:
        return next(iter(whys))
    return ", ".join(f"{why} ({_times(number)})" for why, number in whys.items())


def _listed(tasks: Iterable[Task]) -> str:
    return ", ".join(map(str, tasks))
