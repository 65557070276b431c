"""Node and Subgraph: the form in which passes and workers see a graph. Plain data; nothing here runs anything."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from penstock.errors import InvalidArgumentError, OpError
from penstock.graph.dtype import DType, resource
from penstock.graph.opdef import OpDef


class NameInBody(str):
    """The name of a node in a body. Errors take its `path`, since two bodies may have nodes of one name.

    >>> NameInBody("add", "while_body_1").path
    'while_body_1::add'
    """

    __slots__ = ("body",)
    body: str

    def __new__(cls, name: str, body: str) -> NameInBody:
        self = super().__new__(cls, name)
        self.body = body
        return self

    @property
    def path(self) -> str:
        return f"{self.body}::{self}"


def blamed(error: OpError, node: Node) -> str:
    """The name of the node that an error of `node` is about: one in a body of it, or one that it stands for."""
    inner = error.op_name or ""
    return inner if "::" in inner or inner in node.attrs.get("stands_for", ()) else node.name


@dataclass(slots=True, eq=False)
class Node:
    """One operation. An edge is a pair (node, output index)."""

    name: str
    op: OpDef
    attrs: dict[str, Any]
    dtypes: tuple[DType, ...]
    inputs: list[tuple[Node, int]] = field(default_factory=list)
    controls: list[Node] = field(default_factory=list)
    device: str = ""
    order: int = 0  # the order in which the program made the nodes
    on_host: bool = False  # runs in NumPy although it could be compiled

    def __repr__(self) -> str:
        return f"<Node {self.name}: {self.op.name}>"


Edge = tuple[Node, int]


def sources_of(node: Node) -> list[Node]:
    """The nodes that a node takes something from or waits for; one may come several times."""
    return [*(source for source, _ in node.inputs), *node.controls]


GATHERS = frozenset(("Gather", "GatherV2", "ResourceGather"))  # they take rows of their first input

# Attr of a control-flow node that is over several devices, so that the ops in its bodies are placed: a number. The node
# may have a copy in each of several tasks; these share the number.
SPLIT = "_split"
WAVE = "_wave"  # attr of such a node: the wave in which all copies run

VARIABLES = frozenset(("VarHandleOp", "Variable", "VariableV2"))
_READS = {"ReadVariableOp": ("VarHandleOp",), "Identity": ("VariableV2", "Variable")}


def is_reference(dtype: DType) -> bool:
    """Tells if an edge of this type stands for a variable, a queue or the like: it does not leave its task."""
    return dtype._is_ref_dtype or dtype is resource


def reads_variable(node: Node) -> bool:
    """Tells if a node does nothing but read a variable."""
    return node.op.name in _READS and node.inputs[0][0].op.name in _READS[node.op.name]


@dataclass(slots=True)
class Subgraph:
    """The nodes needed for a step in an order in which they can run, what is fed and what is wanted of them."""

    nodes: list[Node]
    feeds: list[Node]  # one _Arg node per fed tensor
    fetches: list[Edge]
    targets: list[Node]


class Replacements(dict[Node, Node]):
    """Maps nodes that a pass replaces to new ones. Passes change no node: all nodes after a new one are new, too."""

    def followed_by(self, node: Node) -> Node:
        """A node behind those that were replaced so far: itself if none of its sources was."""
        for source, _ in node.inputs:
            if source in self:
                break
        else:
            if not any(source in self for source in node.controls):
                return node
        get = self.get
        inputs = [(get(s, s), i) for s, i in node.inputs]
        controls = list(dict.fromkeys([get(s, s) for s in node.controls])) if node.controls else node.controls
        return Node(
            node.name, node.op, node.attrs, node.dtypes, inputs, controls, node.device, node.order, node.on_host
        )

    def applied_to(self, subgraph: Subgraph, nodes: list[Node]) -> Subgraph:
        """A subgraph of `nodes` that takes and gives what `subgraph` does."""
        get = self.get
        fetches = [(get(n, n), i) for n, i in subgraph.fetches]
        return Subgraph(nodes, [get(n, n) for n in subgraph.feeds], fetches, [get(n, n) for n in subgraph.targets])


Uses = dict[Node, list[tuple[Node, int, int]]]  # of a node: its consumers, each with its input and our output


def uses_of(subgraph: Subgraph) -> Uses:
    """The consumers of each node."""
    uses: Uses = defaultdict(list)
    for node in subgraph.nodes:
        for i, (source, index) in enumerate(node.inputs):
            uses[source].append((node, i, index))
    return uses


def visible_nodes(subgraph: Subgraph) -> set[Node]:
    """The nodes that are more than inputs of others: fetched, targets, or waited for."""
    waited_for = (source for node in subgraph.nodes for source in node.controls)
    return {*(node for node, _ in subgraph.fetches), *subgraph.targets, *waited_for}


def rewritten(subgraph: Subgraph, change: Callable[[Node], list[Node]]) -> Subgraph:
    """A subgraph with the nodes that `change` gives for each: itself, others, the last of which stands for it, or none.

    >>> rewritten(subgraph, lambda node: [] if node.op.name == "Assert" else [node])
    """
    replaced = Replacements()
    nodes: list[Node] = []
    for node in subgraph.nodes:
        given = change(node)
        for part in given:
            nodes.append(replaced.followed_by(part))
            if nodes[-1] is not part:
                replaced[part] = nodes[-1]
        if given and nodes[-1] is not node:
            replaced[node] = nodes[-1]
    return replaced.applied_to(subgraph, nodes)


def like(
    node: Node, name: str, op: OpDef, attrs: dict[str, Any], dtypes: tuple[DType, ...], inputs: list[Edge]
) -> Node:
    """A new node where another one is."""
    return Node(name, op, attrs, dtypes, inputs, [], node.device, node.order)


def sorted_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Orders nodes so that inputs come first, ties in the order of their making; InvalidArgumentError on a cycle."""
    members = sorted(nodes, key=attrgetter("order"))
    if _is_in_order(members):  # as programs make most graphs
        return members
    waiting = {n: len(n.inputs) + len(n.controls) for n in members}
    consumers: dict[Node, list[Node]] = {n: [] for n in members}
    for node in members:
        for source, _ in node.inputs:
            consumers[source].append(node)
        for source in node.controls:
            consumers[source].append(node)
    ready = [(n.order, i, n) for i, n in enumerate(members) if waiting[n] == 0]
    heapq.heapify(ready)
    ordered: list[Node] = []
    tick = len(members)
    while ready:
        node = heapq.heappop(ready)[2]
        ordered.append(node)
        for consumer in consumers[node]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                tick += 1
                heapq.heappush(ready, (consumer.order, tick, consumer))
    if len(ordered) < len(members):
        stuck = next(n for n in members if waiting[n] > 0)
        raise InvalidArgumentError(None, stuck.name, f"The graph has a cycle through node '{stuck.name}'.")
    return ordered


def _is_in_order(nodes: Iterable[Node]) -> bool:
    before: set[Node] = set()
    for node in nodes:
        for source, _ in node.inputs:
            if source not in before:
                return False
        for source in node.controls:
            if source not in before:
                return False
        before.add(node)
    return True


def without_unused(subgraph: Subgraph) -> Subgraph:
    """The subgraph without the nodes that neither fetches nor targets depend on."""
    alive = {*subgraph.feeds, *subgraph.targets, *(n for n, _ in subgraph.fetches)}
    stack = list(alive)
    while stack:
        node = stack.pop()
        sources = [s for s, _ in node.inputs if s not in alive] + [s for s in node.controls if s not in alive]
        alive.update(sources)
        stack += sources
    nodes = [n for n in subgraph.nodes if n in alive]
    return Subgraph(nodes, subgraph.feeds, subgraph.fetches, subgraph.targets)
