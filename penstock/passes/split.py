"""Split: a loop or conditional whose bodies touch several tasks becomes one copy of it in each of them.

The ops of a body are placed as those of a graph are: an op that takes a captured variable is where the variable is, one
that asks for a device is there, and the rest is where the control-flow node is, in its *home* task. If this makes
several tasks, each gets a copy of the node whose bodies hold its ops, with a Send and a Recv inside a body on every
edge between them. All copies take the same turns: an If gets its predicate in every task, and the home task of a While
tells the others in each iteration whether the loop goes on. So the ops of a branch run, in whatever task, only if the
branch does.

A tensor that an If captures is taken in the task that it comes from, if this has a copy, else in the home task. The
variables of a loop live in its home task. What a loop captures and does not change goes once to each task that takes
it. Results are given in the home task.

If the variables that the bodies use are on several devices of one task, the node stays one, and the ops of its bodies
are placed: the task runs it on the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.graph.function import Function
from penstock.graph.graph import Graph
from penstock.ops.array.creation import const
from penstock.passes.ir import SPLIT, Edge, Node, Subgraph, is_reference, rewritten, sources_of
from penstock.passes.partition import Cut, task_of
from penstock.passes.place import SPLIT_OPS, colocated_with, place, with_devices
from penstock.passes.portable import function_of
from penstock.passes.prune import body_of
from penstock.passes.sparse_updates import sum_before_sending


def devices_in(nodes: Sequence[Node]) -> set[str]:
    """The devices that nodes and their bodies name."""
    found = {node.device for node in nodes if node.device}
    for node in nodes:
        for function in _bodies(node).values():
            found |= _devices_of(function)
    return found


def _devices_of(function: Function) -> set[str]:
    """The devices that a body names, worked out once."""
    found: set[str] | None = function.derived.get("devices")
    if found is None:
        found = function.derived["devices"] = devices_in(body_of(function).nodes)
    return found


def split(
    subgraph: Subgraph,
    devices: Sequence[str],
    soft: bool,
    keys: Iterator[int],
    wish_for: Callable[[str], str] = lambda device: device,
) -> Subgraph:
    """A placed subgraph with a copy of each control-flow node in every task that its bodies touch.

    The bodies of a node that takes variables of several devices of one task are placed. `keys` numbers the Sends of a
    signature. `wish_for` gives the device for one that a body names, whose task may have left. A subgraph without such
    nodes is returned as it is.

    >>> keys = itertools.count()
    >>> partition(split(subgraph, devices, soft=False, keys=keys), keys)
    """
    return _Splitter(devices, soft, keys, wish_for).split(subgraph, {})


def _bodies(node: Node) -> dict[str, Function]:
    """The bodies of an If or While by the names of their attrs; other nodes run theirs as a whole."""
    if node.op.name not in SPLIT_OPS:
        return {}
    return {name: value for name, value in node.attrs.items() if isinstance(value, Function)}


class _Splitter:
    def __init__(self, devices: Sequence[str], soft: bool, keys: Iterator[int], wish_for: Callable[[str], str]) -> None:
        self._devices, self._soft, self._keys, self._wish_for = devices, soft, keys, wish_for

    def split(self, subgraph: Subgraph, outside: dict[str, str]) -> Subgraph:
        """`outside` has the devices of the nodes around a body, by name."""
        if not any(map(self._may_touch_others, subgraph.nodes)):
            return subgraph
        device_of = {**outside, **{node.name: node.device for node in subgraph.nodes}}
        new: dict[Node, list[Node]] = {}  # of a split node, the one in its home task first
        given: dict[Node, list[int]] = {}  # of a split node: which of its outputs the copy in its home task has

        def output(edge: Edge) -> Edge:
            source, index = edge
            return new[source][0], given[source].index(index) if source in given else index

        for node in subgraph.nodes:
            inputs = [output(edge) for edge in node.inputs]
            controls = [c for s in node.controls for c in new[s]]
            following = replace(node, inputs=inputs, controls=controls)
            made = self._copies(following, device_of) if self._may_touch_others(following) else following
            if isinstance(made, Node):
                new[node] = [made]
            else:
                new[node] = made.nodes()
                given[node] = made.outputs(made.home)
        return Subgraph(
            [n for nodes in new.values() for n in nodes],
            [new[n][0] for n in subgraph.feeds],
            [output(edge) for edge in subgraph.fetches],
            [n for target in subgraph.targets for n in new[target]],
        )

    def _may_touch_others(self, node: Node) -> bool:
        """Tells if a node has bodies that name devices, or take references to something on another device."""
        bodies = _bodies(node)
        return bool(bodies) and (_takes_from_others(node) or any(map(_devices_of, bodies.values())))

    def _copies(self, node: Node, device_of: dict[str, str]) -> _Copies | Node:
        """The copies of a node, or a single node if all of it is in its home task."""
        bodies = {name: self._placed(function, node, device_of) for name, function in _bodies(node).items()}
        tasks = self._tasks(node, bodies)
        if len(tasks) == 1 and not (_takes_from_others(node) and _is_over_devices(node, bodies)):
            return node
        if node.op.name == "WhileTripCount":
            return _uncounted(node)
        if len(tasks) > 1:
            return _Copies(node, bodies, tasks, self._keys)
        placed = {name: function_of(node.attrs[name].name, body, Graph()) for name, body in bodies.items()}
        return replace(node, attrs={**node.attrs, **placed, SPLIT: next(self._keys)})

    def _tasks(self, node: Node, bodies: dict[str, Subgraph]) -> dict[str, str]:
        """The tasks that the bodies of a node touch, with a device of each."""
        home = task_of(node.device)
        tasks = {home: node.device}
        for name, body in bodies.items():
            used = {s for n in body.nodes for s in sources_of(n)}
            if name != "body":  # a loop hands on what it does not change without looking at it
                used |= {n for n, _ in body.fetches}
            idle = set(body.feeds) - used
            tasks.update((task_of(n.device), n.device) for n in body.nodes if n not in idle)
        return {**tasks, home: node.device}

    def _placed(self, function: Function, node: Node, device_of: dict[str, str]) -> Subgraph:
        """A body with all ops placed, and what it holds split."""
        body = body_of(function)
        fed: dict[Node, str] = {}
        for feed, (source, _) in zip(body.feeds, _captured(node, len(body.feeds)), strict=True):
            fed[feed] = source.device if is_reference(feed.dtypes[0]) else node.device

        def wish(inner: Node) -> str:
            # What writes to a captured variable is where it is: the variable may not be where the program has it.
            if any(arg.is_ref for arg in inner.op.inputs):
                for source, i in inner.inputs:
                    if source in fed and source.dtypes[i]._is_ref_dtype:
                        return fed[source]
            around = (device_of[name] for name in colocated_with(inner) if name in device_of)
            return fed.get(inner) or self._wish_for(inner.device) or next(around, "")

        body = place(with_devices(body, wish), self._devices, self._soft, node.device)
        return self.split(sum_before_sending(body), device_of)


def _takes_from_others(node: Node) -> bool:
    """Tells if a node takes a reference to something on another device."""
    return any(is_reference(s.dtypes[i]) and s.device != node.device for s, i in node.inputs)


def _is_over_devices(node: Node, bodies: dict[str, Subgraph]) -> bool:
    """Tells if a body has an op on another device than the node. Host ops run on the host wherever they are placed."""
    return any(n.device != node.device and not n.op.host for body in bodies.values() for n in body.nodes)


def _uncounted(node: Node) -> Node:
    """A count of a loop's iterations that is -1, for unknown. A split loop runs on the host and needs no count."""
    return replace(node, op=const, inputs=[], attrs={"dtype": node.dtypes[0], "value": np.array(-1, np.int32)})


def _captured(node: Node, count: int) -> list[Edge]:
    """The inputs of a node that are the parameters of its bodies; an If has its predicate before them."""
    return node.inputs[len(node.inputs) - count :]


class _Copies:
    """The copies of one node in several tasks, which are given with a device of each."""

    def __init__(self, node: Node, bodies: dict[str, Subgraph], tasks: dict[str, str], keys: Iterator[int]) -> None:
        self.home = task_of(node.device)
        self._node, self._tasks = node, tasks
        self._number = next(keys)
        self._count = len(next(iter(bodies.values())).feeds)
        self._kept: set[int] = set()  # parameters that no iteration of a loop changes
        if "body" in bodies:
            pairs = zip(bodies["body"].feeds, bodies["body"].fetches, strict=True)
            self._kept = {i for i, (feed, fetch) in enumerate(pairs) if fetch == (feed, 0)}
        bodies = self._bodies = {name: self._with_parameters_placed(body) for name, body in bodies.items()}
        self._cuts = {name: self._cut(body, keys) for name, body in bodies.items()}
        # Of each body: its results by number and by the task that is given them.
        self._results = {
            name: {
                (i, task): self._cuts[name].at(edge, tasks[task])
                for i, edge in enumerate(body.fetches)
                for task in self._wanted_in(name, i)
            }
            for name, body in bodies.items()
        }

    def _with_parameters_placed(self, body: Subgraph) -> Subgraph:
        """A body whose parameters are in the tasks in which they are taken: if it is a branch, where they come from."""
        if self._node.op.name != "If":
            return body
        there: dict[Node, str] = {}
        for feed, (source, _) in zip(body.feeds, _captured(self._node, self._count), strict=True):
            if not is_reference(feed.dtypes[0]) and task_of(source.device) in self._tasks:
                there[feed] = source.device
        return with_devices(body, lambda node: there.get(node, node.device))

    def _cut(self, body: Subgraph, keys: Iterator[int]) -> Cut:
        shared = {body.feeds[i] for i in self._kept if not is_reference(body.feeds[i].dtypes[0])}
        return Cut(body, keys, shared, repeated=True)

    def _wanted_in(self, name: str, result: int) -> list[str]:
        if name == "cond":  # all go round as often
            return list(self._tasks)
        return [] if name == "body" and result in self._kept else [self.home]

    def _parameters(self, task: str) -> list[int]:
        """The parameters of the copy in a task."""
        cuts = [(self._bodies[name].feeds, cut) for name, cut in self._cuts.items()]
        return [i for i in range(self._count) if any(cut.feed(feeds[i], task) for feeds, cut in cuts)]

    def outputs(self, task: str) -> list[int]:
        """The outputs of the node that its copy in a task has. A loop returns what it takes."""
        if "body" in self._bodies:
            return self._parameters(task)
        return list(range(len(self._node.dtypes))) if task == self.home else []

    def nodes(self) -> list[Node]:
        """The copies, that of the home task first."""
        return [self._copy(task) for task in sorted(self._tasks, key=lambda task: task != self.home)]

    def _copy(self, task: str) -> Node:
        node, taken, given = self._node, self._parameters(task), self.outputs(task)
        attrs: dict[str, Any] = {**node.attrs, SPLIT: self._number}
        for arguments, kept in ((node.op.outputs, given), (node.op.inputs, taken)):
            types = next(arg.type_list_attr for arg in arguments if arg.type_list_attr)
            attrs[types] = [node.attrs[types][i] for i in kept]
        for name in self._bodies:
            attrs[name] = self._function(name, task, taken)
        captured = _captured(node, self._count)
        inputs = [*node.inputs[: len(node.inputs) - self._count], *(captured[i] for i in taken)]
        dtypes = tuple(node.dtypes[i] for i in given)
        return Node(node.name, node.op, attrs, dtypes, inputs, list(node.controls), self._tasks[task], node.order)

    def _function(self, name: str, task: str, taken: list[int]) -> Function:
        """The part of a body that is in a task."""
        body, cut, results = self._bodies[name], self._cuts[name], self._results[name]
        feeds = {i: cut.feed(body.feeds[i], task) or _unused(body.feeds[i], self._tasks[task]) for i in taken}
        fetches = [
            results[i, task] if (i, task) in results else (feeds[i], 0)
            for i in range(len(body.fetches))
            if (i, task) in results or (name == "body" and i in feeds)
        ]
        part = cut.part(task, list(feeds.values()), fetches)
        present = set(part.nodes)
        part = replace(part, nodes=[*part.nodes, *(feed for feed in feeds.values() if feed not in present)])
        return function_of(f"{self._node.attrs[name].name}{task}", _with_names_that_differ(part), Graph())


def _unused(feed: Node, device: str) -> Node:
    """A parameter that nothing takes in a task."""
    return Node(feed.name, feed.op, feed.attrs, feed.dtypes, device=device, order=feed.order)


def _with_names_that_differ(part: Subgraph) -> Subgraph:
    """Numbers nodes of the same name: a value that goes to two tasks has two Sends."""
    seen: Counter[str] = Counter()

    def renamed(node: Node) -> list[Node]:
        seen[node.name] += 1
        count = seen[node.name]
        return [node if count == 1 else replace(node, name=f"{node.name}_{count}")]

    return rewritten(part, renamed)
