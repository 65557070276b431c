"""Tiers: which way a segment runs, by what was seen of it so far.

    interpreted   its first runs, runs of shapes that are new, and work that is small: in NumPy
    padded        compiled once for all sizes up to a bound, where shapes keep changing
    exact         compiled for one shape, where that comes again and again

In NumPy a segment runs node by node if it is small or comes for the first time, and if it has come again with another
shape, or was declared with sizes that are not known, as one program for all sizes (`Traced`). Compiling happens in the
background while another tier serves, else at once.
"""

from __future__ import annotations

import functools
import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from penstock import logging
from penstock.errors import UnimplementedError
from penstock.graph.checks import NotTraceable
from penstock.graph.shape import TensorShape
from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.pattern import Shapes
from penstock.kernel.lists import RowList
from penstock.kernel.types import interpreting
from penstock.kernel.waiting import NeedsThread
from penstock.memory import without_collecting
from penstock.worker.compilation import in_background
from penstock.worker.op_programs import TooMuchWork
from penstock.worker.segment import Segment
from penstock.worker.step import Step
from penstock.worker.stored_programs import Bounds
from penstock.worker.traced import Sizes, Traced, bound_for, pattern_of, shapes_of

AGAIN = 3  # times that a shape must have come before code is compiled for it
WORTH = 0.001  # seconds that the quickest run in NumPy must take for that
WORTH_MOVING = 0.01  # likewise, of a segment that changes large variables
LARGE = 1 << 20  # bytes of variables: to take them from NumPy to compiled code, or back, costs a copy
LONG = 0.3  # seconds in NumPy, over all runs, after which code is prepared: some of what compiling takes
LONG_FOR_ONE = 1.0  # likewise, of one shape, in code that is not for it alone
FEW = 2  # shapes: a segment that has seen more is one whose shapes change
OFTEN = 50  # times that one of many shapes must have come before code is compiled for it alone
ROOMY = 4  # times as much room as is needed: from here on a smaller bound is prepared
MANY_PROGRAMS = 12  # that are compiled for one segment in the background
MANY_SHAPES = 1000  # that are remembered
FEW_NODES = 30  # of a segment that NumPy runs node by node: what is done anew for each size costs more than the nodes
MANY_NODES = 3000  # of a segment that is traced only when it is compiled
MANY_TRACES = 4  # of one segment, for patterns that did not last
FOR_PATTERN = 8  # shapes that a pattern is learnt from
IMAGINED = 2  # shapes beside the one that was seen: so many show how sizes hang together
SIMILAR = 16  # times: a bound of a loop that is so much larger serves as well

Imagined = dict[int, list[Shapes]]  # shapes of results that might come as well, by slot: of each one's arrays


class _Seen:
    """One shape of a segment's inputs: how often it came, and how long its runs took."""

    __slots__ = ("asked", "runs", "seconds")

    def __init__(self) -> None:
        self.runs = 0
        self.seconds = 0.0  # that runs took, in other code than its own
        self.asked = False  # whether code for it is under way


class Tiers:
    """The ways in which a segment can run, and the choice between them."""

    def __init__(self, segment: Segment, node_by_node: Callable[[], Any], imagined: Imagined) -> None:
        self.segment = segment
        self.failure: NotTraceable | None = None  # why the segment cannot be compiled as it is
        self._make_node_by_node = node_by_node
        self._node_by_node: Any = None
        only = os.environ.get("PENSTOCK_TIER", "")
        self._may_interpret = segment.platform == "cpu" and only in ("", "interpreted")
        self._may_trace = bool(segment.in_slots) and len(segment.plan.nodes) < MANY_NODES and only != "exact"
        self._is_small = len(segment.plan.nodes) <= FEW_NODES and not only
        self._may_pad = only in ("", "padded")
        self._may_compile = only != "interpreted"
        self._in_slots = segment.in_slots
        self._static_slots = segment.static_slots
        self._input_slots = [segment.slot_of(e) for e in segment.plan.inputs]
        loops = [segment.slot_of(e) for e in segment.plan.static if e[0].op.name == "WhileTripCount"]
        self._loop_bounds = dict.fromkeys(loops, 0)  # the largest that was seen
        self._imagined = imagined
        fed = [(e[0].attrs.get("shape") if e[0].op.name == "_Arg" else None) for e in segment.inputs]
        self._fed = {slot: shape for slot, shape in zip(segment.in_slots, fed, strict=True) if shape is not None}
        self._lock = threading.Lock()  # steps may come from several threads
        self._seen: dict[Any, _Seen] = {}
        self._counts: dict[Any, int] = {}  # of shapes, by what else the segment is specialised on
        self._exact: set[Any] = set()  # shapes for which code is there
        self._traced: dict[Any, Traced] = {}  # by what else the segment is specialised on
        self._traces = 0
        self._tracing = threading.Lock()
        self._asked: set[Any] = set()  # padded code that is under way
        self._seconds = 0.0  # in NumPy
        self._quickest = math.inf  # run there
        self._settled: Any = None  # shapes of work that is so small that it stays as it is

    def __call__(self, values: list[Any], step: Step) -> None:
        """Runs the segment; NotTraceable if it has to be cut first."""
        for slot, largest in self._loop_bounds.items():
            self._loop_bounds[slot] = values[slot] = _similar_bound(values[slot], largest)
        shapes, known = self._form(values)
        if (shapes, known) == self._settled:
            with interpreting():
                self._run_nodes(values, step)
            return
        if (shapes, known) in self._exact:
            self._may_interpret = self._may_interpret and not self._is_large
            self.segment(values, step.drawn, step.quick)
            return
        if self.failure is not None:
            raise self.failure
        seen = self._noted(shapes, known)
        began = time.perf_counter()
        traced, sizes = self._fitting(shapes, known, values, step.quick)
        bounds = traced.fitting(sizes) if traced is not None else None
        if bounds is not None:
            self._may_interpret = self._may_interpret and not self._is_large
            traced.run(bounds, sizes, values, step)
        elif not self._interpreted(traced, sizes, values, step):
            self._compile_now(shapes, known, traced, sizes, values, step)
            return
        took = time.perf_counter() - began
        seen.seconds += took
        if bounds is None:
            self._seconds += took
            self._quickest = min(took, self._quickest)
        if self._may_compile:
            self._prepare(shapes, known, seen, traced, sizes, bounds, values)

    def _form(self, values: list[Any]) -> tuple[Shapes, Any]:
        """The shapes of the inputs, and what else code is specialised on: values, and the kinds of lists."""
        known = tuple([np.asarray(values[s]).tobytes() for s in self._static_slots]) if self._static_slots else ()
        try:
            return tuple([values[s].shape for s in self._in_slots]), known
        except AttributeError:  # there are lists of tensors among them
            inputs = [values[s] for s in self._in_slots]
            return shapes_of(inputs), (*known, *map(_kind, inputs))

    @functools.cached_property
    def _is_large(self) -> bool:
        """Tells if it changes large variables. Compiled code keeps those once it has them."""
        return sum(variable.nbytes() for variable in self.segment.updated_variables) > LARGE

    def _noted(self, shapes: Shapes, known: Any) -> _Seen:
        with self._lock:
            seen = self._seen.get((shapes, known))
            if seen is None:
                if len(self._seen) >= MANY_SHAPES:
                    self._seen.pop(next(iter(self._seen)))
                seen = self._seen[shapes, known] = _Seen()
                self._counts[known] = self._counts.get(known, 0) + 1
            seen.runs += 1
            return seen

    def _changes(self, known: Any) -> bool:
        """Tells if the shapes keep changing."""
        return self._counts[known] > FEW

    # Tracing

    def _fitting(self, shapes: Shapes, known: Any, values: list[Any], quick: bool) -> tuple[Any, Any]:
        """The segment as one jaxpr that fits these shapes, with their sizes; made if that pays, else None."""
        traced = self._traced.get(known)
        sizes = traced.pattern.sizes(shapes) if traced is not None else None
        if sizes is None and self._may_trace and self._is_worth_tracing(shapes, known):
            if quick:
                raise NeedsThread  # tracing takes long
            with self._tracing:
                traced = self._trace(shapes, known, values)
            sizes = traced.pattern.sizes(shapes) if traced is not None else None
        return (traced, sizes) if sizes is not None else (None, None)

    def _is_worth_tracing(self, shapes: Shapes, known: Any) -> bool:
        """Tells if sizes change, or may do so by the program's own words."""
        count = self._counts[known]
        if self._is_small and self._may_interpret and self._seconds < LONG:
            return False
        if self._traces:
            return self._traces < MANY_TRACES and count > 1 << self._traces
        return count > 1 or any(imagined != shapes for imagined in self._imagine(shapes))

    def _imagine(self, shapes: Shapes) -> list[Shapes]:
        """Shapes that might come as well, if that is known of all inputs: by what the program leaves open."""
        worlds: list[Any] = [[] for _ in range(IMAGINED)]
        for slot in self._in_slots:
            if slot not in self._imagined and slot not in self._fed:
                return []
            for i, world in enumerate(worlds):
                at = len(world)  # what is fed is one array
                fed = [_imagined_shape(dims, self._fed[slot], i) for dims in shapes[at : at + 1] if slot in self._fed]
                world += self._imagined[slot][i] if slot in self._imagined else fed
        ranks = [len(dims) for dims in shapes]
        return [tuple(world) for world in worlds if [len(dims) for dims in world] == ranks]

    def _trace(self, shapes: Shapes, known: Any, values: list[Any]) -> Traced | None:
        self._traces += 1
        seen = [s for s, k in list(self._seen) if k == known][-FOR_PATTERN:]
        imagined = self._imagine(shapes) if len(seen) == 1 else []
        pattern = pattern_of(seen, imagined)
        if pattern is None or not pattern.symbols:
            return None
        try:
            traced = Traced(self.segment, pattern, values)
            if not self._load(traced, shapes):
                self._may_interpret = self._may_interpret and (self._is_small or traced.has_numpy)
        except NotTraceable:
            self._require_traceable(values)  # perhaps only symbols are in the way
            return None
        except Exception:  # of many kinds: some kernels must know their sizes
            return None
        self._traced[known] = traced
        results = [traced.output_shapes(world) for world in imagined]
        if imagined and None not in results:
            each = zip(*[r for r in results if r is not None], strict=True)
            self._imagined.update(zip(self.segment.out_slots, map(list, each), strict=True))
        return traced

    def _require_traceable(self, values: list[Any]) -> None:
        """NotTraceable if the segment cannot be traced with known sizes either."""
        try:
            function = self.segment.traced([np.asarray(values[s]) for s in self._static_slots])
            jax.eval_shape(function, *self.segment.forms(values)[1])
        except NotTraceable as error:
            self.failure = error
            raise

    # Running in NumPy

    def _interpreted(self, traced: Traced | None, sizes: Sizes, values: list[Any], step: Step) -> bool:
        """Runs in NumPy if that can be done."""
        if not self._may_interpret:
            return False
        try:
            with interpreting():
                if traced is not None and not self._is_small:
                    traced.interpret(sizes, values, step)
                else:
                    self._run_nodes(values, step)
        except (NoRule, TooMuchWork):
            self._may_interpret = False
        except UnimplementedError:
            return False  # a list that never had an item has one shape for compiled code, and none here
        return self._may_interpret

    def _run_nodes(self, values: list[Any], step: Step) -> None:
        if self._node_by_node is not None:
            self._run(self._node_by_node, values, step)
            return
        with without_collecting():  # what is made for the first run stays
            self._node_by_node = self._make_node_by_node()
            self._run(self._node_by_node, values, step)

    def _run(self, node_by_node: Any, values: list[Any], step: Step) -> None:
        segment = self.segment
        inputs = [values[s] for s in self._input_slots]
        for lock in segment.all_locks:
            lock.acquire()
        step.undo = []
        try:
            results = node_by_node.run(inputs, step)
            taken = {id(v) for v in (*inputs, *(v.value for v in segment.variables))}
        except BaseException:
            for undo in reversed(step.undo):
                undo()
            raise
        finally:
            step.undo = []
            for lock in segment.all_locks:
                lock.release()
        for slot, value in zip(segment.out_slots, results, strict=True):
            values[slot] = _owned(value, taken)

    # Compiling

    def _compile_now(
        self, shapes: Shapes, known: Any, traced: Traced | None, sizes: Sizes, values: list[Any], step: Step
    ) -> None:
        """Compiles here, since nothing else can run it."""
        if traced is not None and self._may_pad and self._changes(known):
            if step.quick:
                raise NeedsThread  # compiling takes long
            self._pad(traced, self._bounds(traced, sizes))
            bounds = traced.fitting(sizes)
            if bounds is not None:
                traced.run(bounds, sizes, values, step)
                return
        self.segment(values, step.drawn, step.quick)
        self._exact.add((shapes, known))

    def _prepare(
        self,
        shapes: Shapes,
        known: Any,
        seen: _Seen,
        traced: Traced | None,
        sizes: Sizes,
        bounds: Bounds | None,
        values: list[Any],
    ) -> None:
        """Has code compiled in the background if that pays."""
        if len(self._exact) + sum(len(t.programs) for t in list(self._traced.values())) >= MANY_PROGRAMS:
            return
        if bounds is None and self._quickest < (WORTH_MOVING if self._is_large else WORTH):
            if self._is_small and seen.runs > OFTEN:
                self._settled = shapes, known
            return
        changes = self._changes(known)
        if (not changes and seen.runs >= AGAIN) or (seen.runs >= OFTEN and seen.seconds > LONG_FOR_ONE):
            if not seen.asked:
                seen.asked = True
                self._prepare_exact(shapes, known, values)
        elif changes and traced is not None and self._may_pad:
            wanted, bounds = self._bounds(traced, sizes), traced.fitting(sizes)  # code may be there by now
            is_long = self._seconds > LONG if bounds is None else seen.seconds > LONG_FOR_ONE
            fits = bounds is not None and math.prod(bounds) < ROOMY * math.prod(wanted)
            if is_long and not fits and (known, wanted) not in self._asked:
                self._asked.add((known, wanted))
                in_background(lambda: self._pad(traced, wanted), self.segment.name, self.segment.program.log)

    def _prepare_exact(self, shapes: Shapes, known: Any, values: list[Any]) -> None:
        compiled, forms = self.segment.forms(values)

        def compile_exact() -> None:
            try:
                with self.segment.program.compiling():
                    self.segment.compile(compiled, forms)
            except NotTraceable as error:
                self.failure = error
            else:
                self._exact.add((shapes, known))

        in_background(compile_exact, self.segment.name, self.segment.program.log)

    def _bounds(self, traced: Traced, sizes: Sizes) -> Bounds:
        """The bounds to compile for: at first for all sizes that were seen, then for these."""
        largest = {} if traced.programs else traced.pattern.largest
        return tuple(bound_for(max(sizes[name], largest.get(name, 0))) for name in traced.pattern.symbols)

    def _load(self, traced: Traced, shapes: Shapes) -> bool:
        """Loads the program for these shapes that an earlier process has left on disk; False if there is none.

        This takes a fraction of a second, much of it Python: beside steps in NumPy it would take longer, and they, too.
        """
        sizes = traced.pattern.sizes(shapes) if self._may_pad and self._may_compile else None
        bounds = None if sizes is None else traced.fitting(sizes, traced.stored.bounds())
        if bounds is not None:
            self._pad(traced, bounds)
        return bounds in traced.programs

    def _pad(self, traced: Traced, bounds: Bounds) -> None:
        try:
            traced.compile(bounds)
        except NoRule:
            self._may_pad = False
        except Exception as error:  # of a jax that does things in another way; other tiers serve
            self._may_pad = False
            logging.warning("'%s' could not be compiled for all sizes: %r", self.segment.name, error)


def _imagined_shape(dims: tuple[int, ...], declared: TensorShape, world: int) -> tuple[int, ...]:
    """A shape that might be fed as well. Equal sizes stay equal; 0 and 1 are what they are, since they broadcast."""
    if declared.rank != len(dims):
        return dims
    return tuple(
        random.Random(IMAGINED * size + world).randint(50, 5000) if known is None and size > 1 else size
        for size, known in zip(dims, declared.as_list(), strict=True)
    )


def _kind(value: Any) -> Any:
    """The kind of list that a value is. How many items it has is also the size of the array that holds them."""
    if not hasattr(value, "tree_flatten"):
        return None
    return type(value), len(jax.tree.leaves(value)), value.size if isinstance(value, RowList) else None


def _similar_bound(bound: Any, largest: Any) -> Any:
    """A bound for the iterations of a loop that code may be there for already."""
    return largest if 0 < bound <= largest <= SIMILAR * bound else bound


def _owned(value: Any, taken: set[int]) -> Any:
    """A result of NumPy's: an array of its own, as who gets it may change it, or a list of tensors in one array."""
    if value.__class__ is np.ndarray:
        return value.copy() if value.base is not None or id(value) in taken else value
    if isinstance(value, np.generic):
        return np.array(value)
    if isinstance(value, RowList) and len({None if i is None else i.shape for i in value.items}) == 1:
        return value.stacked()
    return value
