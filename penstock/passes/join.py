"""Join: what a step pulls from a parameter server, and pushes to it, travels as one tensor and is updated as one.

Every array has its price in a message and in a call of compiled code, and the arrays of a model of a few layers cost
more than their updates. So gradients that go from one task to updates of one kind are joined before they travel, and so
are the variables that the task reads. The parameter server keeps these variables in one vector, and their slots in one
each (`JoinedVariable` in segments/blocks.py). One update takes the vectors; everybody else sees the variables
as before. In synchronous training the same is true of the accumulators between gradients and updates
(`JointAccumulators` in ops/queue/accumulator_resources.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.graph.opdef import op_of
from penstock.ops.engine.joined import join_tensors, joined_accumulators, joined_variable, split_tensor, whole
from penstock.passes.ir import (
    SPLIT,
    VARIABLES,
    Edge,
    Node,
    Subgraph,
    Uses,
    reads_variable,
    sorted_nodes,
    sources_of,
    uses_of,
    visible_nodes,
    without_unused,
)
from penstock.passes.partition import task_of, waves_of

LARGEST = 1 << 20  # bytes of a tensor: to copy a larger one takes longer than to pass it
MOST_BYTES = 1 << 22  # of tensors that are joined
MOST = 31  # tensors: of more, small ones lie in blocks anyway (segments/blocks.py)
SUMS_FOR = "_sums_for"  # attr of an accumulator: the name of the variable of whose gradients it has the sum
_GRADIENTS = ("grad", "delta", "gradient")
_TAKES = "ResourceAccumulatorTakeGradient"
_APPLIES = "ResourceAccumulatorApplyGradient"
_ACCUMULATOR = "ResourceConditionalAccumulator"


def join_transfers(subgraph: Subgraph) -> Subgraph:
    """The placed subgraph with one tensor for gradients, and one for variables, that go the same way together."""
    every = [node for node in subgraph.nodes if _is_update(node)]
    # The copies of a split node stay next to each other, so that all tasks come to split nodes in one order.
    if len(every) < 2 or any(SPLIT in node.attrs for node in subgraph.nodes):
        return subgraph
    uses, visible = uses_of(subgraph), visible_nodes(subgraph)
    groups = _alike(every, subgraph.nodes, uses, visible)
    if not groups:
        return subgraph
    by_name = {node.name: node for node in subgraph.nodes if node.op.name in VARIABLES}
    inputs: dict[Node, list[Edge]] = {}
    added: list[Node] = []
    for updates in groups:
        position = _gradient(updates[0])
        gradients = [update.inputs[position] for update in updates]
        added += _joined(gradients, updates, updates[0].device)
        for i, update in enumerate(updates):
            inputs.setdefault(update, list(update.inputs))[position] = (added[-1], i)
        targets = [update.inputs[0][0] for update in updates]  # variables, or accumulators of their gradients
        names = [target.attrs.get(SUMS_FOR, target.name) for target in targets]
        reads = _reads_elsewhere([by_name[name] for name in names if name in by_name], uses, visible)
        if len(reads) < len(updates):
            continue
        devices = {node.device for read in reads for node, *_ in uses[read]}
        if len(devices) == 1:
            added += _joined([(read, 0) for read in reads], updates, *devices)
            for i, read in enumerate(reads):
                for node, position, _ in uses[read]:
                    inputs.setdefault(node, list(node.inputs))[position] = (added[-1], i)
    return _changed(subgraph, inputs, added, {})


def join_variables(subgraph: Subgraph) -> Subgraph:
    """The part of one task, with one update for all that take a joined gradient, and sends of joined tensors.

    On the host nothing is copied for it: what comes is split to views, and what goes is joined where it is written.
    """
    if not any(node.op is split_tensor or node.op is join_tensors for node in subgraph.nodes):
        return subgraph
    uses, visible = uses_of(subgraph), visible_nodes(subgraph)
    stands_for: dict[Node, Node] = {}
    variables: dict[tuple[Node, ...], Node] = {}

    def joined(parts: Iterable[Node]) -> Edge:
        key = tuple(parts)
        variables[key] = variables.get(key) or _joined_state(key)
        return variables[key], 0

    for node in subgraph.nodes:
        if "CPU" not in node.device:
            continue
        if node.op is join_tensors and _is_only_sent(node, uses, visible):
            sent = node.inputs
            if _only_reads(node, uses, visible):
                sent = [joined(read.inputs[0][0] for read, _ in node.inputs)]
            for send, *_ in uses[node]:
                stands_for[send] = replace(send, inputs=sent, attrs={**send.attrs, "shapes": node.attrs["shapes"]})
        elif node.op is split_tensor and (updates := _updates_of(node, uses, subgraph)):
            states = [joined(parts) for parts in zip(*map(_states, updates), strict=True)]
            stands_for.update(dict.fromkeys(updates, _one_update(updates, states, node.inputs[0])))
        elif node.op is split_tensor and node.inputs[0][0].op.name == "_Recv":
            stands_for[node] = replace(node, on_host=True)  # as views
    added = [*variables.values(), *dict.fromkeys(stands_for.values())]
    return _changed(subgraph, {}, added, stands_for) if added else subgraph


def _alike(updates: Iterable[Node], nodes: list[Node], uses: Uses, visible: set[Node]) -> list[list[Node]]:
    """Updates of one task that differ only in their variables and in gradients that come the same way, together."""
    wave = waves_of(nodes)
    found: dict[Hashable, list[Node]] = defaultdict(list)
    for update in updates:
        gradient, index = update.inputs[_gradient(update)]
        if task_of(gradient.device) != task_of(update.device):
            found[gradient.device, gradient.dtypes[index], wave[update], _kind(update)].append(update)
        elif _is_mean_for(update, gradient) and gradient not in visible and len(uses[gradient]) == 1:
            found[gradient.inputs[1], gradient.dtypes, _kind(update)].append(update)
    return [group for group in found.values() if _can_join(group, nodes)]


def _can_join(updates: Sequence[Node], nodes: Iterable[Node]) -> bool:
    """Tells if these updates are few and small enough, and neither variables nor gradients keep them apart."""
    states = [state for update in updates for state in _states(update)]
    if not 1 < len(updates) <= MOST or len(set(states)) < len(states):
        return False
    gradients = [update.inputs[_gradient(update)][0] for update in updates]
    is_small = sum(_bytes(update.inputs[0][0]) for update in updates) <= MOST_BYTES
    return is_small and not (gradients[0].op.name == _TAKES and _depend(gradients, nodes))


def _states(update: Node) -> list[Node]:
    """The variables that a node updates, or the accumulator to which it adds a gradient."""
    return [source for source, _ in update.inputs[: len(update.op.writes) or 1]]


def _is_update(node: Node) -> bool:
    """Tells if a node updates whole variables of known shape, or an accumulator, each element by itself."""
    states = _states(node) if node.op.elementwise or node.op.name == _APPLIES else []
    is_state = _is_sum if node.op.name == _APPLIES else _is_variable
    if not all(is_state(s) and s.attrs["shape"].is_fully_defined() for s in states):
        return False
    return len({tuple(s.attrs["shape"].as_list()) for s in states}) == 1 and 0 < _bytes(states[0]) <= LARGEST


def _is_variable(node: Node) -> bool:
    return node.op.name in VARIABLES


def _is_sum(node: Node) -> bool:
    """Tells if a node is an accumulator of gradients of one of a model's variables."""
    return node.op.name == _ACCUMULATOR and SUMS_FOR in node.attrs


def _is_mean_for(update: Node, gradient: Node) -> bool:
    """Tells if a gradient is what such an accumulator gives."""
    source = gradient.inputs[0][0] if gradient.op.name == _TAKES else gradient
    return _is_sum(source) and bool(source.attrs["shape"] == update.inputs[0][0].attrs["shape"])


def _kind(update: Node) -> Hashable:
    """A key that is equal for updates that can be one."""
    attrs = tuple(sorted((name, update.attrs[name]) for name in update.op.wants if name in update.attrs))
    gradient = _gradient(update)
    numbers = [_number(e) for i, e in enumerate(update.inputs) if i >= len(_states(update)) and i != gradient]
    return update.op.name, update.device, attrs, tuple(numbers), update.inputs[0][0].attrs["dtype"]


def _number(edge: Edge) -> Hashable:
    """A key that is equal for inputs of one value: each update reads a number that is a variable by itself."""
    source, _ = edge
    return (*source.inputs, frozenset(source.controls)) if reads_variable(source) else edge


def _gradient(update: Node) -> int:
    return next(i for i, arg in enumerate(update.op.inputs) if arg.name in _GRADIENTS)


def _bytes(variable: Node) -> int:
    return int(variable.attrs["shape"].num_elements() * variable.attrs["dtype"].size)


def _reads_elsewhere(variables: Iterable[Node], uses: Uses, visible: set[Node]) -> list[Node]:
    """The nodes that read these variables for other tasks, at any time in the step; none if one is missing."""

    def fits(read: Node, variable: Node) -> bool:
        takers = [task_of(node.device) for node, *_ in uses[read]]
        is_free = reads_variable(read) and not read.controls and read not in visible
        return is_free and bool(takers) and task_of(variable.device) not in takers

    found = [next((read for read, *_ in uses[v] if fits(read, v)), None) for v in variables]
    return [] if None in found else [read for read in found if read is not None]


def _joined(edges: Sequence[Edge], updates: Sequence[Node], device: str) -> list[Node]:
    """The nodes that join these tensors where they are, and at last the one on `device` that splits them again."""
    first, index = edges[0]
    dtype = first.dtypes[index].base_dtype
    attrs = {"N": len(edges), "T": dtype, "shapes": [update.inputs[0][0].attrs["shape"] for update in updates]}
    name = f"{first.name}_and_{len(edges) - 1}_more"
    order = max(source.order for source, _ in edges)
    joined = [Node(name, join_tensors, attrs, (dtype,), list(edges), [], first.device, order)]
    if first.op.name == _TAKES:  # one takes them as one
        accumulators = _joined_state([take.inputs[0][0] for take, _ in edges])
        controls = _controls(take for take, _ in edges)
        inputs = [(accumulators, 0), first.inputs[1]]
        joined = [accumulators, Node(name, first.op, first.attrs, (dtype,), inputs, controls, first.device, order)]
    split = Node(f"{name}/apart", split_tensor, attrs, (dtype,) * len(edges), [(joined[-1], 0)], [], device, order)
    return [*joined, split]


def _is_only_sent(join: Node, uses: Uses, visible: set[Node]) -> bool:
    """Tells if tensors are joined only for other tasks, so that this can be done when they are sent."""
    return join not in visible and all(node.op.name == "_Send" for node, *_ in uses[join])


def _only_reads(join: Node, uses: Uses, visible: set[Node]) -> bool:
    """Tells if a node joins variables that can be read when they are sent."""
    reads = [read for read, _ in join.inputs]
    return all(reads_variable(r) and not r.controls and len(uses[r]) == 1 and r not in visible for r in reads)


def _updates_of(split: Node, uses: Uses, subgraph: Subgraph) -> list[Node]:
    """The updates that take the parts of a joined gradient, in their order; none if these cannot be one."""
    takers = {index: node for node, _, index in uses[split]}
    updates = [takers[i] for i in sorted(takers)]
    if not len(uses[split]) == len(updates) == split.attrs["N"] or not all(map(_is_update, updates)):
        return []
    fetched = {node for node, _ in subgraph.fetches}
    if len(set(map(_kind, updates))) > 1 or any(uses[n] or n in fetched for n in updates):
        return []
    if _depend(updates, subgraph.nodes):
        return []
    variables = [variable for update in updates for variable, _ in update.inputs[: len(update.op.writes)]]
    is_free = all(user in updates or _is_for_others(user, uses, fetched) for v in variables for user, *_ in uses[v])
    return updates if is_free and fetched.isdisjoint(variables) else []


def _is_for_others(read: Node, uses: Uses, fetched: set[Node]) -> bool:
    """Tells if a node does nothing but read a variable for other tasks."""
    takers = {node.op.name for node, *_ in uses[read]}
    return reads_variable(read) and read not in fetched and takers <= {"_Send", join_tensors.name}


def _joined_state(parts: Sequence[Node]) -> Node:
    """The node of a variable, or of an accumulator, that stands for several."""
    first, order = parts[0], max(part.order for part in parts)
    name = f"{first.name}_and_{len(parts) - 1}_more"
    shapes = [part.attrs["shape"] for part in parts]
    if _is_sum(first):
        attrs = {"N": len(parts), "shapes": shapes}
        every = [(part, 0) for part in parts]
        return Node(name, joined_accumulators, attrs, first.dtypes, every, [], first.device, order)
    dtype = first.attrs["dtype"]
    attrs = {"dtype": dtype, "shape": whole(shapes), "parts": tuple(parts)}
    return Node(name, joined_variable, attrs, (dtype._as_ref,), device=first.device, order=order)


def _one_update(updates: Sequence[Node], states: list[Edge], gradient: Edge) -> Node:
    """The update of joined variables, or of joined accumulators, that does what these updates do."""
    first, position = updates[0], _gradient(updates[0])
    numbers = [gradient if i == position else edge for i, edge in enumerate(first.inputs)][len(states) :]
    if first.op.name == _APPLIES:
        op, dtypes, numbers = first.op, first.dtypes, [_uncast(edge) for edge in numbers]
    else:
        op, dtypes = op_of(first.op.name.removeprefix("Resource")), states[0][0].dtypes
    order = max(update.order for update in updates)
    return Node(first.name, op, first.attrs, dtypes, states + numbers, _controls(updates), first.device, order)


def _uncast(edge: Edge) -> Edge:
    """A whole number before it was made one of another size: an accumulator takes its step in any."""
    source, _ = edge
    is_cast = source.op.name == "Cast" and source.attrs["SrcT"].is_integer and source.attrs["DstT"].is_integer
    return source.inputs[0] if is_cast else edge


def _controls(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that any of these waits for."""
    return list(dict.fromkeys(control for node in nodes for control in node.controls))


def _depend(updates: Sequence[Node], nodes: Iterable[Node]) -> bool:
    """Tells if one of these updates waits for another."""
    after = set(updates)
    for node in nodes:
        if any(source in after for source in sources_of(node)):
            if node in after:
                return True
            after.add(node)
    return False


def _changed(
    subgraph: Subgraph, inputs: Mapping[Node, list[Edge]], added: Iterable[Node], stands_for: Mapping[Node, Node]
) -> Subgraph:
    """The subgraph with other inputs of some nodes, added nodes, and nodes that stand for others."""
    copies = {node: replace(node) for node in (*subgraph.nodes, *added) if node not in stands_for}
    copies.update({node: copies[one] for node, one in stands_for.items()})
    for node, copy in copies.items():
        if node not in stands_for:
            copy.inputs = [(copies[source], i) for source, i in inputs.get(node, node.inputs)]
            copy.controls = list(dict.fromkeys([copies[source] for source in node.controls]))
    fetches = [(copies[node], i) for node, i in subgraph.fetches]
    feeds, targets = [copies[n] for n in subgraph.feeds], [copies[n] for n in subgraph.targets]
    nodes = sorted_nodes(dict.fromkeys(copies.values()))
    return without_unused(Subgraph(nodes, feeds, fetches, list(dict.fromkeys(targets))))
