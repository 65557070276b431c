"""Calls of nodes: the instructions of an executor that run one node each, on the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from penstock.errors import InternalError, InvalidArgumentError, OpError
from penstock.graph.function import Function
from penstock.graph.opdef import OpDef, grouped
from penstock.kernel.lists import RowList, StackedList
from penstock.kernel.waiting import NeedsThread, Suspended
from penstock.ops.engine.if_while import as_predicate, bound_of_count
from penstock.ops.engine.iteration_memory import StackedMemory
from penstock.ops.engine.joined import joined_accumulators
from penstock.passes import pipeline
from penstock.passes.ir import SPLIT, Node, blamed
from penstock.segments.kinds import body, functions_of, written_positions
from penstock.segments.plan import Cuts, make_plan
from penstock.segments.randomness import reserved
from penstock.segments.segment import SMALL
from penstock.segments.stored_variable import StoredVariable, is_jax_array, locks_of, placed
from penstock.worker.needs import Need, Other
from penstock.worker.owner import Owner as Executable
from penstock.worker.owner import callable_body
from penstock.worker.step import Step

_NO_ATTRS: dict[str, Any] = {}  # of all kernels that want none


def _may_block(node: Node) -> bool:
    bodies = functions_of(node)
    return node.op.blocking or (bool(bodies) and any(_may_block(n) for f in bodies for n in body(f).nodes))


class NodeCall:
    """An instruction that runs one node on the host."""

    writes = False  # an update of a variable, which has no result

    def __init__(self, owner: Executable, node: Node) -> None:
        self.owner = owner
        self.node = node
        self.out_slots = [owner.slot((node, i)) for i in range(len(node.dtypes))]
        self.inputs = [owner.source(edge) for edge in node.inputs]

    @functools.cached_property
    def blocks(self) -> bool:
        """Tells if it may block its thread while it waits for others."""
        return _may_block(self.node) and not self.node.op.can_suspend

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def device(self) -> str:
        return self.node.device

    @property
    def in_slots(self) -> list[int]:
        """The slots of its inputs."""
        return [s for s in self.inputs if isinstance(s, int)]

    @property
    def label(self) -> str:
        """The text for a timeline."""
        return f"{self.name} = {self.node.op.name}({', '.join(s.name for s, _ in self.node.inputs)})"

    def store(self, values: list[Any], results: Sequence[Any]) -> None:
        """Stores the node's outputs in their slots."""
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value


class _BodyCall(NodeCall):
    """Runs a control-flow node on the host. Its bodies are executables of their own."""

    def executable(
        self, function: Function, arguments: Sequence[int | StoredVariable], results: Sequence[int] | None = None
    ) -> Executable:
        """Compiles a body on its own, for the device of the node; ops of a split node are placed already.

        `results` are the positions of the needed outputs, if not all are needed.
        """
        whole = body(function)
        if results is not None:
            whole = replace(whole, fetches=[whole.fetches[i] for i in results])
        placed = self.owner.context.devices if SPLIT in self.node.attrs else ()
        prepared = pipeline.applied(pipeline.body(self.device, placed), whole)
        bound = {p: a for p, a in zip(prepared.feeds, arguments, strict=True) if isinstance(a, StoredVariable)}
        return self.owner.inner(make_plan(prepared, Cuts(interpreted=self.owner.cuts.interpreted)), bound)

    def arguments(self, values: list[Any], sources: Sequence[int | StoredVariable]) -> list[Any]:
        """Returns the values for a body's parameters, None for variables, which are bound already."""
        return [values[s] if isinstance(s, int) else None for s in sources]


class BranchCall(_BodyCall):
    """Runs one of the branches of an If on the host."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.predicate, *self.sources = self.inputs
        self.then_branch = self.executable(node.attrs["then_branch"], self.sources)
        self.else_branch = self.executable(node.attrs["else_branch"], self.sources)

    def __call__(self, values: list[Any], step: Step) -> None:
        predicate = values[self.predicate] if isinstance(self.predicate, int) else self.predicate.copy()
        branch = self.then_branch if as_predicate(np.asarray(predicate)) else self.else_branch
        self.store(values, branch.run(self.arguments(values, self.sources), step.inner()))


class LoopCall(_BodyCall):
    """Runs a While on the host, one iteration at a time."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        # A variable passes through unchanged: its value is no result of the loop.
        self.changing = [i for i, source in enumerate(self.inputs) if not isinstance(source, StoredVariable)]
        self.cond = self.executable(node.attrs["cond"], self.inputs)
        self.body = self.executable(node.attrs["body"], self.inputs, self.changing)

    def __call__(self, values: list[Any], step: Step) -> None:
        self.store(values, self.iterate(values, step)[0])

    def iterate(self, values: list[Any], step: Step) -> tuple[list[Any], int]:
        """Returns the loop variables after the loop, and the number of iterations."""
        current = self.arguments(values, self.inputs)
        count = 0
        while as_predicate(np.asarray(self.cond.run(current, step.inner())[0])):
            for i, value in zip(self.changing, self.body.run(current, step.inner()), strict=True):
                current[i] = value
            count += 1
            step.check(self.name)
        return current, count


class TripCountCall(LoopCall):
    """Counts the iterations of a loop for compiled code, whose memory has a bound. On the host the memory grows."""

    def __init__(self, owner: Executable, node: Node) -> None:
        if owner.cuts.interpreted:
            super().__init__(owner, node)
        else:
            NodeCall.__init__(self, owner, node)

    def __call__(self, values: list[Any], step: Step) -> None:
        count = bound_of_count(self.iterate(values, step)[1]) if self.owner.cuts.interpreted else -1
        self.store(values, [np.array(count, np.int32)])


class KernelCall(NodeCall):
    """Calls the kernel of a node."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        wants = node.op.wants
        self.attrs = {k: v for k, v in node.attrs.items() if k in wants} if wants else _NO_ATTRS
        self.wants_context = "ctx" in wants
        self._groups = grouped(node.op, node.attrs, range(len(node.inputs))) if _takes_lists(node.op) else None

    def grouped(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Returns the input values as arguments of the kernel, which may take some in a list."""
        if self._groups is None:
            return inputs
        return [[inputs[i] for i in group] if group.__class__ is list else inputs[group] for group in self._groups]


@functools.cache
def _takes_lists(op: OpDef) -> bool:
    return any(arg.is_list for arg in op.inputs)


class HostCall(KernelCall):
    """Runs a host op. Its kernel takes and returns NumPy arrays, and resource objects for references."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        if "resource" in node.op.wants:
            self.attrs["resource"] = functools.partial(owner.context.resource, node)
        if "functions" in node.op.wants:
            self.attrs["functions"] = functools.partial(callable_body, owner.context, node.device)
        kinds = [t.name == "resource" or t._is_ref_dtype for t in node.dtypes]
        finds = "resource" in node.op.wants and not self.wants_context
        # The gradient of a closure that runs again counts once, like an update; it has no result either.
        self.writes = node.op.name == "ResourceAccumulatorApplyGradient"
        is_found = (finds and not node.inputs) or node.op is joined_accumulators
        self.is_handle = is_found and bool(kinds) and all(kinds)
        self.read = self._values_of_variables()

    def _values_of_variables(self) -> frozenset[int]:
        """Returns the inputs that refer to variables whose value the kernel takes."""
        op = self.node.op
        if op.takes_variables or "functions" in op.wants or not any(isinstance(i, StoredVariable) for i in self.inputs):
            return frozenset()
        positions = grouped(op, self.node.attrs, range(len(self.inputs)))
        values = [p for arg, p in zip(op.inputs, positions, strict=True) if not arg.is_ref]
        edges = self.node.inputs
        flat = (i for each in values for i in (each if isinstance(each, list) else [each]))
        return frozenset(i for i in flat if edges[i][0].dtypes[edges[i][1]]._is_ref_dtype)

    def call(self, arguments: Sequence[Any], step: Step) -> list[Any]:
        """Calls the kernel and returns its results. Errors that it raises name the node."""
        node = self.node
        attrs = {**self.attrs, "ctx": step} if self.wants_context else self.attrs
        if node.op.random:
            attrs = {**attrs, "key": self.owner.context.random_state.key(node, step.drawn)}
        try:
            result = node.op.kernel(*self.grouped(arguments), **attrs)
        except Suspended:
            raise
        except Exception as error:
            raise self._named(error) from error
        results = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
        if node.op.random:
            self.owner.context.random_state.move_on(node, step.drawn, reserved(node, results[0].shape))
        return results

    def _named(self, error: Exception) -> OpError:
        """An error of the kernel as one that names the node."""
        node = self.node
        if isinstance(error, OpError):
            return type(error)(None, blamed(error, node), f"{error.message} [node '{node.name}']")
        if isinstance(error, (ValueError, IndexError)):
            return InvalidArgumentError(None, node.name, f"{node.op.name} '{node.name}': {error}")
        return InternalError(None, node.name, f"{node.op.name} '{node.name}' failed: {error!r}")

    def without_writes(self, values: list[Any], step: Step) -> None:
        """Does nothing: an update has no result."""

    def __call__(self, values: list[Any], step: Step) -> Need | None:
        arguments = host_values([values[i] if i.__class__ is int else i for i in self.inputs])
        for i in self.read:
            arguments[i] = self.inputs[i].snapshot()  # type: ignore[union-attr]
        try:
            self.store(values, self.call(arguments, step))
        except NeedsThread:
            return Other.THREAD
        except Suspended:
            return Other.CHANGE
        return None


class PlainCall(HostCall):
    """Runs an op on the host that is no host op, because of its values. Its kernel gets the values of variables."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self.written = written_positions(node.op)
        self.jax_device = owner.context.device(node).jax_device
        self.on_cpu = self.jax_device.platform == "cpu"
        self.changed = [v for v in (self.inputs[i] for i in self.written) if isinstance(v, StoredVariable)]
        self.writes = bool(self.written)
        self.locks = locks_of(self.changed)
        self.plain_slots = [] if any(isinstance(i, StoredVariable) for i in self.inputs) else self.in_slots
        # Most nodes on the host are small: calling the kernel must not take longer than the kernel.
        gives_one = [arg.is_list for arg in node.op.outputs] == [False]
        reads_only = bool(self.plain_slots) or (self.on_cpu and not self.written)
        is_simple = gives_one and reads_only and not (self.wants_context or node.op.random)
        self._only = self.out_slots[0] if is_simple else None

    def __call__(self, values: list[Any], step: Step) -> None:
        if self._only is not None:
            given = [values[source] if source.__class__ is int else source.snapshot() for source in self.inputs]  # type: ignore[union-attr]
            arguments = host_values(given)
            try:
                values[self._only] = self.node.op.kernel(*self.grouped(arguments), **self.attrs)
            except Exception as error:
                raise self._named(error) from error
            return
        if self.plain_slots:
            self.store(values, self.call([host_value(values[slot]) for slot in self.plain_slots], step))
            return
        with self.locks:
            results = self.call([self._argument(i, values) for i in range(len(self.inputs))], step)
            for variable, value in zip(self.changed, results, strict=False):
                variable.require_shape(value, self.name)
                if not (self.on_cpu and variable.overwrite(value, self.jax_device)):
                    variable.value = self._kept(value)
        # The output of a write refers to the variable, and needs no slot.
        if not self.written:
            self.store(values, results)

    def _kept(self, value: Any) -> Any:
        """Returns a value in the form that a variable stores."""
        if value.dtype == object:
            return value
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = value.copy()  # it lies in a region of shared memory, which must be given back
        if self.on_cpu and value.nbytes <= SMALL:
            return np.asarray(value)  # jax takes it as it is, and making a jax.Array takes longer than most updates
        # On a CPU this shares the memory if it is aligned, as values from checkpoints are.
        return placed(value, self.jax_device)

    def _argument(self, position: int, values: list[Any]) -> Any:
        source = self.inputs[position]
        if not isinstance(source, StoredVariable):
            return host_value(values[source])
        if position in self.written:
            return None if self.node.op.overwrites else source.read()
        return source.snapshot() if self.on_cpu else source.read()


class JoinedCall(PlainCall):
    """Runs neighbouring nodes of one kind as one instruction."""

    def __init__(self, owner: Executable, nodes: Sequence[Node]) -> None:
        super().__init__(owner, nodes[0])
        self.each = [PlainCall(owner, node) for node in nodes]
        self.inputs = [source for call in self.each for source in call.inputs]
        self.out_slots = [slot for call in self.each for slot in call.out_slots]
        self.changed = [variable for call in self.each for variable in call.changed]
        self.locks = locks_of(self.changed)

    @property
    def label(self) -> str:
        """The text for a timeline."""
        return f"{self.name} = {self.node.op.name}({', '.join(call.name for call in self.each)})"


def host_values(values: Sequence[Any]) -> list[Any]:
    """Returns arrays in the host's memory for those that are elsewhere."""
    return [value if value.__class__ is np.ndarray else host_value(value) for value in values]


def host_value(value: Any) -> Any:
    if value.__class__ is np.ndarray:
        return value  # first, since the test for a jax.Array is slower
    if is_jax_array(value):
        return np.asarray(value)
    return jax.tree.map(np.asarray, value) if isinstance(value, (StackedList, RowList, StackedMemory)) else value


ON_HOST: dict[str, type[NodeCall]] = {"If": BranchCall, "While": LoopCall, "WhileTripCount": TripCountCall}
