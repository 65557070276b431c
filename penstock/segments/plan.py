"""Plan: the stages of a partition. Nodes are grouped into segments that compile as a whole, with host ops between them.

Every node gets a level: the largest level among its inputs, plus one where a pure op follows a host op or the other
way round, where the device changes, and where a shape-like input is only known at run time. The pure nodes of one
level and device are one segment, so no cycle between segments can arise.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from penstock.graph.dtype import variant
from penstock.passes.ir import WAVE, Edge, Node, Subgraph, is_reference, sources_of
from penstock.segments.kinds import is_host, is_variable, static_inputs

_READS = frozenset(("Identity", "ReadVariableOp"))
_SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
_NO_POSITIONS: frozenset[int] = frozenset()
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
    sent: list[int] = field(default_factory=list)  # positions of those of them that are only sent to other tasks


@dataclass(slots=True, eq=False)
class Plan:
    """Segments and host nodes in the order in which they run."""

    stages: list[SegmentPlan | Node]
    constants: list[Node]  # that host nodes take
    feeds: list[Edge]
    fetches: list[Edge]
    variable_of: Callable[[Edge], Node | None]
    cuts: Cuts

    def node_by_node(self, segment: SegmentPlan) -> Plan:
        """Returns a plan that runs each node of one of the segments by itself, in NumPy."""
        stages: list[SegmentPlan | Node] = [n for n in segment.nodes if n.op.name != "Const"]
        constants = [n for n in segment.nodes if n.op.name == "Const"]
        return Plan(stages, constants, segment.inputs, segment.outputs, self.variable_of, Cuts(interpreted=True))


def _is_known(node: Node, known: Container[Node]) -> bool:
    """Tells if the node's value follows from constants and shapes alone, so that it folds while tracing."""
    op = node.op
    if not op.numpy or not node.inputs:
        return op.name == "Const" or op.name in _SHAPES
    for source, _ in node.inputs:
        if source not in known:
            return op.name in _SHAPES
    return True


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
    """Cuts a partition into stages: segments and host nodes."""
    analysis = _Analysis(subgraph, cuts)
    segments: dict[tuple[int, str], SegmentPlan] = {}
    hosts: list[Node] = []
    for node in subgraph.nodes:
        if node in analysis.folding or node in analysis.fed or is_variable(node):
            continue
        if node in analysis.host:
            hosts.append(node)
        else:
            analysis.segment_of(node, segments).nodes.append(node)
    constants = {s: s for n in hosts for s, _ in n.inputs if analysis.is_plain_constant(s)}
    if cuts.interpreted:
        constants.update({n: n for n, _ in subgraph.fetches if analysis.is_plain_constant(n)})
    for node in () if cuts.interpreted else _known_values_needed_outside(subgraph, analysis):
        analysis.segment_of(node, segments).nodes.append(node)
    for segment in segments.values():
        _complete(segment, analysis)
    _find_outputs(subgraph, list(segments.values()), analysis)
    order = _scheduled(list(segments.values()), hosts, analysis)
    feeds = [(node, 0) for node in subgraph.feeds]
    return Plan(order, list(constants.values()), feeds, subgraph.fetches, analysis.variable_of, cuts)


def _scheduled(segments: list[SegmentPlan], hosts: list[Node], analysis: _Analysis) -> list[SegmentPlan | Node]:
    """Orders stages so that they can run. Stages that wait for other tasks come last: these may wait for this task."""
    stages: list[SegmentPlan | Node] = [*segments, *hosts]
    if len(stages) == 1:
        return stages
    made_by: dict[Node, int] = {}
    for number, stage in enumerate(stages):
        for node in stage.nodes if isinstance(stage, SegmentPlan) else [stage]:
            if node not in analysis.folding:
                made_by[node] = number
    for number, segment in enumerate(segments):
        made_by.update({n: number for n, _ in segment.outputs if n in analysis.folding})
    needs: list[set[int]] = []
    for number, stage in enumerate(stages):
        before: set[int] = set()
        for node in stage.nodes if isinstance(stage, SegmentPlan) else [stage]:
            before.update([made_by[s] for s, _ in node.inputs if s in made_by])
            before.update([made_by[s] for s in node.controls if s in made_by])
        needs.append(before - {number})
    ready: list[tuple[int, int, int]] = []
    waiting = [len(n) for n in needs]
    dependents: dict[int, list[int]] = defaultdict(list)
    for number, others in enumerate(needs):
        for other in others:
            dependents[other].append(number)

    def rank(number: int) -> tuple[int, int, int]:
        stage = stages[number]
        # What others wait for goes first. What puts something in, and so has no outputs, before what takes it out.
        blocking = isinstance(stage, Node) and stage.op.blocking and 1 + bool(stage.op.outputs)
        if isinstance(stage, Node) and stage.op.name == "_Send":
            blocking = -1
        elif isinstance(stage, Node) and WAVE in stage.attrs:
            blocking = 2  # like a Recv: its copies wait for each other
        return blocking, stage.level if isinstance(stage, SegmentPlan) else analysis.level[stage], number

    for number, count in enumerate(waiting):
        if count == 0:
            heapq.heappush(ready, rank(number))
    order: list[SegmentPlan | Node] = []
    while ready:
        for number in _popped_together(ready, stages):
            order.append(stages[number])
            for other in dependents[number]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, rank(other))
    assert len(order) == len(stages), "segments depend on each other in a circle"
    return order


def _popped_together(ready: list[tuple[int, int, int]], stages: list[SegmentPlan | Node]) -> list[int]:
    """Takes the next stage; a Recv comes with those of the same wave and task, since they arrive together."""
    first = heapq.heappop(ready)
    popped = [first[2]]
    node = stages[first[2]]
    while isinstance(node, Node) and node.op.name == "_Recv" and ready and ready[0][:2] == first[:2]:
        other = stages[ready[0][2]]
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
        self.fed = {n for n in subgraph.nodes if n.op.name == "_Arg"}
        self.position = {n: i for i, n in enumerate(subgraph.nodes)}
        self.level: dict[Node, int] = {}
        self.host: set[Node] = set()
        # What folds while tracing is made again in each segment that needs it, which must have these nodes for it.
        self.folding: dict[Node, list[Node]] = {}
        self._variable: dict[Node, Node] = {}
        for node in subgraph.nodes:
            self._visit(node)
        self._run_where_used()

    def _run_where_used(self) -> None:
        """Moves reads of variables, and light work, to the segment that takes their results, if it is one.

        Values between segments are copies, and to call a segment costs more than light work does. What is not light
        stays: it may run while the step waits for other tasks.
        """
        if not self.host and not any(self.level.values()):
            return  # there is one segment for each device
        free = [n for n in self.subgraph.nodes if n.inputs and not n.controls and n not in self.host]
        movable = {node for node in free if self._is_read(node) or self._is_light(node)}
        if not movable:
            return
        changed: dict[Node, int] = {}  # the lowest level at which a variable is written
        for node in self.subgraph.nodes:
            variable = self.variable_of(node.inputs[0]) if node.op.writes and node.inputs else None
            if variable is not None:
                level = self.level[node]
                changed[variable] = min(level, changed.get(variable, level))
        used: dict[Node, set[int]] = defaultdict(set)  # at which levels, -1 for other uses
        for node, _ in self.subgraph.fetches:
            used[node].add(-1)
        for node in reversed(self.subgraph.nodes):
            if node in movable and len(used[node]) == 1:
                (level,) = used[node]
                read = self.variable_of(node.inputs[0])
                if level > self.level[node] and (read is None or changed.get(read, level) >= level):
                    self.level[node] = level
            for i, (source, _) in enumerate(node.inputs):
                if source in movable:
                    compiled = node not in self.host and node not in self.folding and i not in self.static(node)
                    used[source].add(self.level[node] if compiled and source.device == node.device else -1)
            for source in node.controls:
                used[source].add(-1)

    def _is_read(self, node: Node) -> bool:
        return node.op.name in _READS and self.variable_of(node.inputs[0]) is not None

    def _is_light(self, node: Node) -> bool:
        """Tells if a node does what NumPy could do as well, such as reshaping, and takes no variable."""
        is_pure = node.op.numpy and not node.op.writes and node not in self.folding
        return is_pure and all(self.variable_of(edge) is None for edge in node.inputs)

    def _visit(self, node: Node) -> None:
        op = node.op
        if node in self.fed:
            if is_reference(node.dtypes[0]):  # a parameter of a body that stands for a variable
                self._variable[node] = node
            self.level[node] = 0
            return
        if is_variable(node):
            self._variable[node] = node
            self.level[node] = 0
            return
        if op.writes and node.inputs:
            source = self.variable_of(node.inputs[0])
            if source is not None and op.outputs and op.outputs[0].is_ref:
                self._variable[node] = source
        if self.cuts.interpreted:
            host = op.name != "Const" or bool(node.controls)
        elif op.name == "DynamicStitch" and node.dtypes[0].is_integer and _is_known(node, self.folding):
            host = False  # gradients of reductions put shapes together with it
        else:
            host = node.on_host or node.name in self.cuts.on_host or is_host(node) or self._follows_the_host(node)
        if host:
            self.host.add(node)
            static = _NO_POSITIONS
        else:
            static = self.static(node)
            if _is_known(node, self.folding):
                # What it waits for counts too: consumers that take it have no control input of their own.
                leaves = [leaf for s in sources_of(node) for leaf in self.folding.get(s, (s,))]
                self.folding[node] = list(dict.fromkeys(leaves))
        level = 0
        if op.name == "_Recv" or WAVE in node.attrs:
            level = _WAVE * node.attrs["wave" if op.name == "_Recv" else WAVE]
        hosts, folding, device = self.host, self.folding, node.device
        for i, (source, _) in enumerate(node.inputs):
            if host or source in hosts or source in folding or i in static or source.device != device:
                after = self._level_after(source, node, host, i in static and source not in folding)
            else:
                after = self.level[source]  # as for most
            if after > level:
                level = after
        for source in node.controls:
            level = max(level, self._level_after(source, node, host, False))
        self.level[node] = level

    def _follows_the_host(self, node: Node) -> bool:
        """Tells if a node takes something that only the host has: lists, and what a control-flow node there kept."""
        if not self.host:
            return False
        for source, index in node.inputs:
            if source in self.host:
                if source.dtypes[index] is variant:
                    return True
                if source.op.control_flow and node.attrs.get("_forward") == source.name:
                    return True
        return False

    def static(self, node: Node) -> frozenset[int]:
        """The inputs of a node that its segment is specialised on."""
        if node.name in self.cuts.specialised:
            return frozenset(i for i, (s, index) in enumerate(node.inputs) if s.dtypes[index].base_dtype.is_integer)
        return static_inputs(node)

    def _level_after(self, source: Node, node: Node, host: bool, cut: bool) -> int:
        if not host and source in self.folding:
            # It is made again inside the consumer's segment, which needs its leaves, not itself.
            return max([self._level_after(leaf, node, host, False) for leaf in self.folding[source]], default=0)
        level = self.level[source]
        if cut or (source in self.host) != host or (not host and source.device != node.device):
            return level if source in self.fed or is_variable(source) else level + 1
        return level

    def segment_of(self, node: Node, segments: dict[tuple[int, str], SegmentPlan]) -> SegmentPlan:
        """The segment that a node belongs to, which is made at its first node."""
        key = (self.level[node], node.device)
        return segments.get(key) or segments.setdefault(key, SegmentPlan(*key))

    def is_plain_constant(self, node: Node) -> bool:
        """Tells if a node has its value before the step begins."""
        return node.op.name == "Const" and not node.controls and node in self.folding

    def variable_of(self, edge: Edge) -> Node | None:
        """The variable that an edge refers to, through assignments; None for a plain value."""
        node, index = edge
        return self._variable.get(node) if node in self._variable and is_reference(node.dtypes[index]) else None


def _known_values_needed_outside(subgraph: Subgraph, analysis: _Analysis) -> list[Node]:
    needed: dict[Node, Node] = {}
    for node, _ in subgraph.fetches:
        if node in analysis.folding:
            needed[node] = node
    for node in subgraph.nodes:
        if node in analysis.host:
            for source, _ in node.inputs:
                if source in analysis.folding and not analysis.is_plain_constant(source):
                    needed[source] = source
    return list(needed.values())


def _complete(segment: SegmentPlan, analysis: _Analysis) -> None:
    """Adds the folding nodes that a segment needs, and finds what it takes from outside."""
    members = set(segment.nodes)
    stack = list(segment.nodes)
    while stack:
        for source, _ in stack.pop().inputs:
            if source not in members and source in analysis.folding:
                members.add(source)
                stack.append(source)
    segment.nodes = sorted(members, key=analysis.position.__getitem__)
    inputs: dict[Edge, None] = {}
    static: dict[Edge, None] = {}
    for node in segment.nodes:
        for i, edge in enumerate(node.inputs):
            if edge[0] in members or analysis.variable_of(edge) is not None:
                continue
            inputs[edge] = None
            if i in analysis.static(node):
                static[edge] = None
    segment.inputs = list(inputs)
    segment.static = list(static)


def _find_outputs(subgraph: Subgraph, segments: Iterable[SegmentPlan], analysis: _Analysis) -> None:
    kept = set(subgraph.fetches)
    sent: set[Edge] = set()
    for node in analysis.host:
        takers = sent if node.op.name == "_Send" else kept
        takers.update(edge for edge in node.inputs if not analysis.is_plain_constant(edge[0]))
    for segment in segments:
        kept.update(segment.inputs)
    wanted = kept | sent
    sources = {node for node, _ in wanted}
    for segment in sorted(segments, key=lambda s: s.level):
        for node in segment.nodes:
            if node not in sources:
                continue
            for index in range(len(node.dtypes)):
                edge = (node, index)
                if edge in wanted and analysis.variable_of(edge) is None:
                    wanted.discard(edge)
                    if edge not in kept:
                        segment.sent.append(len(segment.outputs))
                    segment.outputs.append(edge)
