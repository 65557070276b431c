"""A segment is a set of pure nodes that compile to one XLA program, through which their variables are threaded."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InternalError, OpError, ResourceExhaustedError
from penstock.graph.checks import NotTraceable
from penstock.graph.dtype import DType
from penstock.jaxprs.dims import evaluate
from penstock.jaxprs.symbols import as_numbers, has_symbols
from penstock.kernel.types import on_platform
from penstock.kernel.waiting import NeedsThread
from penstock.segments.blocks import Blocks, Bundle, bundled, joined, joined_on_host
from penstock.segments.borrowing import LARGE, MIDDLE, Borrowed, aligned, borrowed, watched
from penstock.segments.compilation import Compilations, Program, this_thread
from penstock.segments.compiler_options import compiler_options
from penstock.segments.layout import Layout
from penstock.segments.one_kernel import MANY_NODES, as_one_kernel
from penstock.segments.plan import BIG_CONSTANT, SegmentPlan
from penstock.segments.randomness import Known, RandomState, is_random
from penstock.segments.shape_watch import shape_text, user_name, value_text
from penstock.segments.stored_variable import Locks, Part, StoredVariable, is_used_up, let_go, locks_of, placed
from penstock.segments.tracing import Checks, Trace, variables_in
from penstock.wire.shared_memory import LARGE as SENT_BACK

MAX_ON_HOST = 1 << 20  # bytes: the device writes fetched values up to this size to host memory itself
SMALL = 4096  # bytes: up to this size it is quicker to pass a NumPy array than to make a jax.Array first
MAX_SPECIALISED = 256  # values of static inputs for which a segment keeps compiled code


class _Caller(threading.local):
    """Says what the calling thread may do."""

    quick = False  # it must not compile


_caller = _Caller()


class _Stale(Exception):
    """Raised when an update has used up the buffer of a variable after it was read."""


class Segment:
    """Compiles a SegmentPlan on first use and runs it. Slots are positions in a step's list of values."""

    def __init__(
        self,
        plan: SegmentPlan,
        layout: Layout,
        platform: str,
        jax_device: Any,
        random_state: RandomState,
        compilations: Compilations,
    ) -> None:
        self.plan = plan
        self.slot_of = slot_of = layout.slot
        self.variable_node = layout.variable_node
        self.platform = platform
        self.jax_device = jax_device
        self.is_default = jax_device == jax.devices()[0]
        self.host = _host_memory(jax_device)
        static = {(id(n), i) for n, i in plan.static}
        self.inputs = [e for e in plan.inputs if (id(e[0]), e[1]) not in static]
        self.in_slots = [slot_of(e) for e in self.inputs]
        fed = set(layout.feed_slots)
        self.is_fed = [slot in fed for slot in self.in_slots]
        self._received = [i for i, edge in enumerate(self.inputs) if edge[0].op.name == "_Recv"]
        self.static_slots = [slot_of(e) for e in plan.static]
        self.out_slots = [slot_of(e) for e in plan.outputs]
        reads, writes = variables_in(plan.nodes, self.variable_node)
        # A variable that is read, then written, is donated. One that is only written does not go in. One that is only
        # read is shared with other readers.
        self.updated = [(n, layout.variable(n)) for n in writes if n in reads]
        self.assigned = [(n, layout.variable(n)) for n in writes if n not in reads]
        self.read = [(n, layout.variable(n)) for n in reads if n not in writes]
        everything = self.updated + self.assigned + self.read
        self.locks = locks_of(v for _, v in self.updated + self.assigned)
        self.all_locks = locks_of(v for _, v in everything)
        self.updated_variables = [v for _, v in self.updated]
        self.assigned_variables = [v for _, v in self.assigned]
        self.read_variables = [v for _, v in self.read]
        self.variables = [v for _, v in everything]
        keeps_shapes = all(n.attrs.get("validate_shape", True) for n in plan.nodes)
        self._one_by_one = Blocks(self.updated_variables, jax_device, is_used=False)
        self._blocks = Blocks(self.updated_variables, jax_device, is_used=platform == "cpu" and keeps_shapes)
        self.random = [n for n in plan.nodes if is_random(n)]
        self.random_state = random_state
        self.constants = [
            placed(n.attrs["value"], jax_device)
            for n in plan.nodes
            if n.op.name == "Const" and n.attrs["value"].size > BIG_CONSTANT
        ]
        self.fetched: list[int] = []  # positions of the outputs that only the client needs
        self.checks = Checks()
        self.name = next((n.name for n in plan.nodes if n.op.name != "Const"), "constants")
        self.program = Program(compilations, self.name, [user_name(node) for node, _ in (*self.inputs, *plan.static)])
        self._compiled: Callable[..., Any] | None = None  # used if it is specialised on nothing
        self.specialised: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    # Compiling

    def _jit(self, static: Sequence[np.ndarray]) -> Callable[..., Any]:
        traced = self.traced(static)
        sent = self.plan.sent if self.platform == "cpu" else ()

        def step(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any) -> Any:
            new, outputs, *others = traced(self._blocks.split(updated), read, _apart(inputs), constants, keys)
            return self._blocks.joined(new), bundled(outputs, sent, joined), *others

        step = self.in_one_kernel(step)

        def segment(updated: Any, read: Any, every: Any, constants: Any, keys: Any) -> Any:
            if _caller.quick:
                raise NeedsThread  # compiling takes long
            # Here and not in `traced`, which others trace without compiling it: this is about what is compiled next.
            this_thread.traced = this_thread.program, [*map(shape_text, _apart(every[0])), *map(value_text, static)]
            results, others = [], [None]
            for inputs in every:
                updated, outputs, *others = step(updated, read, inputs, constants, keys)
                results.append(outputs)
            if len(every) > 1 and others[-1] is not None:
                raise NotTraceable("a step whose check fails would undo the others")
            return updated, results, *others

        return self.jitted(segment)

    def traced(self, static: Sequence[np.ndarray]) -> Callable[..., Any]:
        """Returns the segment as a function that jax can trace; `static` are the values that it is specialised on."""

        def segment(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any) -> Any:
            with on_platform(self.platform):
                return self._trace(updated, read, inputs, constants, keys, static)

        return segment

    def in_one_kernel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that jax can trace to run it as one kernel, if it is a small update on the CPU."""
        is_update = self.platform == "cpu" and self.updated and len(self.plan.nodes) <= MANY_NODES
        return as_one_kernel(function) if is_update else function

    def jitted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of a segment's arguments, jitted for its device. The first argument is donated."""
        return jax.jit(function, donate_argnums=(0,), compiler_options=compiler_options(self.platform))

    def compile(self, jitted: Any, forms: Sequence[Any]) -> Any:
        """Compiles such a function for arguments of these forms. Returns the code, which takes no others."""
        with self._on_device():
            return jitted.lower(*forms).compile()

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.is_default else jax.default_device(self.jax_device)

    def _trace(self, updated: Any, read: Any, inputs: Any, constants: Any, keys: Any, static: Any) -> Any:
        # An uninitialised variable is found here and not on every call, since None in place of an array is traced anew.
        for (_, variable), value in (*zip(self.updated, updated, strict=True), *zip(self.read, read, strict=True)):
            if value is None:
                variable.read()
        values: dict[tuple[int, int], Any] = {}
        for edge, value in zip(self.inputs, inputs, strict=True):
            values[(id(edge[0]), edge[1])] = value.value() if isinstance(value, Borrowed) else value
        for edge, value in zip(self.plan.static, static, strict=True):
            values[(id(edge[0]), edge[1])] = value
        big = iter(constants)
        for node in self.plan.nodes:
            if node.op.name == "Const" and node.attrs["value"].size > BIG_CONSTANT:
                values[(id(node), 0)] = next(big)
        state = dict(zip((n for n, _ in self.updated), updated, strict=True))
        state.update(zip((n for n, _ in self.read), read, strict=True))
        key_of = {id(n): keys[i] for i, n in enumerate(self.random)}
        trace = Trace(values, state, key_of, self.variable_node, self.checks)
        trace.run(self.plan.nodes)
        taken = {id(v) for v in jax.tree.leaves((updated, read, inputs, constants))}
        computed = [trace.value(edge) for edge in self.plan.outputs]
        types = [source.dtypes[index] for source, index in self.plan.outputs]
        outputs = [_output(value, taken, dtype) for value, dtype in zip(computed, types, strict=True)]
        new = [jnp.asarray(state[n]) for n, _ in self.updated]
        if trace.failed is not None:
            # A failed check leaves the variables as they were.
            ok = trace.failed[0] == 0
            for i, (node, _) in enumerate(self.updated):
                if trace.needs_guard(node):
                    new[i] = jnp.where(ok, new[i], updated[i])
        assigned = [jnp.asarray(state[n]) for n, _ in self.assigned]
        failed, drawn = trace.failed, [_moved_on(trace.drawn.get(id(n), 1)) for n in self.random]
        if self.host is not None:
            # The program itself writes small results that only the client needs to host memory, so no transfer follows.
            # It cannot do so for inputs that are also outputs.
            for i in self.fetched:
                if id(computed[i]) not in taken and getattr(outputs[i], "nbytes", MAX_ON_HOST) < MAX_ON_HOST:
                    outputs[i] = jax.device_put(outputs[i], self.host)
            failed, drawn = failed and jax.device_put(failed, self.host), jax.device_put(drawn, self.host)
        # The updated variables come first, so that each gets the buffer that was donated for it.
        return new, outputs, assigned, drawn, failed

    def _function(self, values: list[Any]) -> Callable[..., Any]:
        """Returns the compiled function for these values."""
        if self.plan.static:
            return self._specialise(values)
        with self._lock:
            self._compiled = self._compiled or self._jit(())
            return self._compiled

    def _specialise(self, values: list[Any]) -> Callable[..., Any]:
        arrays = [np.asarray(values[s]) for s in self.static_slots]
        key = tuple((a.dtype.str, a.shape, a.tobytes()) for a in arrays)
        with self._lock:
            compiled = self.specialised.pop(key, None) or self._jit(arrays)
            self.specialised[key] = compiled  # the one used least recently is dropped first
            if len(self.specialised) > MAX_SPECIALISED:
                del self.specialised[next(iter(self.specialised))]
            return compiled

    @property
    def versions(self) -> int:
        """The number of shapes and values that it was compiled for."""
        return sum(f._cache_size() for f in (self._compiled, *self.specialised.values()) if f is not None)  # type: ignore[attr-defined]

    # Running

    def __call__(self, values: list[Any], drawn: dict[str, np.ndarray], quick: bool = False) -> None:
        """Runs the segment. With `quick` it raises NeedsThread if it would have to compile."""
        self.run_for([values], drawn, quick)

    def run_for(self, every: Sequence[list[Any]], drawn: dict[str, np.ndarray], quick: bool) -> None:
        """Runs the segment for steps that have these values, one after the other."""
        _caller.quick, this_thread.program = quick, self.program
        compiled = self._compiled or self._function(every[0])
        lent: list[weakref.ref[Any]] = []
        inputs = [self._bundled(self._inputs(values, lent)) for values in every]
        results: Any = self.run(compiled, inputs, drawn)
        if lent:
            del inputs
            jax.block_until_ready(results)
            let_go(self.jax_device, lent)
        for values, outputs in zip(every, results, strict=True):
            for slot, value in zip(self.out_slots, _apart(outputs), strict=True):
                values[slot] = value

    def run(
        self,
        compiled: Callable[..., Any],
        inputs: list[Any],
        drawn: dict[str, np.ndarray],
        sizes: Mapping[str, int] | None = None,
    ) -> list[Any]:
        """Calls compiled code of this segment, stores the new values of variables, and returns the outputs."""
        keys = self.random_state.keys(self.random, drawn) if self.random else None
        try:
            outputs, moved, failed = self._run(self.locks, compiled, inputs, keys, sizes)
        except _Stale:
            # An update used up a buffer between the read and the call. The retry holds all locks against updates.
            outputs, moved, failed = self._run(self.all_locks, compiled, inputs, keys, sizes)
        self.move_on(drawn, moved, sizes)
        if failed is not None:
            self.checks.raise_if(failed, sizes=sizes)
        return outputs  # type: ignore[no-any-return]

    def _inputs(self, values: list[Any], lent: list[weakref.ref[Any]]) -> list[Any]:
        """Returns the values of the inputs as XLA gets them. Adds what memory to send back is watched by to `lent`."""
        inputs = [values[s] for s in self.in_slots]
        if self.platform == "cpu":
            for i, value in enumerate(inputs):
                if value.__class__ is np.ndarray and value.nbytes >= MIDDLE:
                    inputs[i] = borrowed(value) if self.is_fed[i] and value.nbytes >= LARGE else aligned(value)
                    if i in self._received and value.nbytes >= SENT_BACK:
                        inputs[i], used = watched(inputs[i])
                        lent.append(used)
        return inputs

    def _bundled(self, inputs: list[Any]) -> Any:
        """Returns inputs as compiled code takes them. What came from other tasks is in NumPy arrays."""
        return bundled(inputs, self._received, joined_on_host) if self.platform == "cpu" else inputs

    def _arguments(self, values: list[Any]) -> tuple[Any, ...]:
        keys = np.zeros((len(self.random), 3), np.uint64) if self.random else None
        updated = [v.read() for v in self.updated_variables]
        read = [v.read() for v in self.read_variables]
        return updated, read, self._inputs(values, []), self.constants, keys

    def forms(self, values: list[Any]) -> Any:
        """Returns the shapes and types of the arguments of the segment as a function that jax can trace."""
        return _forms(self._arguments(values))

    def to_compile(self, values: list[Any], steps: int = 1) -> tuple[Any, Any]:
        """Returns the function for these values, and the shapes and types of its arguments for so many steps."""
        updated, read, inputs, *others = self._arguments(values)
        packed = jax.eval_shape(self._blocks.joined, _forms(updated))
        every = [self._bundled(inputs)] * steps
        return self._compiled or self._function(values), (packed, *_forms((read, every, *others)))

    def _run(
        self, locks: Locks, compiled: Callable[..., Any], inputs: list[Any], keys: Any, sizes: Mapping[str, int] | None
    ) -> tuple[Any, Any, Any]:
        """Calls the compiled code with `locks` held, and stores the new values of variables."""
        if not locks:
            _, outputs, _, moved, failed = self._call(compiled, [], inputs, keys)
            return outputs, moved, failed
        updated = self._blocks if sizes is None else self._one_by_one  # as this code was compiled
        with locks:
            old = updated.taken()
            try:
                new, outputs, assigned, moved, failed = self._call(compiled, old, inputs, keys)
            except BaseException:
                updated.forget_lost(old)
                raise
            updated.put(new)
            if assigned:
                if failed is not None:
                    self.checks.raise_if(failed, sizes=sizes)
                self._assign(assigned)
        return outputs, moved, failed

    def move_on(self, drawn: dict[str, np.ndarray], moved: Sequence[Any], sizes: Mapping[str, int] | None) -> None:
        """Moves the generators of random nodes on; `moved` says how far, which may depend on `sizes`."""
        for node, blocks in zip(self.random, moved, strict=True):
            count = evaluate(blocks.blocks, sizes or {}) if isinstance(blocks, Known) else blocks
            self.random_state.move_on(node, drawn, int(count))

    def put(self, new: Sequence[Any], assigned: Sequence[Any]) -> None:
        """Stores the new values of the updated variables and of those that are only assigned."""
        self._one_by_one.put(new)
        self._assign(assigned)

    def _assign(self, assigned: Sequence[Any]) -> None:
        for variable, value in zip(self.assigned_variables, assigned, strict=False):
            variable.require_shape(value, self.name)
        for variable, value in zip(self.assigned_variables, assigned, strict=False):
            variable.value = value

    def _call(self, compiled: Callable[..., Any], updated: Sequence[Any], inputs: list[Any], keys: Any) -> Any:
        read = [v.value for v in self.read_variables]
        for i, value in enumerate(read):
            if value.__class__ is np.ndarray and value.nbytes > SMALL:
                read[i] = self._moved(self.read_variables[i], value)
        try:
            if self.is_default:
                return compiled(updated, read, inputs, self.constants, keys)
            with self._on_device():
                return compiled(updated, read, inputs, self.constants, keys)
        except (OpError, NotTraceable, NeedsThread):
            raise
        except Exception as error:  # jax and XLA raise many kinds
            if any(map(is_used_up, read)):
                raise _Stale from error
            raise self._error(error) from error

    def _moved(self, variable: StoredVariable, value: np.ndarray) -> Any:
        """Returns a variable's NumPy value as a jax.Array, and stores it so unless NumPy still writes into it."""
        array = placed(value, self.jax_device)
        if variable.held.__class__ is not Part and not variable.in_place and variable.lock.acquire(blocking=False):
            if variable.value is value:
                variable.value = array
            variable.lock.release()
        return array

    def _error(self, error: Exception) -> OpError:
        text = str(error)
        kind = ResourceExhaustedError if "RESOURCE_EXHAUSTED" in text else InternalError
        return kind(None, self.name, f"Segment at '{self.name}': {text}")


def _apart(arrays: Any) -> Any:
    return arrays.split() if arrays.__class__ is Bundle else arrays


def _forms(arguments: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)


def _output(value: Any, taken: set[int], dtype: DType) -> Any:
    """Returns a value as an output of compiled code: an array of its own, or a list of tensors as it is.

    An input that is also an output is copied: jax would return the same buffer, and a fetched value belongs to the
    client.
    """
    if hasattr(value, "tree_flatten"):
        return value
    if has_symbols(value):
        return as_numbers(value, dtype.as_numpy_dtype)
    return jnp.copy(value) if id(value) in taken else jnp.asarray(value)


def _moved_on(blocks: Any) -> Any:
    return blocks if isinstance(blocks, jax.Array) else Known(blocks)


def _host_memory(device: Any) -> Any:
    """Returns the host memory that a device other than the CPU can write to, or None."""
    if device.platform == "cpu" or all(m.kind != "pinned_host" for m in device.addressable_memories()):
        return None
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
