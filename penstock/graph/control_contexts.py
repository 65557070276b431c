"""Finds the branches and loops that the nodes of an old graph are in, from its Switch, Merge, Enter and Exit nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence

from tensorboard.compat.proto.node_def_pb2 import NodeDef

SWITCH = frozenset(("Switch", "RefSwitch"))
MERGE = frozenset(("Merge", "RefMerge"))
ENTER = frozenset(("Enter", "RefEnter"))
EXIT = frozenset(("Exit", "RefExit"))
NEXT = frozenset(("NextIteration", "RefNextIteration"))
CONTROL_FLOW = SWITCH | MERGE | ENTER | EXIT | NEXT | {"LoopCond"}
MAX_NESTING = 32

Entry = tuple[str, str, int]  # ("loop", frame, 0), or ("cond", predicate, branch)
Context = tuple[Entry, ...]
DEAD: Context = (("dead", "", 0),)  # a node that would need both branches at once


def split_name(name: str) -> tuple[str, int]:
    """Splits `x` or `x:1` into (node, output); a name whose index is no number names no node."""
    node, colon, index = name.rpartition(":")
    if colon and index.isascii() and index.isdigit() and len(index) < 10:
        return node, int(index)
    return name, 0


def topological(names: Sequence[str], sources: Callable[[str], Iterable[str]]) -> list[str]:
    """Sorts `names` so that sources come first, otherwise in the given order; names in a cycle are left out."""
    position = {name: i for i, name in enumerate(names)}
    consumers: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for name in names:
        for source in sources(name):
            consumers[source].append(name)
            waiting[name] += 1
    ready = [position[name] for name, count in waiting.items() if count == 0]
    ordered = []
    while ready:
        name = names[heapq.heappop(ready)]
        ordered.append(name)
        for consumer in consumers[name]:
            waiting[consumer] -= 1
            if waiting[consumer] == 0:
                heapq.heappush(ready, position[consumer])
    return ordered


class Contexts:
    """Finds the branches and loops that each node of a list is in."""

    def __init__(self, nodes: dict[str, NodeDef], mapped: Collection[str]) -> None:
        self.nodes = nodes
        self.mapped = mapped
        self.data: dict[str, list[tuple[str, int]]] = {}
        self.control: dict[str, list[str]] = {}
        for name, node in nodes.items():
            self.data[name] = [split_name(t) for t in node.input if not t.startswith("^")]
            self.control[name] = [t[1:] for t in node.input if t.startswith("^") and t not in mapped]
            self._check_arity(node)
        merges = [name for name, node in nodes.items() if node.op in MERGE]
        self.loop_merges = {name for name in merges if any(self.op(s) in NEXT for s, _ in self.data[name])}
        self.order = topological(list(nodes), self.forward)
        if len(self.order) < len(nodes):
            raise ValueError(f"{len(nodes) - len(self.order)} nodes wait for each other in a cycle.")
        self.position = {name: i for i, name in enumerate(self.order)}
        self.frames: dict[str, Context] = {}  # the context in which the loop of a frame runs
        self.context: dict[str, Context] = {}
        self._find_contexts()

    def op(self, name: str) -> str:
        """The op type of a node; '' if the node does not exist."""
        return self.nodes[name].op if name in self.nodes else ""

    def _check_arity(self, node: NodeDef) -> None:
        needs = 2 if node.op in SWITCH | MERGE else 1
        if node.op in CONTROL_FLOW and len(self.data[node.name]) != needs:
            raise ValueError(
                f"Node '{node.name}' ({node.op}) has {len(self.data[node.name])} inputs, only {needs} can be raised."
            )

    def sources(self, name: str) -> list[str]:
        """The nodes that are inputs or control inputs of a node."""
        known = [s for s, i in self.data[name] if s in self.nodes and f"{s}:{i}" not in self.mapped]
        return known + [c for c in self.control[name] if c in self.nodes]

    def forward(self, name: str) -> list[str]:
        """The sources of a node without the back edges of loops."""
        sources = self.sources(name)
        return [s for s in sources if self.op(s) not in NEXT] if name in self.loop_merges else sources

    def is_loop_switch(self, name: str) -> bool:
        """Tells if a Switch decides between the next iteration and the end of a loop."""
        return self.op(name) in SWITCH and self.op(self.data[name][1][0]) == "LoopCond"

    def predicate(self, switch: str) -> str:
        """The tensor that decides a Switch. Tensors that only pass it on give the same name."""
        source, index = self.data[switch][1]
        while True:
            key = self.resolved(source, index)
            source, index = split_name(key)
            if self.op(source) != "Identity" or key in self.mapped:
                return key
            source, index = self.data[source][0]

    def resolved(self, source: str, index: int) -> str:
        """Follows a tensor back through Switch and Enter, which only pass it on."""
        while True:
            key = f"{source}:{index}"
            op = self.op(source)
            if key in self.mapped or not (op in SWITCH or op in ENTER or op == "LoopCond"):
                return key
            source, index = self.data[source][0]

    def context_of(self, source: str, index: int) -> Context:
        """The context of a tensor: each output of a Switch is in a branch."""
        context: Context = () if f"{source}:{index}" in self.mapped else self.context.get(source, ())
        if self.op(source) in SWITCH and not self.is_loop_switch(source) and context != DEAD:
            if index not in (0, 1):
                raise ValueError(f"Node '{source}' (Switch) has no output {index}.")
            return (*context, ("cond", self.predicate(source), index))
        return context

    def _find_contexts(self) -> None:
        # The context of a frame is known when all its Enters are: each round finds at least one more level.
        for _ in range(MAX_NESTING):
            before = dict(self.frames)
            for name in self.order:
                context = self._own_context(name)
                if len(context) > MAX_NESTING:
                    raise ValueError(f"Node '{name}' is in more than {MAX_NESTING} conditionals and loops.")
                self.context[name] = context
            if self.frames == before:
                return
        raise ValueError(f"Loops are nested more than {MAX_NESTING} deep.")

    def _own_context(self, name: str) -> Context:
        op = self.op(name)
        if op in MERGE:
            return self._merged(name)
        inputs = [self.context_of(s, i) for s, i in self.data[name] if s in self.nodes]
        context = self._joined(name, [*inputs, *(self.context[c] for c in self.control[name] if c in self.nodes)])
        if op in ENTER and context != DEAD:
            frame = self.nodes[name].attr["frame_name"].s.decode("utf-8", "replace")
            context = self.frames[frame] = self._joined(name, [context, self.frames.get(frame, ())])
            return (*context, ("loop", frame, 0))
        if op in EXIT and context != DEAD:
            if not context or context[-1][0] != "loop":
                raise ValueError(f"Node '{name}' ({op}) is not in a loop.")
            return context[:-1]
        return context

    def _joined(self, name: str, contexts: Iterable[Context]) -> Context:
        """The innermost of several contexts, which must be nested."""
        innermost: Context = ()
        for context in contexts:
            inner, outer = (context, innermost) if len(context) > len(innermost) else (innermost, context)
            if DEAD in (inner, outer):
                innermost = DEAD
                continue
            differs = next((k for k, (a, b) in enumerate(zip(inner, outer, strict=False)) if a != b), None)
            if differs is None:
                innermost = inner
            elif inner[differs][:2] == outer[differs][:2]:
                innermost = DEAD
            else:
                raise ValueError(
                    f"Node '{name}' ({self.op(name)}) takes inputs from two conditionals or loops that do not lie in "
                    f"each other: {where(inner)} and {where(outer)}."
                )
        return innermost

    def _merged(self, name: str) -> Context:
        if name in self.loop_merges:
            enters = [s for s, _ in self.data[name] if self.op(s) in ENTER]
            if len(enters) != 1:
                raise ValueError(f"Node '{name}' (Merge) of a loop must take one Enter and one NextIteration.")
            return self.context[enters[0]]
        one, other = (self.context_of(s, i) for s, i in self.data[name])
        if one == other == DEAD:
            return DEAD
        fits = one and other and one[:-1] == other[:-1] and one[-1][:2] == other[-1][:2] and one[-1] != other[-1]
        if not fits or one[-1][0] != "cond":
            raise ValueError(
                f"Node '{name}' (Merge) does not join the two branches of one conditional: its inputs are in "
                f"{where(one)} and {where(other)}."
            )
        return one[:-1]


def where(context: Context) -> str:
    """Describes a context in words."""
    if not context:
        return "no conditional"
    kind, name, branch = context[-1]
    return f"the loop '{name}'" if kind == "loop" else f"branch {branch} of the conditional on '{name}'"
