"""Turns the control flow of old graphs (Switch and Merge, Enter and Exit) into conditionals and loops with bodies.

TensorFlow 1 wrote `tf.cond` and `tf.while_loop` as plain nodes: a Switch sends its input to one of two outputs; nodes
that depend on the other output are dead and do not run; a Merge takes the input that is alive. A loop is a frame: Enter
goes in, Exit comes out, NextIteration goes back to a Merge. Here every node gets a *context*, the branches and loops
that it is in, and each context becomes a body. This module builds no nodes: `raised` turns a list of NodeDefs into a
list that also holds `Cond` and `Loop`, from which the importer makes If and While nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.graph.control_contexts import (
    CONTROL_FLOW,
    DEAD,
    ENTER,
    EXIT,
    MERGE,
    NEXT,
    SWITCH,
    Context,
    Contexts,
    split_name,
)
from penstock.graph.opdef import registered

_STACKS = frozenset(
    ("StackV2", "StackPushV2", "StackPopV2", "StackCloseV2", "Stack", "StackPush", "StackPop", "TensorArrayGradV3")
)
_CHEAP = frozenset(("Const", "Identity", "NoOp"))  # too cheap to merge two conditionals for


@dataclass
class Cond:
    """A conditional: `outputs` are (name of the Merge, or '', tensor if true, tensor if false); None where unused."""

    name: str
    predicate: str
    branches: tuple[list[Item], list[Item]]  # if false, if true
    outputs: list[tuple[str, str | None, str | None]]
    device: str = ""
    op: str = "Merge"
    input: list[str] = field(default_factory=list)

    def provides(self) -> list[str]:
        """The names of the operations that this becomes."""
        return [self.name, *(merge for merge, _, _ in self.outputs if merge)]


@dataclass
class Variable:
    """A loop variable: its Merge, the tensors before the loop and after an iteration, and the Exits."""

    merge: str
    start: str
    after: str
    exits: list[str]


@dataclass
class Loop:
    """A loop: the tensor that decides if it continues, and the nodes that this tensor and an iteration need."""

    name: str
    variables: list[Variable]
    condition: str
    test: list[Item]
    body: list[Item]
    parallel_iterations: int = 10
    device: str = ""
    op: str = "Exit"
    input: list[str] = field(default_factory=list)

    def provides(self) -> list[str]:
        """The names of the operations that this becomes."""
        return [self.name, *(e for v in self.variables for e in v.exits)]


Item: TypeAlias = NodeDef | Cond | Loop


def provided(item: Item) -> list[str]:
    """The names of the operations that an item becomes."""
    return [item.name] if isinstance(item, NodeDef) else item.provides()


def raised(nodes: dict[str, NodeDef], mapped: Collection[str] = ()) -> list[Item]:
    """Replaces Switch, Merge, Enter and Exit by conditionals and loops; ValueError if that is not possible.

    `mapped` are tensors that come from outside the GraphDef.
    """
    if not any(node.op in CONTROL_FLOW for node in nodes.values()):
        return list(nodes.values())
    for node in nodes.values():
        if node.op in _STACKS:
            raise ValueError(
                f"Node '{node.name}' ({node.op}): this graph holds the gradient of a while loop in the form of "
                "TensorFlow 1, which keeps values of iterations on stacks and has no counterpart here. Import the "
                "graph without its gradients (tf.graph_util.extract_sub_graph), then call tf.gradients."
            )
    return _Raiser(nodes, mapped).run()


class _Raiser(Contexts):
    def run(self) -> list[Item]:
        """All nodes outside of branches and loops, with the conditionals and loops among them."""
        items, _ = self.region((), {n for n in self.nodes if self.context[n] != DEAD}, {})
        return items

    # Regions

    def ancestors(self, starts: Iterable[str], region: Context, stop: Collection[str] = ()) -> set[str]:
        """The nodes of `region`, and of the regions in it, that `starts` depend on."""
        depth = len(region)
        found: set[str] = set()
        waiting = [s for s in starts if s in self.nodes]
        while waiting:
            name = waiting.pop()
            if name in found or name in stop or self.context[name][:depth] != region:
                continue
            if self.context[name] == DEAD:
                raise ValueError(f"Node '{name}' would need both branches of a conditional to run.")
            found.add(name)
            waiting += self.sources(name)
        return found

    def region(self, where: Context, needed: set[str], moved: dict[str, str]) -> tuple[list[Item], list[str]]:
        """The items of one body, and the outer operations that they wait for.

        `moved` are tensors that an earlier conditional with the same predicate provides.
        """
        ordered = sorted(needed, key=self.position.__getitem__)
        here = [n for n in ordered if self.context[n] == where]
        items: list[Item] = [self._rewritten(n, moved) for n in here if self.op(n) not in CONTROL_FLOW]
        deeper = [n for n in ordered if self._begins_loop(n, where)]
        for frame in dict.fromkeys(self.context[n][len(where)][1] for n in deeper):
            loop = self.loop(frame, where, needed, moved)
            if loop is not None:
                items.append(loop)
        merges = [n for n in here if self.op(n) in MERGE and n not in self.loop_merges]
        items += self.conditionals(where, merges, needed, moved)
        return items, self._separate_outer(items)

    def _begins_loop(self, name: str, where: Context) -> bool:
        context = self.context[name]
        return len(context) > len(where) and context[: len(where)] == where and context[len(where)][0] == "loop"

    def _rewritten(self, name: str, moved: dict[str, str]) -> NodeDef:
        node = NodeDef()
        node.CopyFrom(self.nodes[name])
        del node.input[:]
        for source, index in self.data[name]:
            if self.op(source) in MERGE and index == 1:
                raise ValueError(f"Node '{name}': output 1 of the Merge '{source}' is not supported.")
            node.input.append(self._tensor(source, index, moved))
        node.input.extend(f"^{c}" for c in self._controls(name))
        return node

    def _tensor(self, source: str, index: int, moved: dict[str, str]) -> str:
        key = self.resolved(source, index)
        return moved.get(key, key)

    def _controls(self, name: str) -> list[str]:
        """The operations that a node waits for, with the nodes that vanish replaced by their sources."""
        found: dict[str, None] = {}
        for control in self.control[name]:
            while self.op(control) in SWITCH | ENTER | {"LoopCond"}:
                control = split_name(self.resolved(*self.data[control][0]))[0]
            if control not in self.loop_merges and self.op(control) not in NEXT:
                found[control] = None
        return list(found)

    def _separate_outer(self, items: list[Item]) -> list[str]:
        """Removes control inputs that are not among `items`; the node that holds the body waits for them instead."""
        names = {n for item in items for n in provided(item)}
        outer: dict[str, None] = {}
        for item in items:
            away = [t for t in item.input if t.startswith("^") and t[1:] not in names and t not in self.mapped]
            for text in away:
                item.input.remove(text)
                outer[text[1:]] = None
        return list(outer)

    # Loops

    def loop(self, frame: str, where: Context, needed: set[str], moved: dict[str, str]) -> Loop | None:
        """The loop of a frame; None if nothing needed comes out of it."""
        inside = (*where, ("loop", frame, 0))
        members = [n for n in self.order if self.context[n] == inside]
        merges = [n for n in members if n in self.loop_merges and n in needed]
        conditions = [n for n in members if self.op(n) == "LoopCond"]
        exits: dict[str, list[str]] = {}
        for name in self.order:
            if self.op(name) in EXIT and self.context[name] == where and name in needed:
                switch = self.data[name][0][0]
                if self.is_loop_switch(switch) and self.context[switch] == inside:
                    exits.setdefault(self.data[switch][0][0], []).append(name)
        if not exits:
            return None
        if len(conditions) != 1:
            raise ValueError(f"The loop '{frame}' has {len(conditions)} LoopCond nodes, it must have one.")
        stop = {*merges, *(n for n in members if self.is_loop_switch(n))}
        for name in exits:
            if name not in merges:
                raise ValueError(f"The loop '{frame}': '{exits[name][0]}' (Exit) leaves it from no Merge.")
        variables = []
        after = []
        for merge in merges:
            (enter, _), (following, _) = sorted(self.data[merge], key=lambda edge: self.op(edge[0]) in NEXT)
            after.append(self.data[following][0][0])
            variables.append(
                Variable(
                    f"{merge}:0",
                    self._tensor(*self.data[enter][0], moved),
                    self._tensor(*self.data[following][0], moved),
                    exits.get(merge, []),
                )
            )
        test, waits = self.region(inside, self.ancestors([self.data[conditions[0]][0][0]], inside, stop), moved)
        body, more = self.region(inside, self.ancestors(after, inside, stop), moved)
        first = next(e for v in variables for e in v.exits)
        result = Loop(
            self._fresh(f"{first}/While"),
            variables,
            self._tensor(*self.data[conditions[0]][0], moved),
            test,
            body,
            device=self.nodes[first].device,
        )
        result.parallel_iterations = next(
            (max(1, self.nodes[n].attr["parallel_iterations"].i) for n in members if self.op(n) in ENTER), 10
        )
        parameters = {v.merge for v in variables}
        free = [*_free(test, [result.condition]), *_free(body, [v.after for v in variables])]
        starts = [v.start for v in variables]
        result.input = list(dict.fromkeys([*starts, *(t for t in free if t not in parameters)]))
        enters = [c for n in members if self.op(n) in ENTER for c in self._controls(n)]
        result.input += [f"^{c}" for c in dict.fromkeys([*waits, *more, *enters])]
        return result

    # Conditionals

    def conditionals(self, where: Context, merges: list[str], needed: set[str], moved: dict[str, str]) -> list[Cond]:
        """The conditionals that compute `merges`; merges that share work belong to the same conditional."""
        if not merges:
            return []
        levels = self._levels(where, merges, needed)
        work: dict[str, set[str]] = {}
        for merge in merges:
            predicate = self._predicate_of(merge)
            work[merge] = {
                n
                for source, index in self.data[merge]
                for n in self.ancestors([source], (*where, ("cond", predicate, self._branch(source, index))))
            }
        groups = self._groups(merges, levels, work)
        handed: dict[str, str] = {}  # results of nodes with effects, as outputs of the conditional that ran them
        built: list[Cond] = []
        done: set[str] = set()
        for group in sorted(groups, key=lambda g: levels[g[0]]):
            cond = self._conditional(where, group, work, done, {**moved, **handed}, groups, handed)
            done |= {n for m in group for n in work[m] if self._has_effects(n)}
            built.append(cond)
        return built

    def _predicate_of(self, merge: str) -> str:
        source, index = self.data[merge][0]
        return self.context_of(source, index)[-1][1]

    def _branch(self, source: str, index: int) -> int:
        return self.context_of(source, index)[-1][2]

    def _has_effects(self, name: str) -> bool:
        op = self.op(name)
        op_def = None if op in CONTROL_FLOW else registered(op)
        return op_def is not None and (op_def.stateful or op_def.random or bool(op_def.writes))

    def _levels(self, where: Context, merges: list[str], needed: set[str]) -> dict[str, int]:
        """The depth of each node in conditionals that depend on each other; two merges of a level are independent."""
        chosen = set(merges)
        level = dict.fromkeys(self.nodes, 0)
        frames: dict[str, int] = {}  # a loop counts as one node: all that leaves it comes after all that enters
        depth = len(where)
        for _ in range(len(merges) + 2):
            changed = False
            for name in self.order:
                if name not in needed:
                    continue
                found = max((level[s] for s in self.forward(name)), default=0) + (name in chosen)
                if self._begins_loop(name, where):
                    frame = self.context[name][depth][1]
                    frames[frame] = found = max(found, frames.get(frame, 0))
                if found != level[name]:
                    level[name] = found
                    changed = True
            if not changed:
                return level
        raise ValueError(f"The conditional of '{merges[0]}' waits for itself.")

    def _groups(self, merges: list[str], level: dict[str, int], work: dict[str, set[str]]) -> list[list[str]]:
        leader = {m: m for m in merges}

        def find(merge: str) -> str:
            while leader[merge] != merge:
                merge = leader[merge]
            return merge

        effects = {m: {n for n in work[m] if self._has_effects(n)} for m in merges}
        owner: dict[tuple[str, str, int], str] = {}
        for merge in merges:
            # A result without effects must not trigger the effects of another: it may be fetched alone.
            shared = effects[merge] or {n for n in work[merge] if self.op(n) not in CONTROL_FLOW | _CHEAP}
            for name in shared:
                first = owner.setdefault((name, self._predicate_of(merge), level[merge]), merge)
                if bool(effects[first]) == bool(effects[merge]):
                    leader[find(merge)] = find(first)
        groups: dict[str, list[str]] = {}
        for merge in merges:
            groups.setdefault(find(merge), []).append(merge)
        return list(groups.values())

    def _conditional(
        self,
        where: Context,
        group: list[str],
        work: dict[str, set[str]],
        done: set[str],
        moved: dict[str, str],
        groups: list[list[str]],
        handed: dict[str, str],
    ) -> Cond:
        predicate = self._predicate_of(group[0])
        outputs: list[tuple[str, str | None, str | None]] = []
        needed: tuple[set[str], set[str]] = (set(), set())
        inside = [(*where, ("cond", predicate, k)) for k in (0, 1)]
        for merge in group:
            ends: dict[int, str] = {}
            for source, index in self.data[merge]:
                branch = self._branch(source, index)
                ends[branch] = self._tensor(source, index, moved)
                needed[branch].update(self.ancestors([source], inside[branch], done))
            outputs.append((merge, ends[1], ends[0]))
        name = self._fresh(f"{group[0]}/If")
        self._hand_over(name, where, group, work, done, groups, outputs, handed, moved)
        bodies, waits = [], []
        for k in (0, 1):
            items, outer = self.region(inside[k], needed[k], moved)
            bodies.append(items)
            waits += outer
        then, otherwise = ([t for t in (o[1 + k] for o in outputs) if t is not None] for k in (0, 1))
        result = Cond(name, predicate, (bodies[0], bodies[1]), outputs, self.nodes[group[0]].device)
        result.input = list(dict.fromkeys([predicate, *_free(bodies[0], otherwise), *_free(bodies[1], then)]))
        merged = [c for m in group for c in self._controls(m)]
        result.input += [f"^{c}" for c in dict.fromkeys([*waits, *merged])]
        return result

    def _hand_over(
        self,
        name: str,
        where: Context,
        group: list[str],
        work: dict[str, set[str]],
        done: set[str],
        groups: list[list[str]],
        outputs: list[tuple[str, str | None, str | None]],
        handed: dict[str, str],
        moved: dict[str, str],
    ) -> None:
        """Adds outputs for nodes with effects that later conditionals use as well, since such a node must run once."""
        mine = {n for m in group for n in work[m] if n not in done and self._has_effects(n)}
        if not mine:
            return
        others = set().union(*(work[m] for g in groups if g is not group for m in g))
        shared = sorted(mine & others, key=self.position.__getitem__)
        for node in shared:
            context = self.context[node]
            if len(context) != len(where) + 1:
                raise ValueError(
                    f"Node '{node}' ({self.op(node)}) is inside a conditional or loop within one conditional, and used "
                    "by another: it cannot run once for both."
                )
            users = [*others, *(m for g in groups if g is not group for m in g)]
            used = {i for user in users for source, i in self.data[user] if source == node}
            for index in sorted(used):
                tensor = f"{node}:{index}"
                handed[tensor] = f"{name}:{len(outputs)}"
                branch = context[-1][2]
                outputs.append(("", tensor if branch else None, None if branch else tensor))

    def _fresh(self, name: str) -> str:
        while name in self.nodes:
            name += "_"
        return name


def _free(items: Sequence[Item], ends: Iterable[str]) -> list[str]:
    """The tensors that a body takes from outside."""
    names = {n for item in items for n in provided(item)}
    used = [t for item in items for t in item.input if not t.startswith("^")]
    return [t for t in dict.fromkeys([*used, *ends]) if split_name(t)[0] not in names]
