"""A segment runs in one of three tiers, chosen by the runs so far.

    interpreted   NumPy runs the first runs, new shapes, and small work
    padded        code is compiled once for all sizes up to a bound, if shapes keep changing
    exact         code is compiled for one shape that comes again and again

NumPy runs a segment node by node if it is small or new. It runs one program for all sizes (`Traced`) if the shapes have
changed, or the program leaves sizes open. Code is compiled in the background while another tier serves, else at once.
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
from penstock.segments.compilation import in_background
from penstock.segments.kinds import written_positions
from penstock.segments.op_programs import TooMuchWork
from penstock.segments.running import Company, RunningStep
from penstock.segments.segment import Segment
from penstock.segments.stored_programs import Bounds
from penstock.segments.together import Together
from penstock.segments.traced import Sizes, Traced, bound_for, pattern_of, shapes_of

AGAIN = 3  # runs of a shape before code is compiled for it
WORTH = 0.001  # seconds that the quickest run in NumPy must take before code is compiled
WORTH_MOVING = 0.01  # the same for a segment that changes large variables
LATER = 5  # code for a run that is up to so many times quicker is compiled after LONG seconds of it
LARGE = 1 << 20  # bytes of variables: moving them between NumPy and compiled code costs a copy
LONG = 0.3  # seconds in NumPy, over all runs, after which code is prepared
LONG_FOR_ONE = 1.0  # seconds of one shape, in code that is not for it alone, after which better code is prepared
FEW = 2  # shapes: a segment with more counts as one whose shapes change
OFTEN = 50  # runs of one of many shapes before exact code is compiled for it
ROOMY = 4  # a smaller bound is prepared if padding makes the arrays so many times larger
MANY_PROGRAMS = 12  # no more are compiled for one segment in the background
MANY_SHAPES = 1000  # no more are remembered
FEW_NODES = 30  # a segment of no more runs node by node: work for each new size would cost more than the nodes
MANY_NODES = 3000  # a segment of more is traced only when it is compiled
MANY_TRACES = 4  # no more traces of one segment, for patterns that did not hold
FOR_PATTERN = 8  # a pattern is learnt from so many shapes
IMAGINED = 2  # invented shapes beside the one seen; this many show which sizes depend on others
SIMILAR = 16  # a loop bound that is at most so many times larger is used again

Imagined = dict[int, list[Shapes]]  # by slot: invented shapes of the arrays in it


class _Seen:
    """Counts the runs of one shape of a segment's inputs, and the time that they took."""

    __slots__ = ("asked", "runs", "seconds")

    def __init__(self) -> None:
        self.runs = 0
        self.seconds = 0.0  # spent in other code than its own
        self.asked = False  # code for it is being compiled


class Tiers:
    """Chooses the tier for each run of a segment, and has code compiled where that pays."""

    def __init__(self, segment: Segment, node_by_node: Callable[[], Any], imagined: Imagined) -> None:
        self.segment = segment
        self.failure: NotTraceable | None = None  # the reason why the segment cannot be compiled as it is
        self._make_node_by_node = node_by_node
        self._node_by_node: Any = None
        only = os.environ.get("PENSTOCK_TIER", "")
        self._may_interpret = segment.platform == "cpu" and (
            only == "interpreted" or (not only and not _replaces_huge(segment))
        )
        self._may_trace = bool(segment.in_slots) and len(segment.plan.nodes) < MANY_NODES and only != "exact"
        self._is_small = len(segment.plan.nodes) <= FEW_NODES and not only
        self._may_pad = only in ("", "padded")
        self._may_compile = only != "interpreted"
        self._in_slots = segment.in_slots
        self._static_slots = segment.static_slots
        self._input_slots = [segment.slot_of(e) for e in segment.plan.inputs]
        loops = [segment.slot_of(e) for e in segment.plan.static if e[0].op.name == "WhileTripCount"]
        self._loop_bounds = dict.fromkeys(loops, 0)  # the largest bound so far, by slot
        self._imagined = imagined
        fed = [(e[0].attrs.get("shape") if e[0].op.name == "_Arg" else None) for e in segment.inputs]
        self._fed = {slot: shape for slot, shape in zip(segment.in_slots, fed, strict=True) if shape is not None}
        self._lock = threading.Lock()  # steps may come from several threads
        self._seen: dict[Any, _Seen] = {}
        self._counts: dict[Any, int] = {}  # number of shapes, by the other things that code is specialised on
        # Shapes that have code of their own, and what runs that for several steps, if that pays.
        self._exact: dict[Any, Together | None] = {}
        self._traced: dict[Any, Traced] = {}  # by those other things
        self._traces = 0
        self._tracing = threading.Lock()
        self._asked: set[Any] = set()  # padded code that is being compiled
        self._seconds = 0.0  # of all runs in NumPy
        self._quickest = math.inf  # seconds of the quickest of them
        self._settled: Any = None  # the shapes of a run that is too small to ever be compiled
        self._updates: Callable[[list[Any]], bool] | None = None  # runs it then, if it only updates variables

    def __call__(self, values: list[Any], step: RunningStep) -> Company | None:
        """Runs the segment, or returns what runs it for several steps. Raises NotTraceable if it must be cut first."""
        for slot, largest in self._loop_bounds.items():
            self._loop_bounds[slot] = values[slot] = _similar_bound(values[slot], largest)
        shapes, known = self._form(values)
        if (shapes, known) == self._settled:
            if self._updates is None or not self._updates([values[s] for s in self._input_slots]):
                with interpreting():
                    self._run_nodes(values, step)
            return None
        if (shapes, known) in self._exact:
            if step.has_company and (together := self._exact[shapes, known]) is not None:
                return together
            self._may_interpret = self._may_interpret and not self._is_large
            self.segment(values, step.drawn, step.wake is not None)
            return None
        if self.failure is not None:
            raise self.failure
        seen = self._noted(shapes, known)
        began = time.perf_counter()
        traced, sizes = self._fitting(shapes, known, values, step.wake is not None)
        bounds = traced.fitting(sizes) if traced is not None else None
        if bounds is not None:
            self._may_interpret = self._may_interpret and not self._is_large
            traced.run(bounds, sizes, values, step)
        elif not self._interpreted(traced, sizes, values, step):
            self._compile_now(shapes, known, traced, sizes, values, step)
            return None
        took = time.perf_counter() - began
        seen.seconds += took
        if bounds is None:
            self._seconds += took
            self._quickest = min(took, self._quickest)
        if self._may_compile:
            self._prepare(shapes, known, seen, traced, sizes, bounds, values)
        return None

    def _form(self, values: list[Any]) -> tuple[Shapes, Any]:
        """Returns the shapes of the inputs, and the values and kinds of lists that code is specialised on."""
        known = tuple([np.asarray(values[s]).tobytes() for s in self._static_slots]) if self._static_slots else ()
        try:
            return tuple([values[s].shape for s in self._in_slots]), known
        except AttributeError:  # some inputs are lists of tensors
            inputs = [values[s] for s in self._in_slots]
            return shapes_of(inputs), (*known, *map(_kind, inputs))

    @functools.cached_property
    def _is_large(self) -> bool:
        """Tells if the segment changes large variables. Once compiled code has them, it keeps them."""
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
        """Returns the segment as one jaxpr that fits these shapes, and their sizes. It traces only if that pays."""
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
        """Tells if sizes have changed, or may change because the program leaves them open."""
        count = self._counts[known]
        if self._is_small and self._may_interpret and self._seconds < LONG:
            return False
        if self._traces:
            return self._traces < MANY_TRACES and count > 1 << self._traces
        return count > 1 or any(imagined != shapes for imagined in self._imagine(shapes))

    def _imagine(self, shapes: Shapes) -> list[Shapes]:
        """Returns invented shapes that the program allows as well. Returns none if an input's are not known."""
        worlds: list[Any] = [[] for _ in range(IMAGINED)]
        for slot in self._in_slots:
            if slot not in self._imagined and slot not in self._fed:
                return []
            for i, world in enumerate(worlds):
                at = len(world)  # a fed value is one array
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
            self._require_traceable(values)  # perhaps only the symbols prevent tracing
            return None
        except Exception:  # kernels that must know their sizes raise errors of many kinds
            return None
        self._traced[known] = traced
        results = [traced.output_shapes(world) for world in imagined]
        if imagined and None not in results:
            each = zip(*[r for r in results if r is not None], strict=True)
            self._imagined.update(zip(self.segment.out_slots, map(list, each), strict=True))
        return traced

    def _require_traceable(self, values: list[Any]) -> None:
        """Raises NotTraceable if the segment cannot be traced with known sizes either."""
        try:
            function = self.segment.traced([np.asarray(values[s]) for s in self._static_slots])
            jax.eval_shape(function, *self.segment.forms(values))
        except NotTraceable as error:
            self.failure = error
            raise

    # Running in NumPy

    def _interpreted(self, traced: Traced | None, sizes: Sizes, values: list[Any], step: RunningStep) -> bool:
        """Runs the segment in NumPy, and tells if that was possible."""
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
            return False  # compiled code knows the shape of a list that never had an item, NumPy does not
        return self._may_interpret

    def _run_nodes(self, values: list[Any], step: RunningStep) -> None:
        if self._node_by_node is not None:
            self._run(self._node_by_node, values, step)
            return
        with without_collecting():  # the first run makes objects that stay
            self._node_by_node = self._make_node_by_node()
            self._run(self._node_by_node, values, step)

    def _run(self, node_by_node: Any, values: list[Any], step: RunningStep) -> None:
        segment = self.segment
        inputs = [values[s] for s in self._input_slots]
        with segment.all_locks:
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
        for slot, value in zip(segment.out_slots, results, strict=True):
            values[slot] = _owned(value, taken)

    # Compiling

    def _compile_now(
        self, shapes: Shapes, known: Any, traced: Traced | None, sizes: Sizes, values: list[Any], step: RunningStep
    ) -> None:
        """Compiles in this thread, since no other tier can run the segment."""
        if traced is not None and self._may_pad and self._changes(known):
            if step.wake is not None:
                raise NeedsThread  # compiling takes long
            self._pad(traced, self._bounds(traced, sizes))
            bounds = traced.fitting(sizes)
            if bounds is not None:
                traced.run(bounds, sizes, values, step)
                return
        self.segment(values, step.drawn, step.wake is not None)
        self._add_exact(shapes, known)

    def _add_exact(self, shapes: Shapes, known: Any) -> None:
        self._exact[shapes, known] = Together(self.segment) if Together.pays(self.segment) else None

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
        """Compiles code in the background if that pays."""
        if len(self._exact) + sum(len(t.programs) for t in list(self._traced.values())) >= MANY_PROGRAMS:
            return
        worth = WORTH_MOVING if self._is_large else WORTH
        if bounds is None and self._quickest < worth:
            is_tiny = self._quickest < worth / LATER
            if is_tiny and self._is_small and seen.runs > OFTEN:
                self._updates = self._node_by_node.as_updates(self.segment.all_locks)
                self._settled = shapes, known
            if is_tiny or seen.seconds < LONG:
                return
        changes = self._changes(known)
        if (not changes and seen.runs >= AGAIN) or (seen.runs >= OFTEN and seen.seconds > LONG_FOR_ONE):
            if not seen.asked:
                seen.asked = True
                self._prepare_exact(shapes, known, values)
        elif changes and traced is not None and self._may_pad:
            wanted, bounds = self._bounds(traced, sizes), traced.fitting(sizes)  # code may have become ready meanwhile
            is_long = self._seconds > LONG if bounds is None else seen.seconds > LONG_FOR_ONE
            fits = bounds is not None and math.prod(bounds) < ROOMY * math.prod(wanted)
            if is_long and not fits and (known, wanted) not in self._asked:
                self._asked.add((known, wanted))
                in_background(lambda: self._pad(traced, wanted), self.segment.name, self.segment.program.log)

    def _prepare_exact(self, shapes: Shapes, known: Any, values: list[Any]) -> None:
        compiled, forms = self.segment.to_compile(values)

        def compile_exact() -> None:
            try:
                with self.segment.program.compiling():
                    self.segment.compile(compiled, forms)
            except NotTraceable as error:
                self.failure = error
            else:
                self._add_exact(shapes, known)

        in_background(compile_exact, self.segment.name, self.segment.program.log)

    def _bounds(self, traced: Traced, sizes: Sizes) -> Bounds:
        """Returns the bounds to compile for: the first time for all sizes seen, later for these sizes."""
        largest = {} if traced.programs else traced.pattern.largest
        return tuple(bound_for(max(sizes[name], largest.get(name, 0))) for name in traced.pattern.symbols)

    def _load(self, traced: Traced, shapes: Shapes) -> bool:
        """Loads the program for these shapes that an earlier process has stored on disk; False if there is none.

        This takes a fraction of a second, mostly of Python. In the background it would slow down steps in NumPy.
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
        except Exception as error:  # another version of jax may differ; the other tiers still work
            self._may_pad = False
            logging.warning("'%s' could not be compiled for all sizes: %r", self.segment.name, error)


def _replaces_huge(segment: Segment) -> bool:
    """Tells if the segment changes the whole of a huge variable: compiled code does that without a second copy."""
    huge = {n for n, v in (*segment.updated, *segment.assigned) if v.is_huge}
    return bool(huge) and any(
        segment.variable_node(node.inputs[i]) in huge
        for node in segment.plan.nodes
        for i in written_positions(node.op)
        if all(arg.name != "indices" for arg in node.op.inputs)
    )


def _imagined_shape(dims: tuple[int, ...], declared: TensorShape, world: int) -> tuple[int, ...]:
    """Returns a shape that might be fed as well. Equal sizes stay equal; 0 and 1 stay, since they broadcast."""
    if declared.rank != len(dims):
        return dims
    return tuple(
        random.Random(IMAGINED * size + world).randint(50, 5000) if known is None and size > 1 else size
        for size, known in zip(dims, declared.as_list(), strict=True)
    )


def _kind(value: Any) -> Any:
    """Returns the kind of list that a value is, or None. The shape of its array tells how many items it has."""
    if not hasattr(value, "tree_flatten"):
        return None
    return type(value), len(jax.tree.leaves(value)), value.size if isinstance(value, RowList) else None


def _similar_bound(bound: Any, largest: Any) -> Any:
    """Returns the largest bound so far if it is similar, since code for it may exist; else `bound`."""
    return largest if 0 < bound <= largest <= SIMILAR * bound else bound


def _owned(value: Any, taken: set[int]) -> Any:
    """Returns a result of NumPy as an array that its receiver may change, or as a list of tensors in one array."""
    if value.__class__ is np.ndarray:
        return value.copy() if value.base is not None or id(value) in taken else value
    if isinstance(value, np.generic):
        return np.array(value)
    if isinstance(value, RowList) and len({None if i is None else i.shape for i in value.items}) == 1:
        return value.stacked()
    return value
