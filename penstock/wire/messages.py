"""The messages of the step channel: requests, answers, tensors, and what keeps the channel itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Hello:
    """The connecting side sends this first: it says who it is and proves that it may connect."""

    token: bytes
    task: str  # "" for a client that is no task
    incarnation: int


@dataclass(slots=True)
class Welcome:
    """The accepting side answers Hello with this."""

    task: str
    incarnation: int


@dataclass(slots=True)
class Goodbye:
    """The closing side sends this last, if it still can, to say why. The code is a status code."""

    code: int
    message: str


@dataclass(slots=True)
class RunGraph:
    """Asks a task to run a step of a registered graph, `times` times. A negative `timeout` (seconds) means none."""

    step: int
    handle: int
    timeout: float = -1.0
    trace: bool = False
    times: int = 1
    writer: int = 0  # a coordinator, of whose closures this is a part
    number: int = 0  # of the closure; 0: none
    settled: int = 0  # closures with lower numbers will not be run again
    ahead: bool = False  # the answer may bring what the next step of the graph begins with
    begun: int = 0  # the `ahead` of the answer that brought it for this one; 0: none did
    fed: int = 0  # so many of the values are fed; the others are tensors of the step, as in Tensors
    keys: Sequence[int] = ()
    values: Sequence[Any] = ()


@dataclass(slots=True)
class Tensors:
    """Carries tensors of a step from the task that made them to one that needs them."""

    step: int
    keys: Sequence[int] = ()
    values: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Done:
    """Answers RunGraph when the graph has run, with what was fetched and what was traced."""

    step: int
    ahead: int = 0  # if it brings what the next step begins with: a number for that, which the step's request names
    fetched: int = 0  # so many of the values are fetched; the others are tensors of the step, as in Tensors
    coming: int = 0  # so many of the values, the last, are tensors of the next step
    trace: bytes = b""
    keys: Sequence[int] = ()
    values: Sequence[Any] = ()


@dataclass(slots=True)
class Failed:
    """Answers RunGraph when the graph has failed, with the error."""

    step: int
    code: int
    op: str
    message: str


@dataclass(slots=True)
class Cancel:
    """Asks a task to cancel a step, because of what happened elsewhere."""

    step: int
    code: int
    message: str


@dataclass(slots=True)
class Free:
    """Names what the sender uses no more: resources, by container and name in turn, and graphs that it registered."""

    resources: Sequence[str] = ()
    graphs: Sequence[int] = ()


@dataclass(slots=True)
class GateClosed:
    """A parameter server sends this to sessions: they begin no more steps. In a later round, each held one may run."""

    round: int


@dataclass(slots=True)
class GateIdle:
    """Answers GateClosed when no step is running."""

    round: int


@dataclass(slots=True)
class GateOpen:
    """A parameter server sends this to sessions: steps may begin, by this membership record."""

    membership: str


@dataclass(slots=True)
class Ping:
    """Asks the peer for a sign of life."""


@dataclass(slots=True)
class Pong:
    """Answers Ping."""


@dataclass(slots=True)
class Region:
    """Announces a region of shared memory. Its descriptor comes along with the frame."""

    region: int
    size: int


@dataclass(slots=True)
class Released:
    """Names regions whose tensors are no longer used, so that the sender may write to them again."""

    regions: Sequence[int] = field(default_factory=list)


Message = (
    Hello
    | Welcome
    | Goodbye
    | RunGraph
    | Tensors
    | Done
    | Failed
    | Cancel
    | Free
    | GateClosed
    | GateIdle
    | GateOpen
    | Ping
    | Pong
    | Region
    | Released
)
