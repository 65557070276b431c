"""Executor: walks a compiled partition, a flat list of instructions over a list of values."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import jax

from penstock.kernel.waiting import NeedsThread
from penstock.passes.ir import GATHERS, Edge, Node
from penstock.segments.blocks import JoinedVariable
from penstock.segments.compilation import Compilations, noted
from penstock.segments.kinds import is_variable
from penstock.segments.plan import Plan, SegmentPlan
from penstock.segments.randomness import RandomState
from penstock.segments.stored_variable import Locks, StoredVariable
from penstock.segments.tiers import Imagined
from penstock.worker import gathers, row_updates
from penstock.worker.calls import ON_HOST, HostCall, NodeCall, PlainCall
from penstock.worker.cancellation import Cancellation
from penstock.worker.devices import Device
from penstock.worker.interpreted import InterpretedCall, Updates, updates_of
from penstock.worker.needs import Need, Other
from penstock.worker.segment_call import SegmentCall
from penstock.worker.step import Step
from penstock.worker.transfer import RecvCall, SendCall, flush_before, note_unused, opening, together

_UNSET: Any = None
_OF_SEVERAL: dict[str, Any] = {"_Send": SendCall, "_Recv": RecvCall, **dict.fromkeys(GATHERS, gathers.GatherCall)}


class Context:
    """The parts of a worker that compiling a partition needs."""

    def __init__(
        self,
        devices: dict[str, Device],
        random_state: RandomState,
        compilations: Compilations,
        session: str = "",
        segments: MutableMapping[Any, Any] | None = None,
        joined: MutableMapping[Any, Any] | None = None,
    ) -> None:
        self.devices = devices
        self.random_state = random_state
        self.compilations = compilations
        self.session = session
        self.segments = segments  # of all graphs of a server, by form
        self.joined = {} if joined is None else joined  # variables that stand for several, of all graphs
        self.bodies: dict[Any, Any] = {}  # of functions that datasets call
        self._host = next((d for d in devices.values() if d.device_type == "CPU"), next(iter(devices.values())))

    def device(self, node: Node) -> Device:
        """The device that a node was placed on."""
        return self.devices[node.device]

    def resource(self, node: Node, create: Callable[[str], Any], of_session: str | None = None) -> Any:
        """The resource that a node stands for: found on its device, or made by `create(name)`.

        Queues, tables and the like are the host's, wherever their nodes were placed in this step or in another.
        With `of_session`, it is the one of that name that all nodes of the session share, made by `create(name of the
        device)` and closed with the session.
        """
        if of_session is not None:
            name = self._host.name
            return self._host.resources.lookup_or_create(container_of(self.session), of_session, lambda: create(name))
        name = node.attrs.get("shared_name") or node.name
        keeper = self._host if node.op.host else self.device(node)
        return keeper.resources.lookup_or_create(node.attrs.get("container", ""), name, lambda: create(name))

    def variable(self, node: Node) -> StoredVariable:
        """The variable that a VariableV2 or VarHandleOp node stands for, or one of those that are its `parts`."""
        attrs = node.attrs
        if "parts" in attrs:
            return self._joined(tuple(map(self.variable, attrs["parts"])), self.device(node).jax_device)
        on_cpu = self.device(node).jax_device.platform == "cpu"
        variable: StoredVariable = self.resource(
            node, lambda name: StoredVariable(name, attrs["dtype"], attrs["shape"], on_cpu)
        )
        return variable

    def _joined(self, parts: tuple[StoredVariable, ...], jax_device: Any) -> StoredVariable:
        """Variables as one: the same for all graphs of a server, since its values are in one place."""
        found: StoredVariable | None = self.joined.get(parts)
        return found or self.joined.setdefault(parts, JoinedVariable(parts, jax_device))


def container_of(session: str) -> str:
    """The container of the resources that belong to one session. No program can name a container like this."""
    return f"session {session}"


class Executable:
    """A partition compiled to instructions. `run` takes the fed values and returns the fetched ones."""

    def __init__(
        self,
        plan: Plan,
        context: Context,
        bound: dict[Node, StoredVariable] | None = None,
        for_client: bool = False,
        is_whole: bool = False,
    ) -> None:
        self.context = context
        self.plan = plan
        self.cuts = plan.cuts
        self._slots: dict[Edge, int] = {}
        self.imagined: Imagined = {}
        self._variables = bound or {}  # by node; parameters of a body may stand for variables, too
        self._first_node: dict[StoredVariable, Node] = {}
        self.feed_slots = [self.slot(edge) for edge in plan.feeds]
        stages = together([s for s in plan.stages if not _does_nothing(s) and not self._renames(s)])
        if not self.cuts.interpreted:
            stages = gathers.joined(row_updates.joined(stages, self.source), self.source)
        every = [self._instruction(s) for s in stages]
        self._to_find = [i for i in every if _finds_handle(i)]
        self.instructions = [i for i in every if not _finds_handle(i)]
        self.fetches = [self.source(edge) for edge in plan.fetches]
        note_unused(self.instructions, self.fetches)
        constants = [(self.slot((node, 0)), node.attrs["value"]) for node in plan.constants]
        self.empty: list[Any] = [_UNSET] * len(self._slots)  # the values of a step before it begins
        for slot, value in constants:
            self.empty[slot] = value
        for i, instruction in enumerate(self.instructions):
            if isinstance(instruction, (SendCall, RecvCall)):
                instruction.flush = flush_before(self.instructions, i + 1, at_end=is_whole)
        self.flush = flush_before(self.instructions, 0, at_end=True)  # before the first one
        # What only reads, such as an evaluation, is not to see old values.
        self.opening = opening(self.instructions) if self._changes_something() else None
        if for_client:
            self._mark_fetched()
        segments = [i.segment for i in self.instructions if isinstance(i, SegmentCall)]
        # A step is over when its updates are: on the CPU what was fed may be in use until then, and the caller may
        # change it. All results of a segment are ready at once, so one of its variables tells.
        changed = [s.updated_variables or s.assigned_variables for s in segments if s.platform == "cpu"]
        self.written = [variables[0] for variables in changed if variables]

    def inner(self, plan: Plan, bound: dict[Node, StoredVariable]) -> Executable:
        """A body, or a piece of this one, compiled on its own for the same worker."""
        return Executable(plan, self.context, bound)

    def node_by_node(self, segment: SegmentPlan) -> Executable:
        """A segment of this one, run node by node in NumPy."""
        return Executable(self.plan.node_by_node(segment), self.context, self._variables)

    def as_updates(self, locks: Locks) -> Updates | None:
        """The same for a segment that only updates variables; None if it does more."""
        return updates_of(self, locks)

    def _mark_fetched(self) -> None:
        """Tells each segment which of its outputs no other instruction needs."""
        needed = {s for i in self.instructions for s in i.in_slots}
        fetched = {f for f in self.fetches if isinstance(f, int)} - needed
        for instruction in self.instructions:
            if isinstance(instruction, SegmentCall):
                segment = instruction.segment
                segment.fetched = [i for i, slot in enumerate(segment.out_slots) if slot in fetched]

    def slot(self, edge: Edge) -> int:
        """The slot of an edge's value."""
        return self._slots.setdefault(edge, len(self._slots))

    def _renames(self, stage: SegmentPlan | Node) -> bool:
        """Gives the value of an Identity on the host the slot that it comes from; True: there is no more to do."""
        if isinstance(stage, SegmentPlan) or stage.op.name != "Identity":
            return False
        source = self.source(stage.inputs[0])
        if isinstance(source, int):
            self._slots[stage, 0] = source
        return isinstance(source, int)

    def variable_node(self, edge: Edge) -> Node | None:
        """The node of the variable that an edge refers to; one node for all that share a variable by name."""
        node = self.plan.variable_of(edge)
        if node is None or not self._is_bound(node):
            return node
        return self._first_node.setdefault(self.variable(node), node)

    def _is_bound(self, node: Node) -> bool:
        """Tells if a node stands for a variable. A parameter of a body may also stand for a queue or the like."""
        return node in self._variables or is_variable(node)

    def variable(self, node: Node) -> StoredVariable:
        """The variable that a variable node, or a parameter of a body, stands for."""
        found = self._variables.get(node)
        if found is None:
            found = self._variables[node] = self.context.variable(node)
        return found

    def source(self, edge: Edge) -> int | StoredVariable:
        """The source of an edge's value: a slot, or a variable."""
        node = self.plan.variable_of(edge)
        return self.slot(edge) if node is None or not self._is_bound(node) else self.variable(node)

    def _instruction(self, stage: SegmentPlan | Node | list[Node]) -> Any:
        if isinstance(stage, SegmentPlan):
            return SegmentCall(self, stage)
        if isinstance(stage, list):
            return _OF_SEVERAL.get(stage[0].op.name, row_updates.RowUpdateCall)(self, stage)
        if stage.op.name in ON_HOST:
            return ON_HOST[stage.op.name](self, stage)
        if stage.op.host:
            return HostCall(self, stage)
        if self.cuts.interpreted:
            return InterpretedCall(self, stage)
        return PlainCall(self, stage)

    def run(self, fed: Sequence[Any], step: Step) -> list[Any]:
        """Runs one step to its end. Returns arrays, and copies of fetched variables."""
        values = self.begin(fed)
        if self.proceed(values, step)[1] is not None:
            raise NeedsThread  # inside an instruction of a step that may not block
        for variable in self.written:
            variable.settle()
        return self.results(values)

    def begin(self, fed: Sequence[Any]) -> list[Any]:
        """The values of a step before its first instruction."""
        if self._to_find:
            # The handle of a queue, a table... is the same in each step: what it stands for outlives them.
            for call in self._to_find:
                call.store(self.empty, call.call([self.empty[slot] for slot in call.in_slots], Step(Cancellation())))
            self._to_find = []
        values = self.empty.copy()
        for slot, value in zip(self.feed_slots, fed, strict=True):
            values[slot] = value
        return values

    def proceed(self, values: list[Any], step: Step, at: int = 0) -> tuple[int, Need | None]:
        """Runs instructions from `at` on, to the end, or to one that needs something in a step that may not block.

        Returns the position where it stopped, and what is needed there: None at the end.
        """
        instructions = self.instructions
        while at < len(instructions):
            instruction = instructions[at]
            if step.deadline is not None or step.cancelled.is_set:
                step.check(instruction.name)
            need: Need | None
            if step.wake is not None and instruction.blocks:
                need = Other.THREAD
            elif step.commit is not None and instruction.writes:
                need = step.commit.run(instruction, values, step)
            elif step.timings is None:
                need = instruction(values, step)
            else:
                need = timed(instruction, values, step)
            if need is not None:
                return at, need
            at += 1
        return at, None

    @functools.cached_property
    def overwrites_huge(self) -> bool:
        """Tells if a step assigns new values to huge variables."""
        segments = [i.segment for i in self.instructions if isinstance(i, SegmentCall)]
        plain = [i for i in self.instructions if isinstance(i, PlainCall) and i.node.op.overwrites]
        assigned = [*(v for s in segments for v in s.assigned_variables), *(v for i in plain for v in i.changed)]
        return any(variable.is_huge for variable in assigned)

    def writes(self) -> bool:
        """Tells if a step changes variables."""
        segments = [i.segment for i in self.instructions if isinstance(i, SegmentCall)]
        plain = [i for i in self.instructions if isinstance(i, PlainCall)]
        return any(s.updated or s.assigned for s in segments) or any(i.written for i in plain)

    def _changes_something(self) -> bool:
        """Tells if a step changes variables, queues, accumulators and the like."""
        return self.writes() or any(isinstance(i, HostCall) and i.node.op.stateful for i in self.instructions)

    @property
    def ends_by_sending(self) -> bool:
        """Tells if it waits for nothing of its own after the last send: then it is over when the tasks sent to are."""
        sends = [at for at, i in enumerate(self.instructions) if isinstance(i, SendCall)]
        ops = [i.node.op for i in self.instructions[sends[-1] :] if isinstance(i, NodeCall)] if sends else []
        return bool(sends) and not any((op.host and op.stateful) or op.control_flow for op in ops)

    def results(self, values: list[Any]) -> list[Any]:
        """The fetched values, after the last instruction."""
        return [values[f] if isinstance(f, int) else f.copy() for f in self.fetches]


def _finds_handle(instruction: Any) -> bool:
    return isinstance(instruction, HostCall) and instruction.is_handle


def _does_nothing(stage: Any) -> bool:
    """Tells if a stage only orders others, which the plan has done already."""
    if isinstance(stage, Node):
        return stage.op.name == "NoOp"
    if not isinstance(stage, SegmentPlan) or stage.outputs:
        return False
    return all(n.op.name in ("NoOp", "Const") for n in stage.nodes)


def timed(instruction: Any, values: list[Any], step: Step) -> Need | None:
    """Runs an instruction and, if it has come to its end, notes when it ran, for a timeline."""
    assert step.timings is not None
    start = time.time()
    with noted() as compiled:
        need: Need | None = instruction(values, step)
    if need is not None:
        return need
    jax.block_until_ready([values[s] for s in instruction.out_slots if hasattr(values[s], "block_until_ready")])
    for c in compiled:
        label = f"{c.segment} = Compile({c.shapes})"
        step.timings.append((instruction.device, c.segment, label, c.began, c.began + c.seconds))
    step.timings.append((instruction.device, instruction.name, instruction.label, start, time.time()))
    return None
