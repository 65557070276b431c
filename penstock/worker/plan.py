"""Plan: how a partition runs. Nodes are grouped into segments that compile as a whole, with host ops between them.

Every node gets a level: the largest level among its inputs, plus one where a pure op follows a host op or the other
way round, where the device changes, and where a shape-like input is only known at run time. The pure nodes of one
level and device are one segment, so no cycle between segments can arise.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.graph.dtype import variant
from penstock.graph.function import Call, Function
from penstock.graph.opdef import static_positions
from penstock.passes.ir import WAVE, Edge, Node, Subgraph
from penstock.passes.prune import body_of

_HOST_TYPES = frozenset(("string",))
_HANDLES = frozenset(("VarHandleOp",))
_READS = frozenset(("Identity", "ReadVariableOp"))
_WAVE = 1 << 20  # levels: what depends on a later wave of tensors is never in one segment with what does not
BIG_CONSTANT = 1024  # elements: larger ones are arguments of the compiled code, not literals in it


@dataclass(slots=True, eq=False)
class SegmentPlan:
    """Pure nodes of one level and device, in an order in which they can run."""

    level: int
    device: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Edge] = field(default_factory=list)  # values from outside
    static: list[Edge] = field(default_factory=list)  # those of them that the compiled code is specialised on
    outputs: list[Edge] = field(default_factory=list)  # values needed outside


@dataclass(slots=True, eq=False)
class Plan:
    """Segments and host nodes in the order in which they run."""

    steps: list[SegmentPlan | Node]
    constants: list[Node]  # that host nodes take
    variable_of: Callable[[Edge], Node | None]


def is_variable(node: Node) -> bool:
    """Whether the node stands for a variable: it has nothing to run."""
    op = node.op
    if op.host:
        return False  # an accumulator's handle is a reference, too
    return op.name in _HANDLES or (not op.inputs and bool(op.outputs) and op.outputs[0].is_ref)


def is_host(node: Node) -> bool:
    """Whether the node runs in Python between segments: by declaration, for its types, or for what its body holds."""
    if node.op.host:
        return True
    if not all(is_pure_body(f) for f in functions_of(node)):
        return True
    if node.op.name == "If" and any(_is_reference(source, index) for source, index in node.inputs):
        return True  # the branch that is not taken may read a variable that holds nothing yet
    if node.op.numpy and any(t.name == "resource" for t in node.dtypes):
        return True  # it picks one of several queues
    if _is_restored(node):
        return True  # compiled code would copy what was read, and be compiled for every list of variables
    types = [s.dtypes[i] for s, i in node.inputs] + list(node.dtypes)
    return any(t.base_dtype.name in _HOST_TYPES for t in types)


def _is_restored(node: Node) -> bool:
    """Whether a node hands on, or puts into a variable, a tensor just as it came from a checkpoint or another task."""
    if node.op.name not in ("Identity", "Assign", "AssignVariableOp"):
        return False
    source = node.inputs[-1][0]
    if source.op.name == "_Recv":
        return node.op.name != "Identity"
    return source.op.name == "RestoreV2" or (source.op.name == "Identity" and _is_restored(source))


def _is_reference(node: Node, index: int) -> bool:
    dtype = node.dtypes[index]
    return bool(dtype._is_ref_dtype) or dtype.name == "resource"


def functions_of(node: Node) -> list[Function]:
    """The bodies of a control-flow node."""
    return _functions(node.attrs)


def _functions(attrs: dict[str, Any]) -> list[Function]:
    found = []
    for value in attrs.values():
        if isinstance(value, Function):
            found.append(value)
        elif isinstance(value, Call):
            found += _functions(value.attrs)
    return found


def body(function: Function) -> Subgraph:
    """The body of a function, worked out once."""
    found: Subgraph | None = function.derived.get("body")
    if found is None:
        found = function.derived["body"] = body_of(function)
    return found


def is_pure_body(function: Function) -> bool:
    """Whether a body can be part of compiled code: no host ops and no writes. What else it needs shows when tracing."""
    pure: bool | None = function.derived.get("pure")
    if pure is None:
        part = body(function)
        pure = not any(node.op.writes or is_host(node) for node in part.nodes if node not in part.feeds)
        function.derived["pure"] = pure
    return pure


def _is_known(node: Node, known: set[int]) -> bool:
    """Whether the node's value follows from constants and shapes alone, so that it folds while tracing."""
    name = node.op.name
    if name == "Const":
        return True
    if name in ("Shape", "ShapeN", "Size", "Rank"):
        return True
    return node.op.numpy and bool(node.inputs) and all(id(s) in known for s, _ in node.inputs)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Tracing has found nodes that must run on the host, and nodes that must see the values of their inputs.

    Where a partition is interpreted, every node runs on the host.
    """

    on_host: frozenset[str] = frozenset()
    specialised: frozenset[str] = frozenset()
    interpreted: bool = False


NO_CUTS = Cuts()


def make_plan(subgraph: Subgraph, cuts: Cuts = NO_CUTS) -> Plan:
    """Cuts a partition into segments and host steps."""
    analysis = _Analysis(subgraph, cuts)
    segments: dict[tuple[int, str], SegmentPlan] = {}
    hosts: list[Node] = []
    for node in subgraph.nodes:
        if id(node) in analysis.fed or is_variable(node):
            continue
        if id(node) in analysis.host:
            hosts.append(node)
        elif id(node) not in analysis.folding:
            key = (analysis.level[id(node)], node.device)
            segments.setdefault(key, SegmentPlan(*key)).nodes.append(node)
    constants = {id(s): s for n in hosts for s, _ in n.inputs if analysis.is_plain_constant(s)}
    if cuts.interpreted:
        constants.update({id(n): n for n, _ in subgraph.fetches if analysis.is_plain_constant(n)})
    for node in () if cuts.interpreted else _known_values_needed_outside(subgraph, analysis):
        key = (analysis.level[id(node)], node.device)
        segments.setdefault(key, SegmentPlan(*key)).nodes.append(node)
    for segment in segments.values():
        _complete(segment, analysis)
    _find_outputs(subgraph, list(segments.values()), analysis)
    order = _scheduled(list(segments.values()), hosts, analysis)
    return Plan(order, list(constants.values()), analysis.variable_of)


def _scheduled(segments: list[SegmentPlan], hosts: list[Node], analysis: _Analysis) -> list[SegmentPlan | Node]:
    """An order in which steps can run. What waits for others comes as late as it can: they may wait for us."""
    steps: list[SegmentPlan | Node] = [*segments, *hosts]
    made_by: dict[int, int] = {}
    for number, step in enumerate(steps):
        for node in step.nodes if isinstance(step, SegmentPlan) else [step]:
            if id(node) not in analysis.folding:
                made_by[id(node)] = number
    for number, segment in enumerate(segments):
        made_by.update({id(n): number for n, _ in segment.outputs if id(n) in analysis.folding})
    needs: list[set[int]] = []
    for number, step in enumerate(steps):
        nodes = step.nodes if isinstance(step, SegmentPlan) else [step]
        sources = [s for n in nodes for s in (*(s for s, _ in n.inputs), *n.controls)]
        needs.append({made_by[id(s)] for s in sources if id(s) in made_by} - {number})
    ready: list[tuple[int, int, int]] = []
    waiting = [len(n) for n in needs]
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, before in enumerate(needs):
        for other in before:
            dependents[other].append(number)

    def rank(number: int) -> tuple[int, int, int]:
        step = steps[number]
        # What others wait for goes first. What puts something in, and so has no outputs, before what takes it out.
        blocking = isinstance(step, Node) and step.op.blocking and 1 + bool(step.op.outputs)
        if isinstance(step, Node) and step.op.name == "_Send":
            blocking = -1
        elif isinstance(step, Node) and WAVE in step.attrs:
            blocking = 2  # like a Recv: its copies wait for each other
        return blocking, step.level if isinstance(step, SegmentPlan) else analysis.level[id(step)], number

    for number, count in enumerate(waiting):
        if count == 0:
            heapq.heappush(ready, rank(number))
    order: list[SegmentPlan | Node] = []
    while ready:
        for number in _popped_together(ready, steps):
            order.append(steps[number])
            for other in dependents[number]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, rank(other))
    assert len(order) == len(steps), "segments depend on each other in a circle"
    return order


def _popped_together(ready: list[tuple[int, int, int]], steps: list[SegmentPlan | Node]) -> list[int]:
    """The next step; if it is a Recv, with those of the same wave from the same task: they arrive together."""
    first = heapq.heappop(ready)
    popped = [first[2]]
    node = steps[first[2]]
    while isinstance(node, Node) and node.op.name == "_Recv" and ready and ready[0][:2] == first[:2]:
        other = steps[ready[0][2]]
        if not isinstance(other, Node) or other.attrs.get("send_task") != node.attrs["send_task"]:
            break
        popped.append(heapq.heappop(ready)[2])
    return popped


class _Analysis:
    """Level, kind and foldability of every node of a partition."""

    def __init__(self, subgraph: Subgraph, cuts: Cuts) -> None:
        self.subgraph = subgraph
        self.cuts = cuts
        # A piece of a body may take a variable that the body has as a parameter.
        self.fed = {id(n) for n in subgraph.nodes if n.op.name == "_Arg"}
        self.position = {id(n): i for i, n in enumerate(subgraph.nodes)}
        self.level: dict[int, int] = {}
        self.host: set[int] = set()
        self.known: set[int] = set()  # folds while tracing
        self.folding: set[int] = set()  # known, and so made again in each segment that needs it
        self._leaves: dict[int, list[Node]] = {}  # of a folding node: what its segment must have to make it again
        self._variable: dict[int, Node] = {}
        for node in subgraph.nodes:
            self._visit(node)
        self._read_where_used()

    def _read_where_used(self) -> None:
        """Moves reads of variables to the segment that takes them, if it is one: values between segments are copies."""
        levels: dict[int, set[int]] = defaultdict(set)  # of a read: where it is used, -1 for other uses
        reads = {id(n): n for n in self.subgraph.nodes if n.op.name in _READS and not n.controls and self._is_read(n)}
        if not reads:
            return
        changed: dict[int, int] = {}  # the lowest level at which a variable is written
        for node in self.subgraph.nodes:
            compiled = id(node) not in self.host and id(node) not in self.folding
            for source, _ in node.inputs:
                if id(source) in reads:
                    same = compiled and source.device == node.device
                    levels[id(source)].add(self.level[id(node)] if same else -1)
            for source in node.controls:
                levels[id(source)].add(-1)
            if node.op.writes and node.inputs:
                variable = self.variable_of(node.inputs[0])
                if variable is not None:
                    level = self.level[id(node)]
                    changed[id(variable)] = min(level, changed.get(id(variable), level))
        for node, _ in self.subgraph.fetches:
            levels[id(node)].add(-1)
        for key, read in reads.items():
            used = levels[key]
            variable = self.variable_of(read.inputs[0])
            if len(used) == 1 and -1 not in used and variable is not None:
                (level,) = used
                if changed.get(id(variable), level) >= level:
                    self.level[key] = level

    def _is_read(self, node: Node) -> bool:
        return id(node) not in self.host and self.variable_of(node.inputs[0]) is not None

    def _visit(self, node: Node) -> None:
        key = id(node)
        if key in self.fed:
            if _is_reference(node, 0):  # a parameter of a body that stands for a variable
                self._variable[key] = node
            self.level[key] = 0
            return
        if is_variable(node):
            self._variable[key] = node
            self.level[key] = 0
            return
        if node.op.writes and node.inputs:
            source = self.variable_of(node.inputs[0])
            if source is not None and node.op.outputs and node.op.outputs[0].is_ref:
                self._variable[key] = source
        host = node.name in self.cuts.on_host or is_host(node) or self._follows_the_host(node)
        if node.op.name == "DynamicStitch" and node.dtypes[0].is_integer and _is_known(node, self.known):
            host = False  # gradients of reductions put shapes together with it
        if self.cuts.interpreted:
            host = node.op.name != "Const" or bool(node.controls)
        if host:
            self.host.add(key)
        elif _is_known(node, self.known) and not any(self._is_string(s, i) for s, i in node.inputs):
            self.known.add(key)
            self.folding.add(key)
            # What it waits for counts too: consumers that take it have no control input of their own.
            before = [*(s for s, _ in node.inputs), *node.controls]
            self._leaves[key] = [leaf for s in before for leaf in self._leaves.get(id(s), [s])]
        static = self.static(node)
        level = _WAVE * (node.attrs["wave"] if node.op.name == "_Recv" else node.attrs.get(WAVE, 0))
        for i, (source, _) in enumerate(node.inputs):
            cut = not host and i in static and id(source) not in self.known
            level = max(level, self._level_after(source, node, host, cut))
        for source in node.controls:
            level = max(level, self._level_after(source, node, host, False))
        self.level[key] = level

    def _follows_the_host(self, node: Node) -> bool:
        """Tells if a node takes something that only the host has: lists, and what a control-flow node there kept."""
        for source, index in node.inputs:
            if id(source) in self.host:
                if source.dtypes[index] is variant:
                    return True
                if source.op.control_flow and node.attrs.get("_forward") == source.name:
                    return True
        return False

    def static(self, node: Node) -> frozenset[int]:
        """Which inputs of a node its segment is specialised on."""
        if node.name in self.cuts.specialised:
            return frozenset(i for i, (s, index) in enumerate(node.inputs) if s.dtypes[index].base_dtype.is_integer)
        return static_positions(node.op, node.attrs, len(node.inputs))

    def _is_string(self, source: Node, index: int) -> bool:
        return source.dtypes[index].base_dtype.name in _HOST_TYPES

    def _level_after(self, source: Node, node: Node, host: bool, cut: bool) -> int:
        key = id(source)
        level = self.level[key]
        if key in self.fed or is_variable(source):
            return level
        if key in self.folding and not host:
            # It is made again inside the consumer's segment, which needs its leaves, not itself.
            return max((self._level_after(leaf, node, host, False) for leaf in self._leaves[key]), default=0)
        changes = (key in self.host) != host or (not host and source.device != node.device) or cut
        return level + 1 if changes else level

    def is_plain_constant(self, node: Node) -> bool:
        """Whether a node's value is there before the step begins."""
        return node.op.name == "Const" and not node.controls and id(node) in self.folding

    def variable_of(self, edge: Edge) -> Node | None:
        """The variable that an edge refers to, through assignments; None for a plain value."""
        node, index = edge
        return self._variable.get(id(node)) if _is_reference(node, index) else None


def _known_values_needed_outside(subgraph: Subgraph, analysis: _Analysis) -> list[Node]:
    needed: dict[int, Node] = {}
    for node, _ in subgraph.fetches:
        if id(node) in analysis.folding:
            needed[id(node)] = node
    for node in subgraph.nodes:
        if id(node) in analysis.host:
            for source, _ in node.inputs:
                if id(source) in analysis.folding and not analysis.is_plain_constant(source):
                    needed[id(source)] = source
    return list(needed.values())


def _complete(segment: SegmentPlan, analysis: _Analysis) -> None:
    """Adds the folding nodes that a segment needs, and finds what it takes from outside."""
    members = {id(n): n for n in segment.nodes}
    stack = list(segment.nodes)
    while stack:
        for source, _ in stack.pop().inputs:
            if id(source) in analysis.folding and id(source) not in members:
                members[id(source)] = source
                stack.append(source)
    segment.nodes = sorted(members.values(), key=lambda n: analysis.position[id(n)])
    inputs: dict[tuple[int, int], Edge] = {}
    static: dict[tuple[int, int], Edge] = {}
    for node in segment.nodes:
        positions = analysis.static(node)
        for i, (source, index) in enumerate(node.inputs):
            if id(source) in members or analysis.variable_of((source, index)) is not None:
                continue
            inputs[(id(source), index)] = (source, index)
            if i in positions:
                static[(id(source), index)] = (source, index)
    segment.inputs = list(inputs.values())
    segment.static = list(static.values())


def _find_outputs(subgraph: Subgraph, segments: Iterable[SegmentPlan], analysis: _Analysis) -> None:
    wanted: dict[tuple[int, int], None] = {(id(n), i): None for n, i in subgraph.fetches}
    for node in subgraph.nodes:
        if id(node) in analysis.host:
            wanted.update({(id(s), i): None for s, i in node.inputs if not analysis.is_plain_constant(s)})
    for segment in segments:
        wanted.update({(id(s), i): None for s, i in segment.inputs})
    given: set[tuple[int, int]] = set()
    for segment in sorted(segments, key=lambda s: s.level):
        for node in segment.nodes:
            for index in range(len(node.dtypes)):
                key = (id(node), index)
                if key in wanted and key not in given and analysis.variable_of((node, index)) is None:
                    given.add(key)
                    segment.outputs.append((node, index))
