"""Node and Subgraph: the form in which passes and workers see a graph. Plain data; nothing here runs anything."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import InvalidArgumentError, OpError
from penstock.graph.dtype import DType
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
    """The name of the node that an error of `node` is about: one in a body of it if the error comes from there."""
    inner = error.op_name or ""
    return inner if "::" in inner else node.name


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

    def __repr__(self) -> str:
        return f"<Node {self.name}: {self.op.name}>"


Edge = tuple[Node, int]

SPLIT = "_split"  # attr of a control-flow node that has a copy in each of several tasks: a number that the copies share
WAVE = "_wave"  # attr of such a copy: the wave in which all copies run

_READS = {"ReadVariableOp": ("VarHandleOp",), "Identity": ("VariableV2", "Variable")}


def is_reference(dtype: DType) -> bool:
    """Tells if an edge of this type stands for a variable, a queue or the like: it does not leave its task."""
    return bool(dtype._is_ref_dtype) or dtype.name == "resource"


def reads_variable(node: Node) -> bool:
    """Whether a node does nothing but read a variable."""
    return node.op.name in _READS and node.inputs[0][0].op.name in _READS[node.op.name]


@dataclass(slots=True)
class Subgraph:
    """The nodes needed for a step in an order in which they can run, what is fed and what is wanted of them."""

    nodes: list[Node]
    feeds: list[Node]  # one _Arg node per fed tensor
    fetches: list[Edge]
    targets: list[Node]


def sorted_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Orders nodes so that inputs come first, ties in the order of their making; InvalidArgumentError on a cycle."""
    members = list(nodes)
    waiting = {id(n): len(n.inputs) + len(n.controls) for n in members}
    consumers: dict[int, list[Node]] = {id(n): [] for n in members}
    for node in members:
        for source, _ in node.inputs:
            consumers[id(source)].append(node)
        for source in node.controls:
            consumers[id(source)].append(node)
    ready = [(n.order, i, n) for i, n in enumerate(members) if waiting[id(n)] == 0]
    heapq.heapify(ready)
    ordered: list[Node] = []
    tick = len(members)
    while ready:
        node = heapq.heappop(ready)[2]
        ordered.append(node)
        for consumer in consumers[id(node)]:
            waiting[id(consumer)] -= 1
            if waiting[id(consumer)] == 0:
                tick += 1
                heapq.heappush(ready, (consumer.order, tick, consumer))
    if len(ordered) < len(members):
        stuck = next(n for n in members if waiting[id(n)] > 0)
        raise InvalidArgumentError(None, stuck.name, f"The graph has a cycle through node '{stuck.name}'.")
    return ordered


def needed(nodes: list[Node], feeds: list[Node], fetches: list[Edge], targets: list[Node]) -> list[Node]:
    """The feeds, and the nodes that fetches and targets depend on."""
    alive = {id(n) for n in feeds}
    stack = [n for n, _ in fetches] + list(targets)
    while stack:
        node = stack.pop()
        if id(node) not in alive or node in feeds:
            alive.add(id(node))
            stack += [s for s, _ in node.inputs if id(s) not in alive]
            stack += [s for s in node.controls if id(s) not in alive]
    return [n for n in nodes if id(n) in alive]
