"""Executor: walks a compiled partition, a flat list of instructions over a list of values."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from penstock.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OpError,
    UnimplementedError,
)
from penstock.graph.checks import NotTraceable
from penstock.graph.function import Function
from penstock.graph.opdef import grouped, registered
from penstock.ops.functional import as_predicate
from penstock.ops.waiting import GivesWay
from penstock.passes.ir import Edge, Node, Subgraph
from penstock.passes.late_reads import read_late
from penstock.passes.prune import body_of
from penstock.passes.rows_on_host import rows_on_host
from penstock.passes.sparse_lookups import gather_before_segments
from penstock.passes.sparse_updates import fuse_sparse_updates
from penstock.wire.loop import Signal
from penstock.worker.cancellation import Cancellation
from penstock.worker.devices import Device
from penstock.worker.plan import NO_CUTS, Cuts, SegmentPlan, body, functions_of, is_variable, make_plan
from penstock.worker.randomness import RandomState
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.resources import Variable
from penstock.worker.segment import Segment
from penstock.worker.transfer import RecvCall, SendCall, together

_UNSET: Any = None
_NOWHERE = Rendezvous()  # of steps that are in one task
SMALL = 4096  # bytes
FEW_VALUES = 2  # of a slice's bounds: once a segment is compiled for more, the slice is taken out of it


class Step:
    """What instructions of one step share: cancellation, deadline, tensors from other tasks, and what is traced."""

    __slots__ = ("asked_by", "cancelled", "deadline", "drawn", "give_way", "parting", "rendezvous", "send", "timings",
                 "wait", "waited")  # fmt: skip

    def __init__(self, cancelled: Cancellation, deadline: float | None = None, trace: bool = False) -> None:
        self.cancelled = cancelled
        self.deadline = deadline  # by time.monotonic()
        self.drawn: dict[str, np.ndarray] = {}
        # What an op calls that would have to wait, if the step may be left there; it gives what goes on with the step.
        self.give_way: Callable[[], Callable[[], None]] | None = None
        self.rendezvous: Rendezvous = _NOWHERE  # where tensors of other tasks arrive
        # To a task, keys and values, unless the way there is the last argument; whether they were sent.
        self.send: Callable[[str, Sequence[int], Sequence[Any], Any], bool] = _to_nobody
        self.asked_by: Any = None  # the way back to who asked for it, if that is another process
        self.parting: tuple[Sequence[int], Sequence[Any]] = (), ()  # tensors that go there together with the answer
        self.wait: Callable[[Signal, float | None], bool] = Signal.wait
        self.timings: list[tuple[str, str, str, float, float]] | None = [] if trace else None
        self.waited = 0.0  # seconds, for tensors of other tasks and in queues

    def check(self, where: str) -> None:
        """Raises if the step was cancelled or is past its deadline."""
        if self.cancelled.is_set:
            raise CancelledError(None, where, f"The step was cancelled before '{where}' ran.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceededError(None, where, f"Timed out before '{where}' could run.")

    def inner(self) -> Step:
        """A step for a body: the same, but random numbers are drawn anew."""
        step = Step(self.cancelled, self.deadline)
        step.rendezvous, step.send, step.wait, step.timings = self.rendezvous, self.send, self.wait, self.timings
        return step

    def wait_for(self, recv: RecvCall) -> None:
        """Waits until all tensors of a Recv are there, the step is cancelled, or its deadline has passed."""
        arrived = Signal()
        if self.rendezvous.ready(recv.keys, arrived.set):
            return
        began = time.perf_counter()
        in_time = self.wait(arrived, self.remaining())
        self.waited += time.perf_counter() - began
        if not in_time:
            awaited = ", ".join(recv.tensors[key] for key in self.rendezvous.missing(recv.keys))
            raise DeadlineExceededError(None, recv.name, f"Timed out waiting for {awaited}.")
        self.check(recv.name)

    def remaining(self) -> float | None:
        """Seconds until the deadline, or None without one."""
        return None if self.deadline is None else self.deadline - time.monotonic()


def _to_nobody(task: str, keys: Sequence[int], values: Sequence[Any], kept_for: Any) -> bool:
    raise InternalError(None, None, f"A step of one task was to send to {task}.")


class Context:
    """What compiling a partition needs of its worker."""

    def __init__(self, devices: dict[str, Device], random_state: RandomState) -> None:
        self.devices = devices
        self.random_state = random_state
        self.bodies: dict[Any, Any] = {}  # of functions that datasets call
        self._host = next((d for d in devices.values() if d.device_type == "CPU"), next(iter(devices.values())))

    def device(self, node: Node) -> Device:
        """The device that a node was placed on."""
        return self.devices[node.device]

    def resource(self, node: Node, create: Callable[[str], Any]) -> Any:
        """What a node stands for that outlives a step, in its device's keeping: found, or made by `create(name)`.

        Queues, tables and the like are the host's, wherever their nodes were placed in this step or in another.
        """
        name = node.attrs.get("shared_name") or node.name
        keeper = self._host if node.op.host else self.device(node)
        return keeper.resources.lookup_or_create(node.attrs.get("container", ""), name, lambda: create(name))

    def variable(self, node: Node) -> Variable:
        """The variable that a VariableV2 or VarHandleOp node stands for."""
        attrs = node.attrs
        on_cpu = self.device(node).jax_device.platform == "cpu"
        variable: Variable = self.resource(node, lambda name: Variable(name, attrs["dtype"], attrs["shape"], on_cpu))
        return variable


class Executable:
    """A partition compiled to instructions. `run` takes the fed values and returns the fetched ones."""

    def __init__(
        self,
        subgraph: Subgraph,
        context: Context,
        bound: dict[int, Variable] | None = None,
        cuts: Cuts = NO_CUTS,
        for_client: bool = False,
    ) -> None:
        self.context = context
        self.cuts = cuts
        self._slots: dict[tuple[int, int], int] = {}
        self._bound = bound or {}  # parameters of a body that stand for variables
        prepared = fuse_sparse_updates(gather_before_segments(subgraph))
        on_host = rows_on_host(prepared)
        if on_host:
            cuts = self.cuts = Cuts(cuts.on_host | on_host, cuts.specialised)
        plan = make_plan(read_late(prepared), cuts)
        self._variable_of = plan.variable_of
        self._first_node: dict[Variable, Node] = {}
        self.feed_slots = [self.slot((node, 0)) for node in subgraph.feeds]
        every = [self._instruction(s) for s in together(plan.steps) if not _does_nothing(s)]
        self._to_find = [i for i in every if isinstance(i, HostCall) and i.is_handle]
        self.instructions = [i for i in every if i not in self._to_find]
        self.fetches = [self.source(edge) for edge in subgraph.fetches]
        constants = [(self.slot((node, 0)), node.attrs["value"]) for node in plan.constants]
        self.empty: list[Any] = [_UNSET] * len(self._slots)  # the values of a step before it begins
        for slot, value in constants:
            self.empty[slot] = value
        last = self.instructions[-1] if self.instructions else None
        self.ends_with_send = isinstance(last, SendCall)
        if isinstance(last, SendCall):
            last.is_last = True
        if for_client:
            self._mark_fetched()
        segments = [i.segment for i in self.instructions if isinstance(i, SegmentCall)]
        # A step is over when its updates are: on the CPU what was fed may be in use until then, and the caller may
        # change it. All results of a segment are ready at once, so one of its variables tells.
        changed = [s.updated_variables or s.assigned_variables for s in segments if s.platform == "cpu"]
        self.written = [variables[0] for variables in changed if variables]

    def _mark_fetched(self) -> None:
        """Tells each segment which of its outputs no other instruction needs."""
        needed = {s for i in self.instructions for s in i.in_slots}
        fetched = {f for f in self.fetches if isinstance(f, int)} - needed
        for instruction in self.instructions:
            if isinstance(instruction, SegmentCall):
                segment = instruction.segment
                segment.fetched = [i for i, slot in enumerate(segment.out_slots) if slot in fetched]

    def slot(self, edge: Edge) -> int:
        """Where the value of an edge is kept during a step."""
        return self._slots.setdefault((id(edge[0]), edge[1]), len(self._slots))

    def variable_node(self, edge: Edge) -> Node | None:
        """The node of the variable that an edge refers to; one node for all that share a variable by name."""
        node = self._variable_of(edge)
        if node is None or not self._is_bound(node):
            return node
        return self._first_node.setdefault(self.variable(node), node)

    def _is_bound(self, node: Node) -> bool:
        """Whether a node stands for a variable. A parameter of a body may also stand for a queue or the like."""
        return id(node) in self._bound or is_variable(node)

    def variable(self, node: Node) -> Variable:
        """The variable that a variable node, or a parameter of a body, stands for."""
        return self._bound.get(id(node)) or self.context.variable(node)

    def source(self, edge: Edge) -> int | Variable:
        """Where the value of an edge comes from: a slot, or a variable."""
        node = self.variable_node(edge)
        return self.slot(edge) if node is None or not self._is_bound(node) else self.variable(node)

    def _instruction(self, step: SegmentPlan | Node | list[Node]) -> Any:
        if isinstance(step, SegmentPlan):
            return SegmentCall(self, step)
        if isinstance(step, list):
            return (SendCall if step[0].op.name == "_Send" else RecvCall)(self, step)
        kind = {"If": BranchCall, "While": LoopCall}.get(step.op.name, HostCall if step.op.host else PlainCall)
        return kind(self, step)

    def run(self, fed: Sequence[Any], step: Step, at: int = 0) -> list[Any]:
        """Runs one step, from an instruction on. Values are arrays; what a variable holds is given as a copy."""
        values = self.begin(fed)
        self.proceed(values, step, at)
        for variable in self.written:
            variable.settle()
        return self.results(values)

    def begin(self, fed: Sequence[Any]) -> list[Any]:
        """The values of a step before its first instruction."""
        if self._to_find:
            # The handle of a queue, a table... is the same in each step: what it stands for outlives them.
            for call in self._to_find:
                call.store(self.empty, call.call((), Step(Cancellation())))
            self._to_find = []
        values = self.empty.copy()
        for slot, value in zip(self.feed_slots, fed, strict=True):
            values[slot] = value
        return values

    def proceed(
        self, values: list[Any], step: Step, at: int = 0, stop: Callable[[int, Any], bool] | None = None
    ) -> bool:
        """Runs instructions from `at` on, to the end unless `stop(at, instruction)` says to stop before one that waits.

        Without `stop` it waits there itself.
        """
        instructions = self.instructions
        while at < len(instructions):
            instruction = instructions[at]
            if step.deadline is not None or step.cancelled.is_set:
                step.check(instruction.name)
            if stop is not None and instruction.waits and stop(at, instruction):
                return False
            if step.timings is None:
                instruction(values, step)
            else:
                timed(instruction, values, step)
            at += 1
        return True

    def writes(self) -> bool:
        """Whether a step changes variables."""
        segments = [i.segment for i in self.instructions if isinstance(i, SegmentCall)]
        plain = [i for i in self.instructions if isinstance(i, PlainCall)]
        return any(s.updated or s.assigned for s in segments) or any(i.written for i in plain)

    def results(self, values: list[Any]) -> list[Any]:
        """What is fetched, after the last instruction."""
        return [values[f] if isinstance(f, int) else f.copy() for f in self.fetches]


def _does_nothing(step: Any) -> bool:
    """Whether a step is only there for the order of others, which the plan has seen to."""
    if not isinstance(step, SegmentPlan) or step.outputs:
        return False
    return all(n.op.name in ("NoOp", "Const") for n in step.nodes)


def _may_block(node: Node) -> bool:
    return node.op.blocking or any(_may_block(n) for f in functions_of(node) for n in body(f).nodes)


def timed(instruction: Any, values: list[Any], step: Step) -> None:
    """Runs an instruction to its end and notes when it ran, for a timeline."""
    assert step.timings is not None
    start = time.time()
    instruction(values, step)
    jax.block_until_ready([values[s] for s in instruction.out_slots if hasattr(values[s], "block_until_ready")])
    step.timings.append((instruction.device, instruction.name, instruction.label, start, time.time()))


class SegmentCall:
    """Runs a compiled segment. What proves not to compile as a whole is cut once more, around the node in the way."""

    waits = False

    def __init__(self, owner: Executable, plan: SegmentPlan) -> None:
        device = owner.context.devices[plan.device]
        self.owner = owner
        self.segment = Segment(
            plan, owner.slot, owner.variable_node, owner.variable,
            device.device_type.lower(), device.jax_device, owner.context.random_state, owner.feed_slots,
        )  # fmt: skip
        self.device = device.name
        self.name = self.segment.name
        self.label = f"{self.name} = Segment({', '.join(n.name for n in plan.nodes)})"
        self.in_slots = [*self.segment.in_slots, *self.segment.static_slots]
        self.out_slots = self.segment.out_slots
        self._pieces: Executable | None = None
        # Slices that may move on with each step, as along a text: compiled in, they have all compiled each time.
        self._movable = frozenset(n.name for n in plan.nodes if n.op.numpy and n.name in owner.cuts.specialised)

    def __call__(self, values: list[Any], step: Step) -> None:
        if self._movable and len(self.segment.specialised) > FEW_VALUES:
            cuts = self.owner.cuts
            self._pieces = self._rebuilt(Cuts(cuts.on_host | self._movable, cuts.specialised - self._movable))
            self._movable = frozenset()
        if self._pieces is None:
            try:
                self.segment(values, step.drawn)
                return
            except NotTraceable as error:
                self._pieces = self._cut(error)
        edges = self.segment.plan.inputs
        results = self._pieces.run([values[self.owner.slot(e)] for e in edges], step)
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value

    def _cut(self, error: NotTraceable) -> Executable:
        node, cuts = error.node, self.owner.cuts
        if node.op.name in ("If", "While"):
            cuts = Cuts(cuts.on_host | {node.name}, cuts.specialised)
        elif node.name not in cuts.specialised and not node.op.control_flow:
            cuts = Cuts(cuts.on_host, cuts.specialised | {node.name})
        else:
            raise UnimplementedError(None, node.name, f"'{node.name}' cannot be compiled: {error}.") from error
        return self._rebuilt(cuts)

    def _rebuilt(self, cuts: Cuts) -> Executable:
        subgraph, bound = subgraph_of(self.segment.plan, self.owner)
        return Executable(subgraph, self.owner.context, bound, cuts)


def subgraph_of(plan: SegmentPlan, owner: Executable) -> tuple[Subgraph, dict[int, Variable]]:
    """A segment as a subgraph of its own, fed with what the segment takes from outside."""
    arg = registered("_Arg")
    assert arg is not None
    feeds: list[Node] = []
    copies: dict[tuple[int, int], Edge] = {}
    for i, (source, index) in enumerate(plan.inputs):
        dtype = source.dtypes[index].base_dtype
        feed = Node(f"_arg/{source.name}:{index}", arg, {"T": dtype, "index": i}, (dtype,), device=plan.device)
        feeds.append(feed)
        copies[(id(source), index)] = (feed, 0)
    bound: dict[int, Variable] = {}
    variables: dict[int, Node] = {}
    copied: dict[int, Node] = {}
    for node in plan.nodes:
        copy = Node(node.name, node.op, node.attrs, node.dtypes, device=node.device, order=node.order)
        for source, index in node.inputs:
            if (id(source), index) in copies:
                copy.inputs.append(copies[(id(source), index)])
            elif id(source) in copied:
                copy.inputs.append((copied[id(source)], index))
            else:
                variable = owner.variable_node((source, index))
                assert variable is not None
                variables[id(variable)] = variable
                bound[id(variable)] = owner.variable(variable)
                copy.inputs.append((variable, 0))
        copy.controls = [copied[id(c)] for c in node.controls if id(c) in copied]
        copied[id(node)] = copy
    fetches = [(copied[id(n)], i) for n, i in plan.outputs]
    nodes = [*feeds, *variables.values(), *copied.values()]
    return Subgraph(nodes, feeds, fetches, []), bound


class NodeCall:
    """An instruction that runs one node on the host."""

    def __init__(self, owner: Executable, node: Node) -> None:
        self.owner = owner
        self.node = node
        self.waits = _may_block(node)
        self.name = node.name
        self.device = node.device
        self.label = f"{node.name} = {node.op.name}({', '.join(s.name for s, _ in node.inputs)})"
        self.out_slots = [owner.slot((node, i)) for i in range(len(node.dtypes))]
        self.inputs = [owner.source(edge) for edge in node.inputs]
        self.in_slots = [s for s in self.inputs if isinstance(s, int)]

    def store(self, values: list[Any], results: Sequence[Any]) -> None:
        """Puts the node's outputs in place."""
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value


class _BodyCall(NodeCall):
    """A control-flow node that runs on the host: its bodies are partitions of their own."""

    def executable(self, function: Function, arguments: Sequence[int | Variable]) -> Executable:
        """A body compiled on its own, on the device of the node."""
        body = body_of(function)
        for node in body.nodes:
            node.device = self.device
        bound = {id(p): a for p, a in zip(body.feeds, arguments, strict=True) if isinstance(a, Variable)}
        return Executable(body, self.owner.context, bound)

    def arguments(self, values: list[Any], sources: Sequence[int | Variable]) -> list[Any]:
        """The values for a body's parameters; a variable is bound already."""
        return [values[s] if isinstance(s, int) else None for s in sources]


class BranchCall(_BodyCall):
    """Runs one of the branches of an If on the host."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.predicate, *self.sources = self.inputs
        self.then_branch = self.executable(node.attrs["then_branch"], self.sources)
        self.else_branch = self.executable(node.attrs["else_branch"], self.sources)

    def __call__(self, values: list[Any], step: Step) -> None:
        predicate = values[self.predicate] if isinstance(self.predicate, int) else self.predicate.copy()
        branch = self.then_branch if as_predicate(np.asarray(predicate)) else self.else_branch
        self.store(values, branch.run(self.arguments(values, self.sources), step.inner()))


class LoopCall(_BodyCall):
    """Runs a While on the host, one iteration at a time."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.cond = self.executable(node.attrs["cond"], self.inputs)
        self.body = self.executable(node.attrs["body"], self.inputs)

    def __call__(self, values: list[Any], step: Step) -> None:
        current = self.arguments(values, self.inputs)
        variables = [i for i, s in enumerate(self.inputs) if isinstance(s, Variable)]
        while as_predicate(np.asarray(self.cond.run(current, step.inner())[0])):
            current = self.body.run(current, step.inner())
            for i in variables:
                current[i] = None
            step.check(self.name)
        self.store(values, current)


class HostCall(NodeCall):
    """Runs a host op: its kernel takes and gives NumPy arrays, and resource objects for references."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.attrs = {k: v for k, v in node.attrs.items() if k in node.op.wants}
        if "resource" in node.op.wants:
            self.attrs["resource"] = functools.partial(owner.context.resource, node)
        if "functions" in node.op.wants:
            from penstock.worker.bodies import callable_body

            self.attrs["functions"] = functools.partial(callable_body, owner.context, node.device)
        self.wants_context = "ctx" in node.op.wants
        self.takes_lists = any(arg.is_list for arg in node.op.inputs)
        kinds = [t.name == "resource" or t._is_ref_dtype for t in node.dtypes]
        finds = "resource" in node.op.wants and not self.wants_context
        self.is_handle = finds and not node.inputs and bool(kinds) and all(kinds)
        self.read = self._values_of_variables()

    def _values_of_variables(self) -> frozenset[int]:
        """The inputs that are references to variables of which the kernel wants the value."""
        op = self.node.op
        if op.takes_variables or "functions" in op.wants or not any(isinstance(i, Variable) for i in self.inputs):
            return frozenset()
        positions = grouped(op, self.node.attrs, range(len(self.inputs)))
        values = [p for arg, p in zip(op.inputs, positions, strict=True) if not arg.is_ref]
        edges = self.node.inputs
        flat = (i for each in values for i in (each if isinstance(each, list) else [each]))
        return frozenset(i for i in flat if edges[i][0].dtypes[edges[i][1]]._is_ref_dtype)

    def call(self, arguments: Sequence[Any], step: Step) -> list[Any]:
        """What the kernel gives; whatever it raises names the node."""
        node = self.node
        attrs = {**self.attrs, "ctx": step} if self.wants_context else self.attrs
        if node.op.random:
            attrs = {**attrs, "key": self.owner.context.random_state.keys([node], step.drawn)[0]}
        try:
            if self.takes_lists:
                arguments = grouped(node.op, node.attrs, arguments)
            result = node.op.kernel(*arguments, **attrs)
        except GivesWay:
            raise
        except OpError as error:
            raise type(error)(None, node.name, f"{error.message} [node '{node.name}']") from error
        except (ValueError, IndexError) as error:
            raise InvalidArgumentError(None, node.name, f"{node.op.name} '{node.name}': {error}") from error
        except Exception as error:
            raise InternalError(None, node.name, f"{node.op.name} '{node.name}' failed: {error!r}") from error
        return list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]

    def __call__(self, values: list[Any], step: Step) -> None:
        arguments = [_host_value(values[i]) if isinstance(i, int) else i for i in self.inputs]
        for i in self.read:
            arguments[i] = self.inputs[i].snapshot()  # type: ignore[union-attr]
        self.store(values, self.call(arguments, step))


class PlainCall(HostCall):
    """Runs on the host what is no host op, for what its values are; a variable is what it holds."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.written = [node.op.input_index(name) for name in node.op.writes]
        self.jax_device = owner.context.device(node).jax_device
        self.on_cpu = self.jax_device.platform == "cpu"
        self.changed = [v for v in (self.inputs[i] for i in self.written) if isinstance(v, Variable)]
        self.locked = sorted(self.changed, key=lambda v: v.order)
        self.plain_slots = [] if any(isinstance(i, Variable) for i in self.inputs) else self.in_slots

    def __call__(self, values: list[Any], step: Step) -> None:
        if self.plain_slots:
            self.store(values, self.call([_host_value(values[slot]) for slot in self.plain_slots], step))
            return
        for variable in self.locked:
            variable.lock.acquire()
        try:
            results = self.call([self._argument(i, values) for i in range(len(self.inputs))], step)
            for variable, value in zip(self.changed, results, strict=False):
                variable.require_shape(value, self.name)
                variable.value = self._kept(value)
        finally:
            for variable in self.locked:
                variable.lock.release()
        # A reference that a write gives is followed to the variable, and needs no slot.
        if not self.written:
            self.store(values, results)

    def _kept(self, value: Any) -> Any:
        """A value as a variable keeps it."""
        if value.dtype == object:
            return value
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # it lies in memory that is shared with who sent it
        if self.on_cpu and value.nbytes <= SMALL:
            return np.asarray(value)  # jax takes it as it is; making an array of it takes longer than most updates
        # On a CPU that is the same memory, if it is aligned as what is read from checkpoints is.
        return jax.device_put(value, self.jax_device)

    def _argument(self, position: int, values: list[Any]) -> Any:
        source = self.inputs[position]
        if not isinstance(source, Variable):
            return _host_value(values[source])
        if position in self.written:
            return None if self.node.op.overwrites else source.read()
        return source.snapshot() if self.on_cpu else source.read()


def _host_value(value: Any) -> Any:
    if value.__class__ is np.ndarray:
        return value  # at once: to ask whether something is a jax.Array takes longer
    return np.asarray(value) if isinstance(value, jax.Array) else value
