"""Turns a jaxpr, or the body of a loop or branch in one, into a list of steps over a list of values.

It decides once all that does not depend on a call: the slot of each value, when a value is dropped, and which kernels
may write into an operand that is not needed any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.flat import FlatJaxpr, Node, Value
from penstock.jaxprs.numpy_rewrites import rewrite
from penstock.jaxprs.numpy_rules import NEW, RULES, SAME, SHARED, Kernel, Overwriting, Rule, Site
from penstock.jaxprs.numpy_steps import Step, make_step
from penstock.jaxprs.sizes import Sizes, SizesNeeded

# Results that depend only on constants are kept between calls up to this size.
_KEPT_BYTES = 1 << 20


class _Memory:
    """An array that several values share, as far as is known before a run."""

    __slots__ = ("argument", "last_use", "lent", "own", "written")

    def __init__(self, own: bool, last_use: int, argument: int | None = None) -> None:
        self.own = own  # the block may write here
        self.lent = False  # untracked results may share this memory
        self.last_use = last_use
        self.argument = argument
        self.written = False


class _Entry:
    """A node with its rule and, if it does not depend on sizes, its kernel."""

    __slots__ = ("constant", "drops", "into", "kernel", "node", "rule", "step")

    def __init__(self, node: Node) -> None:
        rule = RULES.get(node.primitive)
        if rule is None:
            raise NoRule(node.primitive)
        self.node = node
        self.rule: Rule = rule
        self.kernel: Kernel | Overwriting | None = None
        self.constant = False  # it depends only on constants and sizes
        self.into: int | None = None  # the operand to write the result into
        self.drops: list[Value] = []
        self.step: Step | None = None  # if it is the same for all sizes
        try:
            self.kernel = rule.build(Site(node))
        except SizesNeeded:
            pass

    @property
    def may_write_into(self) -> Iterable[int]:
        if isinstance(self.kernel, np.ufunc) and not self.node.several:
            return range(len(self.node.inputs))
        return (0,) if self.rule.overwrites else ()


class Bound:
    """A block for given sizes: called with a list of arrays, it returns a list of arrays.

    The results may share memory with each other and with the arguments.
    """

    __slots__ = ("_outputs", "_steps", "_values")

    def __init__(self, values: list[Any], steps: list[Step], outputs: list[int]) -> None:
        self._values = values  # the slots after the arguments: constants, and space for other values
        self._steps = steps
        self._outputs = outputs

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        values = [*arguments, *self._values]
        for step in self._steps:
            step(values)
        return [values[slot] for slot in self._outputs]


class Block:
    """A closed jaxpr prepared for NumPy. `bind` returns a callable."""

    def __init__(self, jaxpr: Any) -> None:
        flat = FlatJaxpr(jaxpr)
        rewrite(flat)
        self.inputs = flat.inputs
        self.outputs = flat.outputs
        self._entries = [_Entry(node) for node in flat.nodes]
        self.needs_sizes = any(entry.kernel is None for entry in self._entries)
        self._memories: dict[int, _Memory] = {}
        self._whole: set[int] = set()
        self._plan(frozenset())
        self._bound: Bound | None = None
        self._slots: dict[int, int] = {}

    def bind(self, sizes: Sizes | None) -> Bound:
        """The block for these sizes, which may be None for a block without symbolic dimensions."""
        if not self.needs_sizes:
            if self._bound is None:
                self._bound = self._bind(None)
            return self._bound
        if sizes is None:
            raise SizesNeeded
        return self._bind(sizes)

    def overwrite(self, arguments: frozenset[int]) -> frozenset[int]:
        """Lets the block write into these arguments after their last use; returns those that it writes into."""
        self._plan(arguments)
        return self._written()

    def _written(self) -> frozenset[int]:
        written = [memory.argument for memory in self._memories.values() if memory.written]
        return frozenset(argument for argument in written if argument is not None)

    def donate(self, offset: int, count: int) -> frozenset[int]:
        """Lets the body of a loop write into its carried values: argument `offset + i` comes back as result `i`.

        Returns the arguments that are written to. The caller must copy them before the first iteration.
        """
        donated = frozenset(range(offset, offset + count))
        while True:
            self._plan(donated)
            kept = frozenset(argument for argument in donated if self._can_pass_on(argument, argument - offset))
            if kept == donated:
                break
            donated = kept
        return self._written()

    def _can_pass_on(self, argument: int, result: int) -> bool:
        """True if the next iteration may write into a result: it is new, or the same argument, and a plain array."""
        value = self.outputs[result]
        source = self._memories[id(value)].argument
        return self.owns(result) and source in (None, argument) and id(value) in self._whole

    def owns(self, result: int) -> bool:
        """True if nothing else refers to the memory of a result."""
        memories = [self._memories[id(value)] for value in self.outputs]
        memory = memories[result]
        return memory.own and not memory.lent and memories.count(memory) == 1

    def _plan(self, donated: frozenset[int]) -> None:
        last_use: dict[int, int] = {}
        for position, entry in enumerate(self._entries):
            for value in entry.node.inputs:
                last_use[id(value)] = position
        end = len(self._entries)
        for value in self.outputs:
            last_use[id(value)] = end
        memories = self._memories = {}
        whole = self._whole = set()  # values that cover all of their memory, each element once
        constant: set[int] = set()
        for position, value in enumerate(self.inputs):
            own = position in donated
            memories[id(value)] = _Memory(own, last_use.get(id(value), -1), position)
            if own:
                whole.add(id(value))
        for value in self._constants():
            memories[id(value)] = _Memory(False, end)
            constant.add(id(value))
        for position, entry in enumerate(self._entries):
            inputs, outputs = entry.node.inputs, entry.node.outputs
            entry.into = entry.step = None
            entry.constant = all(id(value) in constant for value in inputs)
            if entry.constant:
                for value in outputs:
                    memories[id(value)] = _Memory(False, end)
                    constant.add(id(value))
                continue
            entry.into = self._operand_to_overwrite(entry, position, whole)
            self._note_results(entry, last_use, whole)
            seen = {id(value): value for value in inputs if id(value) not in constant}
            entry.drops = [value for key, value in seen.items() if last_use[key] == position]

    def _operand_to_overwrite(self, entry: _Entry, position: int, whole: set[int]) -> int | None:
        node = entry.node
        for operand in entry.may_write_into:
            value = node.inputs[operand]
            memory = self._memories[id(value)]
            if (
                memory.own
                and not memory.lent
                and memory.last_use == position
                and id(value) in whole
                and value.shape
                and value.dtype == node.outputs[0].dtype
                and value.shape_key == node.outputs[0].shape_key
                # NumPy lets a ufunc read the array that it writes; Overwriting kernels cannot.
                and (not entry.rule.overwrites or sum(self._memories[id(v)] is memory for v in node.inputs) == 1)
            ):
                return operand
        return None

    def _note_results(self, entry: _Entry, last_use: dict[int, int], whole: set[int]) -> None:
        node, memories = entry.node, self._memories
        kind = entry.rule.memory
        if entry.into is not None or kind not in (NEW, SHARED):
            value = node.inputs[entry.into or 0]
            memory = memories[id(value)]
            memory.written = memory.written or entry.into is not None
            for output in node.outputs:
                memories[id(output)] = memory
                memory.last_use = max(memory.last_use, last_use.get(id(output), -1))
                if entry.into is not None or (kind == SAME and id(value) in whole):
                    whole.add(id(output))
            return
        for output in node.outputs:
            memories[id(output)] = _Memory(kind == NEW, last_use.get(id(output), -1))
            whole.add(id(output))
        if kind == SHARED:
            for value in node.inputs:
                memories[id(value)].lent = True

    def _constants(self) -> list[Value]:
        values = [value for entry in self._entries for value in entry.node.inputs] + self.outputs
        return list({id(value): value for value in values if value.constant is not None}.values())

    def _bind(self, sizes: Sizes | None) -> Bound:
        slots = self._slots = self._slots or self._assign_slots()
        count = len(self.inputs)
        values: list[Any] = [None] * (max(slots.values(), default=-1) + 1)
        for value in self._constants():
            values[slots[id(value)]] = value.constant
        known = {slot for slot, value in enumerate(values) if value is not None}
        steps: list[Step] = []
        for entry in self._entries:
            if entry.step is not None:
                steps.append(entry.step)
                continue
            kernel = entry.kernel or entry.rule.build(Site(entry.node, sizes))
            inputs = [slots[id(value)] for value in entry.node.inputs]
            outputs = [slots[id(value)] for value in entry.node.outputs]
            drops = [slots[id(value)] for value in entry.drops]
            step = make_step(kernel, inputs, outputs, several=entry.node.several, into=entry.into, drops=drops)
            if entry.constant and known.issuperset(inputs):
                step(values)
                if all(_memory_size(values[slot]) <= _KEPT_BYTES for slot in outputs):
                    known.update(outputs)
                    continue
                for slot in outputs:
                    values[slot] = None
            elif entry.kernel is not None and not entry.constant:
                entry.step = step
            steps.append(step)
        return Bound(values[count:], steps, [slots[id(value)] for value in self.outputs])

    def _assign_slots(self) -> dict[int, int]:
        """Assigns a slot to each value; a slot is reused once its value is dropped, but not within the same step."""
        slots = {id(value): position for position, value in enumerate(self.inputs)}
        for value in self._constants():
            slots[id(value)] = len(slots)
        size = len(slots)
        free: list[int] = []
        for entry in self._entries:
            for value in entry.node.outputs:
                if free and not entry.constant:
                    slots[id(value)] = free.pop()
                else:
                    slots[id(value)] = size
                    size += 1
            free.extend(slots[id(value)] for value in entry.drops)
        return slots


def _memory_size(value: Any) -> int:
    while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.nbytes)


def block_of(site: Site, key: Any, jaxpr: Any) -> Block:
    """The block of a jaxpr among a node's params, made once per node."""
    block: Block | None = site.node.blocks.get(key)
    if block is None:
        block = site.node.blocks[key] = Block(jaxpr)
    return block
