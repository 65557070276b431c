"""The call of a segment: the instruction of an executor that runs one."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from penstock.errors import UnimplementedError
from penstock.graph.checks import NotTraceable
from penstock.graph.dtype import variant
from penstock.graph.opdef import registered
from penstock.kernel.waiting import NeedsThread
from penstock.passes.ir import Edge, Node, Subgraph
from penstock.passes.without_writes import without_writes
from penstock.segments.form import form_of
from penstock.segments.plan import Cuts, SegmentPlan, make_plan
from penstock.segments.segment import Segment
from penstock.segments.stored_variable import StoredVariable
from penstock.segments.tiers import Tiers
from penstock.worker.calls import ON_HOST
from penstock.worker.needs import Need, Other
from penstock.worker.owner import Owner as Executable
from penstock.worker.step import Step

FEW_VALUES = 2  # a slice is cut out of a segment that was compiled for more values of its bounds


class SegmentCall:
    """Runs a segment. If the segment cannot be compiled as a whole, it is cut around the node that prevents it."""

    blocks = False

    def __init__(self, owner: Executable, plan: SegmentPlan) -> None:
        self.owner = owner
        self.plan = plan
        self.device = plan.device
        self._tiers = _shared(owner, plan)
        self.segment = self._tiers.segment  # may have been made for another graph: `plan` is this graph's
        self.name = self.segment.name
        self.in_slots = [*self.segment.in_slots, *self.segment.static_slots]
        self.out_slots = self.segment.out_slots
        self._pieces: Executable | None = None
        # Lists, and memories of control flow, may come from the host in a form that only the host can use.
        kept = {edge for n in plan.nodes if n.op.control_flow for edge in n.inputs}
        self._maybe_host_only = [(owner.slot(e), e) for e in plan.inputs if e[0].dtypes[e[1]] is variant or e in kept]
        # A slice may move with each step, as along a text. Inside the segment it would have it compiled each time.
        self._movable = frozenset(n.name for n in plan.nodes if n.op.numpy and n.name in owner.cuts.specialised)

    @property
    def label(self) -> str:
        """The text for a timeline."""
        return f"{self.name} = Segment({', '.join(n.name for n in self.plan.nodes)})"

    def __call__(self, values: list[Any], step: Step) -> Need | None:
        if self._movable and len(self.segment.specialised) > FEW_VALUES:
            cuts = self.owner.cuts
            self._pieces = self._rebuilt(Cuts(cuts.on_host | self._movable, cuts.specialised - self._movable))
            self._movable = frozenset()
        if self._pieces is None and self._maybe_host_only:
            self._leave_to_host(values)
        if self._pieces is None:
            try:
                return self._tiers(values, step)
            except NotTraceable as error:
                self._pieces = self._cut(error)
            except NeedsThread:
                return Other.THREAD
        if step.wake is not None:
            return Other.THREAD  # pieces compile for each new value, and cannot be retried once they have begun
        edges = self.plan.inputs
        results = self._pieces.run([values[self.owner.slot(e)] for e in edges], step)
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value
        return None

    @functools.cached_property
    def writes(self) -> bool:
        """Tells if it changes variables."""
        return bool(self.segment.updated or self.segment.assigned)

    @functools.cached_property
    def _reading(self) -> Executable:
        subgraph, bound = subgraph_of(self.plan, self.owner)
        return self.owner.inner(make_plan(without_writes(subgraph), self.owner.cuts), bound)

    def without_writes(self, values: list[Any], step: Step) -> Need | None:
        """Computes its results and changes no variable."""
        if step.wake is not None:
            return Other.THREAD
        results = self._reading.run([values[self.owner.slot(e)] for e in self.plan.inputs], step.inner())
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value
        return None

    def _leave_to_host(self, values: list[Any]) -> None:
        """Cuts the segment around nodes whose inputs only the host can use."""
        edges = [e for slot, e in self._maybe_host_only if getattr(values[slot], "host_only", False)]
        if edges:
            takers = {n.name for n in self.plan.nodes if any(e in n.inputs for e in edges)}
            cuts = self.owner.cuts
            self._pieces = self._rebuilt(Cuts(cuts.on_host | takers, cuts.specialised))

    def _cut(self, error: NotTraceable) -> Executable:
        node, cuts = error.node, self.owner.cuts
        if node.op.name in ON_HOST:
            cuts = Cuts(cuts.on_host | {node.name}, cuts.specialised)
        elif node.name not in cuts.specialised and not node.op.control_flow:
            cuts = Cuts(cuts.on_host, cuts.specialised | {node.name})
        else:
            raise UnimplementedError(None, node.name, f"'{node.name}' cannot be compiled: {error}.") from error
        return self._rebuilt(cuts)

    def _rebuilt(self, cuts: Cuts) -> Executable:
        subgraph, bound = subgraph_of(self.plan, self.owner)
        return self.owner.inner(make_plan(subgraph, cuts), bound)


def _shared(owner: Executable, plan: SegmentPlan) -> Tiers:
    """Returns the tiers of a segment: those of the same segment in another graph of the worker, if there is one."""
    shared = owner.context.segments
    # On other devices a segment also writes what is fetched from it to the host, which differs between graphs.
    on_cpu = owner.context.devices[plan.device].device_type == "CPU"
    form = form_of(plan, owner) if shared is not None and on_cpu else None
    if form is None:
        return _tiers(owner, plan)
    tiers: Tiers = shared.get(form) or shared.setdefault(form, _tiers(owner, plan))
    return tiers


def _tiers(owner: Executable, plan: SegmentPlan) -> Tiers:
    context = owner.context
    device = context.devices[plan.device]
    platform = device.device_type.lower()
    segment = Segment(plan, owner, platform, device.jax_device, context.random_state, context.compilations)
    return Tiers(segment, lambda: owner.node_by_node(plan), owner.imagined)


def subgraph_of(plan: SegmentPlan, owner: Executable) -> tuple[Subgraph, dict[Node, StoredVariable]]:
    """Returns a segment as a subgraph whose feeds are the inputs of the segment."""
    arg = registered("_Arg")
    assert arg is not None
    feeds: list[Node] = []
    copies: dict[Edge, Edge] = {}
    for i, edge in enumerate(plan.inputs):
        source, index = edge
        dtype = source.dtypes[index].base_dtype
        attrs = {**(source.attrs if source.op is arg else {}), "T": dtype, "index": i}
        feed = Node(f"_arg/{source.name}:{index}", arg, attrs, (dtype,), device=plan.device)
        feeds.append(feed)
        copies[edge] = (feed, 0)
    bound: dict[Node, StoredVariable] = {}
    copied: dict[Node, Node] = {}
    for node in plan.nodes:
        copy = replace(node, inputs=[], controls=[])
        for edge in node.inputs:
            if edge in copies:
                copy.inputs.append(copies[edge])
            elif edge[0] in copied:
                copy.inputs.append((copied[edge[0]], edge[1]))
            else:
                variable = owner.variable_node(edge)
                assert variable is not None
                bound[variable] = owner.variable(variable)
                copy.inputs.append((variable, 0))
        copy.controls = [copied[c] for c in node.controls if c in copied]
        copied[node] = copy
    fetches = [(copied[n], i) for n, i in plan.outputs]
    nodes = [*feeds, *bound, *copied.values()]
    return Subgraph(nodes, feeds, fetches, []), bound
