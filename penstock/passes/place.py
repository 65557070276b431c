"""Place: give every node a device of the cluster, by what the program asked for, colocation, and the default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.graph.device import DeviceSpecV2
from penstock.graph.dtype import resource, variant
from penstock.passes.ir import Node, Replacements, Subgraph, is_reference

# Op types whose bodies may be on several devices, each op of them where it asks to be.
SPLIT_OPS = frozenset(("If", "While", "WhileTripCount"))
_PARTS = ("job", "replica", "task", "device_type", "device_index")


class Groups:
    """Nodes that must share a device, as a union-find forest."""

    def __init__(self) -> None:
        self._parent: dict[Node, Node] = {}

    def find(self, node: Node) -> Node:
        while (parent := self._parent[node]) is not node:
            node = parent
        return node

    def join(self, a: Node, b: Node) -> None:
        self._parent.setdefault(a, a)
        self._parent.setdefault(b, b)
        self._parent[self.find(b)] = self.find(a)

    def lists(self, nodes: Iterable[Node]) -> list[list[Node]]:
        """The nodes by group; most have a group of their own."""
        found: list[list[Node]] = []
        of_root: dict[Node, list[Node]] = {}
        for node in nodes:
            if node not in self._parent:
                found.append([node])
            elif (root := self.find(node)) in of_root:
                of_root[root].append(node)
            else:
                of_root[root] = [node]
                found.append(of_root[root])
        return found


def place(subgraph: Subgraph, devices: Sequence[str], soft: bool = False, default: str | None = None) -> Subgraph:
    """The subgraph with every node on one of `devices` (full names).

    Nodes with a common `loc:@` group and nodes joined by a reference to a variable share a device. Control flow joins
    nothing, so that a variable is where it is in steps without it; it goes where its variables are, if it may. An
    explicit device that does not exist is an error, or with `soft` falls back to another device of the same task: of
    its kind, else a CPU. Without any wish, `default` is taken; without one the first task's GPU if there is one, else
    its first CPU.
    """
    specs = [DeviceSpecV2.from_string(d) for d in devices]
    base = DeviceSpecV2.from_string(default or devices[0])
    several = any(s.job != base.job or s.task != base.task for s in specs)
    device_of: dict[Node, str] = {}
    known: dict[Any, str] = {}  # where all ask for the same: by all that the choice depends on
    following: list[Node] = []
    for nodes in _colocated(subgraph.nodes, several).lists(subgraph.nodes):
        if len(nodes) == 1 and is_apart(nodes[0]) and _references(nodes[0]):
            following += nodes
            continue
        kinds = {(node.device, node.op.host, node.op.name == "_Arg") for node in nodes}
        form = next(iter(kinds)) if len(kinds) == 1 else None
        if default is not None and not any([device for device, *_ in kinds]):
            chosen = default
        elif form is None:
            chosen = _choose(nodes, specs, base, soft)
        else:
            chosen = known.get(form) or known.setdefault(form, _choose(nodes, specs, base, soft))
        for node in nodes:
            device_of[node] = chosen
    for node in following:
        there = {device_of[source] for source in _references(node)}
        chosen = _where_references_are(node, there, specs) or ("" if node.device else default or "")
        device_of[node] = chosen or _choose([node], specs, base, soft)
    return with_devices(subgraph, device_of.__getitem__)


def with_devices(subgraph: Subgraph, device_of: Callable[[Node], str]) -> Subgraph:
    """The subgraph with each node on the device that is given for it."""
    new = Replacements()
    for node in subgraph.nodes:
        inputs = [(new[source], i) for source, i in node.inputs] if node.inputs else node.inputs
        controls = [new[source] for source in node.controls] if node.controls else node.controls
        new[node] = Node(
            node.name, node.op, node.attrs, node.dtypes, inputs, controls, device_of(node), node.order, node.on_host
        )
    return new.applied_to(subgraph, list(new.values()))


def put_on(subgraph: Subgraph, device: str, unless: Collection[str] = ()) -> Subgraph:
    """The subgraph with all nodes on `device`, but for those on one of the devices in `unless`."""
    return with_devices(subgraph, lambda node: node.device if node.device in unless else device)


def colocated_with(node: Node) -> list[str]:
    """The names of the nodes that a node asks to be with."""
    labels = (label.decode() if isinstance(label, bytes) else label for label in node.attrs.get("_class", ()))
    return [label.removeprefix("loc:@") for label in labels]


def _colocated(nodes: Sequence[Node], several: bool) -> Groups:
    """Groups nodes that share a device. `several` tells if there are several tasks."""
    groups = Groups()
    by_name = {n.name: n for n in nodes}
    leaders: dict[str, Node] = {}
    for node in nodes:
        # Lists of tensors do not travel, so what takes one is where it is. In one task they may change the device.
        takes_list = several and any(s.dtypes[i] is variant for s, i in node.inputs)
        for name in () if takes_list or "_class" not in node.attrs else colocated_with(node):
            leader = by_name.get(name) or leaders.setdefault(name, node)
            groups.join(leader, node)
        apart = is_apart(node)
        for source, index in node.inputs:
            kind = source.dtypes[index]
            bound = kind is resource or (kind._is_ref_dtype and not _takes_elsewhere(node, source))
            if (bound and not apart) or (takes_list and kind is variant):
                groups.join(source, node)
    return groups


def is_apart(node: Node) -> bool:
    """Tells if a node need not be with the variables and the like that it takes: its bodies can be split."""
    # An If that picks one of several queues is with them: a handle does not travel.
    return node.op.name in SPLIT_OPS and not (node.op.name == "If" and resource in node.dtypes)


def _references(node: Node) -> list[Node]:
    return [source for source, i in node.inputs if is_reference(source.dtypes[i])]


def _where_references_are(node: Node, there: set[str], specs: Sequence[DeviceSpecV2]) -> str:
    """The device of a control-flow node's references, if all are in one task: one that fits its wish, or ""."""
    wish = DeviceSpecV2.from_string(node.device)
    found = [s for s in specs if s.to_string() in there]
    if len({(s.job, s.task) for s in found}) > 1:
        return ""
    fitting = [s for s in found if _fits(s, wish)]
    return _preferred(fitting).to_string() if fitting else ""


def _takes_elsewhere(node: Node, variable: Node) -> bool:
    """Tells if a node takes the value of a variable that it need not be with: the value travels.

    That is so if it asks for a device that the variable does not ask for, and for host ops, as those that save.
    """
    if any(arg.is_ref for arg in node.op.inputs):
        return False
    if node.op.host:
        return True
    return not _fits(DeviceSpecV2.from_string(variable.device), DeviceSpecV2.from_string(node.device))


def _choose(nodes: list[Node], specs: Sequence[DeviceSpecV2], base: DeviceSpecV2, soft: bool) -> str:
    wish, asking = _wish(nodes, soft)
    # A host op runs on the host wherever it is placed; a group that also holds a variable must be where the variable is
    # in every other step.
    host = all(n.op.host for n in nodes)
    candidates = [s for s in specs if _fits(s, wish)]
    # The parameters of a body are where what they stand for is.
    given = all(n.op.name == "_Arg" for n in nodes)
    if host and not given and wish.device_type not in (None, "CPU") and not soft and candidates:
        raise InvalidArgumentError(
            None,
            asking.name,
            f"Cannot assign a device for operation {asking.name}: {nodes[0].op.name} runs on the CPU only, but "
            f"{asking.device} was asked for. Ask for a CPU, or set allow_soft_placement.",
        )
    if (not candidates or host) and soft:
        # A tower for a GPU that is not there goes to one that is.
        kinds = ("CPU",) if host else (wish.device_type, "CPU")
        found = ([s for s in specs if _fits(s, wish.replace(device_type=k, device_index=None))] for k in kinds)
        candidates = next(filter(None, found), [])
    if not candidates:
        raise InvalidArgumentError(
            None,
            asking.name,
            f"Cannot assign a device for operation {asking.name}: it was explicitly assigned to {asking.device} but "
            f"available devices are [ {', '.join(s.to_string() for s in specs)} ]. Make sure the device specification "
            "refers to a valid device.",
        )
    same_task = [s for s in candidates if (s.job, s.task) == (base.job, base.task)] or candidates
    if host:
        same_task = [s for s in same_task if s.device_type == "CPU"] or same_task
    return _preferred(same_task).to_string()


def _preferred(devices: Sequence[DeviceSpecV2]) -> DeviceSpecV2:
    return next((s for s in devices if s.device_type != "CPU"), devices[0])


def _wish(nodes: list[Node], soft: bool) -> tuple[DeviceSpecV2, Node]:
    """The merged wishes of a group, and the node to name in an error."""
    wish = DeviceSpecV2()
    asking = nodes[0]
    # What takes the handle of a resource, or a list of tensors, follows it, whatever it asked for itself; so does
    # control flow that makes a list, as its bodies need not be where it is. The kind of device of a variable does not
    # depend on what takes it, since another step has other takers.
    has_variable = any(node.op.name == "VarHandleOp" for node in nodes)
    for node in sorted(nodes, key=_follows):
        if not node.device:
            continue
        spec = DeviceSpecV2.from_string(node.device)
        if has_variable and _follows(node):
            spec = spec.replace(device_type=None, device_index=None)
        parts = [p for p in _PARTS if None not in (getattr(wish, p), getattr(spec, p))]
        conflicts = [p for p in parts if getattr(wish, p) != getattr(spec, p)]
        if conflicts and _follows(node):
            continue
        if any(not (part.startswith("device") and soft) for part in conflicts):
            raise InvalidArgumentError(
                None,
                node.name,
                f"Cannot colocate nodes '{node.name}' and '{asking.name}': they ask for {node.device} and "
                f"{asking.device}.",
            )
        wish = spec.make_merged_spec(wish)
        asking = node
    return wish, asking


def _follows(node: Node) -> bool:
    kinds = [source.dtypes[index] for source, index in node.inputs]
    if node.op.name in SPLIT_OPS:
        kinds += node.dtypes
    return any(kind.name in ("resource", "variant") for kind in kinds)


def _fits(device: DeviceSpecV2, wish: DeviceSpecV2) -> bool:
    return all(getattr(wish, part) in (None, getattr(device, part)) for part in _PARTS)
