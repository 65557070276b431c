"""A traced segment is one jaxpr for all sizes of its inputs. NumPy runs it, and XLA compiles it for bounds."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock.graph.checks import NotTraceable
from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.numpy_program import NumpyProgram
from penstock.jaxprs.padding import padded, padded_shape, true_shape
from penstock.jaxprs.pattern import Pattern, Shapes
from penstock.jaxprs.symbols import NOT_FOR_SYMBOLS, here, is_symbol
from penstock.kernel.lists import StackedList
from penstock.memory import aligned_empty
from penstock.ops.engine.iteration_memory import StackedMemory
from penstock.segments.compilation import Program, this_thread
from penstock.segments.randomness import Known
from penstock.segments.running import RunningStep
from penstock.segments.segment import Segment
from penstock.segments.stored_programs import Bounds, StoredPrograms
from penstock.segments.stored_variable import USED_UP

SMALLEST = 16  # no bound is smaller
MANY_ASSUMPTIONS = 10  # a program may assume no more about its sizes
Sizes = dict[str, int]


def bound_for(size: int) -> int:
    """Returns the bound that a size is padded to, a power of two.

    >>> [bound_for(n) for n in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(SMALLEST, 1 << (size - 1).bit_length())


class Traced:
    """Holds a segment whose inputs follow a pattern. Making it traces, and raises if a kernel must know sizes."""

    def __init__(self, segment: Segment, pattern: Pattern, values: list[Any]) -> None:
        self.segment = segment
        self.pattern = pattern
        updated, read, _, constants, keys = segment.forms(values)
        self.others = updated, read, constants, keys
        for _ in range(MANY_ASSUMPTIONS):
            here.undecided = []
            try:
                outcome = self._trace(values)
                break
            except NOT_FOR_SYMBOLS as error:
                question = str(error)
                if not pattern.assume(question, self._known_sizes(values)):
                    raise
            except NotTraceable:
                # Perhaps only because a size was undecided, and was computed as a number.
                if not any(pattern.assume(question, self._known_sizes(values)) for question in here.undecided):
                    raise
        else:
            raise NoRule("trace", "too much depends on the sizes")
        self.outcome = jax.tree.structure(outcome)
        new, self.outputs, assigned, self.moved, failed = outcome
        self.counts = len(new), len(jax.tree.leaves(self.outputs)), len(assigned)
        self.can_fail = failed is not None
        if any(is_symbol(d) for form in (*new, *assigned) for d in form.shape):
            raise NoRule("assign", "the shape of a variable changes")
        self.programs: dict[Bounds, _Padded] = {}
        # Beside a GPU, code for the CPU may get arrays that jax has to move, which only jit does.
        self.stored = StoredPrograms(self.jaxpr, is_used=segment.platform == "cpu" and segment.is_default)

    def _trace(self, values: list[Any]) -> Any:
        """Traces the segment with the pattern's symbols, and returns the form of its results."""
        segment = self.segment
        leaves, tree = jax.tree.flatten([values[s] for s in segment.in_slots])
        self.forms = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(self.pattern.shapes, leaves, strict=False)]
        symbolic = jax.tree.unflatten(tree, self.forms)
        of_empty_lists = iter(self.pattern.shapes[len(leaves) :])
        for value in symbolic:
            if isinstance(value, (StackedList, StackedMemory)):
                held = jax.tree.leaves(value.items)
                value.size, *item = held[0].shape if held else next(of_empty_lists)
                if not held and isinstance(value, StackedList) and value.item_shape is not None:
                    value.item_shape = tuple(item)
        updated, read, constants, keys = self.others
        function = segment.traced([np.asarray(values[s]) for s in segment.static_slots])
        self.jaxpr, outcome = jax.make_jaxpr(function, return_shape=True)(updated, read, symbolic, constants, keys)
        return outcome

    def output_shapes(self, inputs: Shapes) -> list[Shapes] | None:
        """Returns the shapes of each output's arrays for such inputs, or None if these do not fit."""
        sizes = self.pattern.sizes(inputs)
        if sizes is None:
            return None
        return [tuple(true_shape(x.shape, sizes) for x in jax.tree.leaves(form)) for form in self.outputs]

    def _known_sizes(self, values: list[Any]) -> Sizes:
        sizes = self.pattern.sizes(shapes_of([values[s] for s in self.segment.in_slots]))
        assert sizes is not None, "a pattern fits the shapes it was made for"
        return sizes

    # In NumPy

    @functools.cached_property
    def in_numpy(self) -> NumpyProgram:
        """The program that NumPy runs. Raises NoRule if NumPy lacks a rule."""
        return NumpyProgram(self.jaxpr, range(len(self.segment.updated)))

    @property
    def has_numpy(self) -> bool:
        """Tells if NumPy has rules for all of it."""
        try:
            return self.in_numpy is not None
        except NoRule:
            return False

    def interpret(self, sizes: Sizes, values: list[Any], step: RunningStep) -> None:
        """Runs the segment in NumPy."""
        segment, program = self.segment, self.in_numpy
        inputs = [np.asarray(x) for x in jax.tree.leaves([values[s] for s in segment.in_slots])]
        keys = [segment.random_state.keys(segment.random, step.drawn)] if segment.random else []
        with segment.all_locks:
            updated = segment.updated_variables
            held: list[Any] = []
            try:
                for i, variable in enumerate((*updated, *segment.read_variables)):
                    held.append(variable.taken() if i in program.written else np.asarray(variable.read()))
                results = program([*held, *inputs, *map(np.asarray, segment.constants), *keys])
                new, count, assigned = self.counts
                # Arrays that were written in place are unchanged if a check has failed.
                segment.put(results[:new], ())
                if self.can_fail:
                    segment.checks.raise_if(results[-2:], sizes=sizes)
                last = new + count + assigned
                segment.put(results[:new], results[new + count : last])
                runs = iter(results[last:])
                moved = [m if isinstance(m, Known) else next(runs) for m in self.moved]
                segment.move_on(step.drawn, moved, sizes)
            finally:
                for i, value in enumerate(held):
                    if i in program.written and updated[i].value is USED_UP:
                        updated[i].value = value
                held.clear()
        taken = {id(x) for x in (*inputs, *(v.value for v in segment.variables))}
        leaves = iter([x.copy() if id(x) in taken else x for x in results[new : new + count]])
        for slot, form in zip(segment.out_slots, self.outputs, strict=True):
            parts = [next(leaves) for _ in jax.tree.leaves(form)]
            values[slot] = _sized(jax.tree.unflatten(jax.tree.structure(form), parts), sizes)

    # Compiled for bounds

    def compile(self, bounds: Bounds) -> None:
        """Compiles the program for these bounds."""
        self.programs[bounds] = _Padded(self, dict(zip(self.pattern.symbols, bounds, strict=True)))

    def fitting(self, sizes: Sizes, among: Iterable[Bounds] | None = None) -> Bounds | None:
        """Returns the bounds, of the programs or of `among`, that waste least on these sizes; None if none fit."""
        every = list(self.programs) if among is None else among
        fits = [b for b in every if all(sizes[n] <= b[i] for i, n in enumerate(self.pattern.symbols))]
        return min(fits, key=sum, default=None)

    def run(self, bounds: Bounds, sizes: Sizes, values: list[Any], step: RunningStep) -> None:
        """Runs the program for `bounds`."""
        self.programs[bounds].run(sizes, values, step)


class _Padded:
    """Holds the program of a traced segment for certain bounds."""

    def __init__(self, traced: Traced, bounds: Sizes) -> None:
        self._traced = traced
        updated, read, constants, keys = traced.others
        self._shapes = [padded_shape(f.shape, bounds) for f in traced.forms]
        inputs = [jax.ShapeDtypeStruct(s, f.dtype) for s, f in zip(self._shapes, traced.forms, strict=True)]
        sizes = {name: jax.ShapeDtypeStruct((), np.int32) for name in bounds}
        interpreted = functools.cache(lambda: padded(traced.jaxpr, bounds))  # not needed if the program is stored

        def of_leaves(*leaves: Any) -> Any:
            count = len(leaves) - len(bounds)
            return interpreted()(dict(zip(bounds, leaves[count:], strict=True)), leaves[:count])

        def segment(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any, sizes: Any) -> Any:
            leaves = jax.tree.leaves((updated, read, inputs, constants, keys))
            return jax.tree.unflatten(traced.outcome, call(*leaves, *(sizes[name] for name in bounds)))

        forms = [*jax.tree.leaves((updated, read, inputs, constants, keys)), *sizes.values()]
        call = traced.stored.function(tuple(bounds.values()), of_leaves, forms)
        jitted = traced.segment.jitted(traced.segment.in_one_kernel(segment))
        self._program = Program(traced.segment.program.log, traced.segment.name, kind="padded")
        with self._program.compiling():
            this_thread.traced = self._program, [str(list(shape)) for shape in self._shapes]
            compiled = traced.segment.compile(jitted, (updated, read, inputs, constants, keys, sizes))
        # A stored function is called directly: jit would compile again when its results come back as arguments.
        self._compiled = jitted if call is of_leaves else compiled
        traced.stored.keep(tuple(bounds.values()))

    def run(self, sizes: Sizes, values: list[Any], step: RunningStep) -> None:
        segment = self._traced.segment
        leaves = jax.tree.leaves([values[s] for s in segment.in_slots])
        inputs = [_filled(x, shape) for x, shape in zip(leaves, self._shapes, strict=True)]
        numbers = {name: np.int32(size) for name, size in sizes.items()}
        this_thread.program = self._program
        outputs = segment.run(lambda *arguments: self._compiled(*arguments, numbers), inputs, step.drawn, sizes)
        for slot, value, form in zip(segment.out_slots, outputs, self._traced.outputs, strict=True):
            values[slot] = _cut(value, form, sizes)


def _filled(value: Any, shape: tuple[int, ...]) -> Any:
    """Returns an array of the padded shape that begins with the value."""
    if value.shape == shape:
        return value
    room = aligned_empty(shape, value.dtype)
    inside = tuple(map(slice, value.shape))
    for axis, (size, bound) in enumerate(zip(value.shape, shape, strict=True)):
        room[(*inside[:axis], slice(size, bound))] = 0  # padding does not show, but some numbers are slow
    room[inside] = value
    return room


def _cut(value: Any, form: Any, sizes: Mapping[str, int]) -> Any:
    """Returns a result without its padding."""
    if isinstance(form, jax.ShapeDtypeStruct):
        if not any(map(is_symbol, form.shape)):
            return value
        return np.asarray(value)[tuple(map(slice, true_shape(form.shape, sizes)))].copy()
    parts = [_cut(x, f, sizes) for x, f in zip(jax.tree.leaves(value), jax.tree.leaves(form), strict=True)]
    return _sized(jax.tree.unflatten(jax.tree.structure(form), parts), sizes)


def _sized(value: Any, sizes: Mapping[str, int]) -> Any:
    """Returns a list of tensors with its true size, and any other value as it is."""
    if isinstance(value, (StackedList, StackedMemory)):
        (value.size,) = true_shape((value.size,), sizes)
    if isinstance(value, StackedList) and value.item_shape is not None:
        value.item_shape = true_shape(value.item_shape, sizes)
    return value


def shapes_of(inputs: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of all arrays, also in lists of tensors, then those of lists that have no array yet."""
    lists = [v for v in inputs if isinstance(v, (StackedList, StackedMemory))]
    empty = [(v.size, *(getattr(v, "item_shape", None) or ())) for v in lists if not jax.tree.leaves(v.items)]
    return (*[x.shape for x in jax.tree.leaves(inputs)], *empty)


def pattern_of(seen: Sequence[Any], imagined: Sequence[Any] = ()) -> Pattern | None:
    """Returns the pattern of the shapes seen, or None if their ranks differ."""
    ranks = [[len(shape) for shape in shapes] for shapes in (*seen, *imagined)]
    return Pattern(seen, imagined) if all(r == ranks[0] for r in ranks) else None
