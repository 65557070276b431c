"""Relocate: moves nodes to where their resources are now, after parameter servers have joined or left.

A program names logical parameter servers, those that its cluster had when the job began, and `place` puts nodes there.
Resources move while the job runs. What takes the handle of a resource, or writes to its reference, must be where the
resource is. What only takes its value, or is colocated with it, follows it, which saves sending the value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import FailedPreconditionError
from penstock.graph.device import DeviceSpecV2
from penstock.graph.dtype import resource, variant
from penstock.graph.opdef import OpDef
from penstock.passes.ir import Node, Subgraph
from penstock.passes.partition import task_of
from penstock.passes.place import Groups, colocated_with, is_apart, with_devices

Key = tuple[str, str]  # the container and name of a resource
Place = tuple[str, str, str]  # a logical task, and the container and name of a resource that programs have there


@dataclass(frozen=True)
class Homes:
    """Tells which task has a resource, and which one stands in for a task that has left.

    >>> Homes({("/job:ps/replica:0/task:0", "", "w"): "/job:ps/replica:0/task:1"}, {})
    """

    of_resource: Mapping[Place, str] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # by logical task

    def find(self, task: str, key: Key) -> str:
        """The task that has a resource which the program has on `task`."""
        found = self.of_resource.get((task, *key))
        there = self.stand_in(task)  # which may have got the resource after the task had left, and passed it on
        return found or self.of_resource.get((there, *key), there)

    def stand_in(self, task: str) -> str:
        """The task itself, or the one that stands in for it."""
        return self.stand_ins.get(task, task)

    def wish_for(self, device: str) -> str:
        """The device to ask for where a program asks for `device`, whose task may have left."""
        if not self.stand_ins or not device:
            return device
        spec = DeviceSpecV2.from_string(device)
        task = DeviceSpecV2(job=spec.job, replica=0, task=spec.task).to_string()
        return on_task(device, self.stand_ins[task]) if task in self.stand_ins else device


def key_of(node: Node) -> Key | None:
    """The container and name of the resource that a node stands for, or None if it stands for none."""
    op = node.op
    is_variable = not op.inputs and op.outputs and (op.outputs[0].is_ref or op.name == "VarHandleOp")
    if not is_variable and "resource" not in op.wants:
        return None
    return node.attrs.get("container", ""), node.attrs.get("shared_name") or node.name


def relocate(subgraph: Subgraph, homes: Homes) -> Subgraph:
    """A placed subgraph with each node in the task that has its resources."""
    device_of: dict[Node, str] = {}
    keys = {node: key for node in subgraph.nodes if (key := key_of(node)) is not None}
    for nodes in _bound(subgraph).lists(subgraph.nodes):
        found = {homes.find(task_of(node.device), keys[node]): node for node in nodes if node in keys}
        if len(found) > 1:
            (first, one), (second, other), *_ = found.items()
            raise FailedPreconditionError(
                None,
                other.name,
                f"'{one.name}' and '{other.name}' are used by one operation, and parameter servers that joined or left "
                f"have parted them: they are on {first} and {second}. Run the step once before `penstock scale`.",
            )
        for node in nodes if found else ():
            device_of[node] = on_task(node.device, next(iter(found)))
    by_name = {node.name: node for node in device_of}
    for node in subgraph.nodes:
        if node not in device_of:
            device_of[node] = _followed(node, device_of, by_name) or on_task(
                node.device, homes.stand_in(task_of(node.device))
            )
    return with_devices(subgraph, device_of.__getitem__)


def _followed(node: Node, device_of: Mapping[Node, str], by_name: Mapping[str, Node]) -> str:
    """The device of the first node that a node takes a reference from, or is colocated with, if they were together."""
    if is_apart(node):
        return ""
    leaders = [source for source, i in node.inputs if source.dtypes[i]._is_ref_dtype]
    leaders += [by_name[name] for name in colocated_with(node) if name in by_name] if "_class" in node.attrs else []
    return next((device_of[n] for n in leaders if n in device_of and n.device == node.device), "")


def bonds(subgraph: Subgraph) -> list[list[Key]]:
    """Lists the resources that must stay together, since one node takes several of them."""
    keys = {node: key for node in subgraph.nodes if (key := key_of(node)) is not None}
    if len(keys) < 2:
        return []
    found = ([keys[n] for n in nodes if n in keys] for nodes in _bound(subgraph).lists(subgraph.nodes))
    return [together for together in found if len(together) > 1]


def on_task(device: str, task: str) -> str:
    """The device of the same kind and number in a task.

    >>> on_task("/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1")
    '/job:ps/replica:0/task:1/device:CPU:0'
    """
    if task_of(device) == task:
        return device
    spec = DeviceSpecV2.from_string(task)
    return DeviceSpecV2.from_string(device).replace(job=spec.job, task=spec.task).to_string()


def _bound(subgraph: Subgraph) -> Groups:
    """Groups each resource with the nodes that cannot be in another task."""
    groups = Groups()
    for node in subgraph.nodes:
        if is_apart(node):
            continue
        references: frozenset[int] | None = None
        for i, (source, index) in enumerate(node.inputs):
            kind = source.dtypes[index]
            if kind._is_ref_dtype and references is None:
                references = _reference_positions(node)
            if kind is resource or kind is variant or (references and kind._is_ref_dtype and i in references):
                groups.join(source, node)
    return groups


def _reference_positions(node: Node) -> frozenset[int]:
    """The inputs that a node takes as references: it may write to them, or hand them on."""
    simple = _positions(node.op)
    if simple is not None:
        return simple
    found, at = set(), 0
    for arg in node.op.inputs:
        count = 1
        if arg.number_attr:
            count = int(node.attrs[arg.number_attr])
        elif arg.type_list_attr:
            count = len(node.attrs[arg.type_list_attr])
        if arg.is_ref:
            found |= set(range(at, at + count))
        at += count
    return frozenset(found)


@functools.cache
def _positions(op: OpDef) -> frozenset[int] | None:
    """Likewise, if no input is a list, else None."""
    if any(arg.number_attr or arg.type_list_attr for arg in op.inputs):
        return None
    return frozenset(i for i, arg in enumerate(op.inputs) if arg.is_ref)
