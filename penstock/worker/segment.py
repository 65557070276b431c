"""Segment: pure nodes compiled as one XLA program, with the variables they read and write threaded through."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InternalError, OpError, ResourceExhaustedError
from penstock.graph.checks import NotTraceable
from penstock.graph.dtype import DType
from penstock.jaxprs.symbols import as_numbers, has_symbols
from penstock.kernel.types import on_platform
from penstock.kernel.waiting import NeedsThread
from penstock.passes.ir import Edge, Node
from penstock.worker.borrowing import LARGE, MIDDLE, Borrowed, aligned, borrowed
from penstock.worker.compilation import Compilations, Program, here
from penstock.worker.compiler_options import cpu_compiler_options
from penstock.worker.plan import BIG_CONSTANT, SegmentPlan
from penstock.worker.randomness import RandomState, is_random
from penstock.worker.resources import USED_UP, Variable, placed
from penstock.worker.shape_watch import shape_text, told_name, value_text
from penstock.worker.tracing import Checks, Trace, variables_in

MAX_ON_HOST = 1 << 20  # bytes: up to this, what is fetched comes back in host memory that the device writes to
SMALL = 4096  # bytes: to make an array of jax's of so much takes longer than to hand it over each time
MAX_SPECIALISED = 256  # values of shape-like inputs that a segment keeps compiled code for


class _Here(threading.local):
    """What the thread that calls compiled code may do."""

    quick = False


_here = _Here()


class _Stale(Exception):
    """A variable was replaced, and its old buffer used up, after it had been read."""


class Segment:
    """Compiles a SegmentPlan on first use and runs it. Slots are positions in a step's list of values."""

    def __init__(
        self,
        plan: SegmentPlan,
        slot_of: Callable[[Edge], int],
        variable_node: Callable[[Edge], Node | None],
        variable_for: Callable[[Node], Variable],
        platform: str,
        jax_device: Any,
        random_state: RandomState,
        feed_slots: Sequence[int],
        compilations: Compilations,
    ) -> None:
        self.plan = plan
        self.slot_of = slot_of
        self.platform = platform
        self.jax_device = jax_device
        self.is_default = jax_device == jax.devices()[0]
        self.host = _host_memory(jax_device)
        static = {(id(n), i) for n, i in plan.static}
        self.inputs = [e for e in plan.inputs if (id(e[0]), e[1]) not in static]
        self.in_slots = [slot_of(e) for e in self.inputs]
        fed = set(feed_slots)
        self.is_fed = [slot in fed for slot in self.in_slots]
        self.static_slots = [slot_of(e) for e in plan.static]
        self.out_slots = [slot_of(e) for e in plan.outputs]
        self.variable_node = variable_node
        reads, writes = variables_in(plan.nodes, variable_node)
        # Written and read before: donated. Written only: nothing goes in. Read only: shared with whoever else reads.
        self.updated = [(n, variable_for(n)) for n in writes if n in reads]
        self.assigned = [(n, variable_for(n)) for n in writes if n not in reads]
        self.read = [(n, variable_for(n)) for n in reads if n not in writes]
        # One order for all segments, so that no two of them wait for each other.
        self.locks = [v.lock for _, v in sorted(self.updated + self.assigned, key=lambda pair: pair[1].order)]
        everything = self.updated + self.assigned + self.read
        self.all_locks = [v.lock for _, v in sorted(everything, key=lambda pair: pair[1].order)]
        self.updated_variables = [v for _, v in self.updated]
        self.assigned_variables = [v for _, v in self.assigned]
        self.read_variables = [v for _, v in self.read]
        self.variables = [v for _, v in everything]
        self.random = [n for n in plan.nodes if is_random(n)]
        self.random_state = random_state
        self.constants = [
            placed(n.attrs["value"], jax_device)
            for n in plan.nodes
            if n.op.name == "Const" and n.attrs["value"].size > BIG_CONSTANT
        ]
        self.fetched: list[int] = []  # positions of the outputs that only the client wants
        self.checks = Checks()
        self.name = next((n.name for n in plan.nodes if n.op.name != "Const"), "constants")
        self.program = Program(compilations, self.name, [told_name(node) for node, _ in (*self.inputs, *plan.static)])
        self._compiled: Callable[..., Any] | None = None  # if it is specialised on nothing
        self.specialised: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    # Compiling

    def _jit(self, static: Sequence[np.ndarray]) -> Callable[..., Any]:
        traced = self.traced(static)

        def segment(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any) -> Any:
            if _here.quick:
                raise NeedsThread  # compiling takes long
            return traced(updated, read, inputs, constants, keys)

        compiled: Callable[..., Any] = self.jitted(segment)
        return compiled

    def traced(self, static: Sequence[np.ndarray]) -> Callable[..., Any]:
        """The segment as a function that jax can trace; `static` are the values that it is specialised on."""

        def segment(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any) -> Any:
            with on_platform(self.platform):
                return self._trace(updated, read, inputs, constants, keys, static)

        return segment

    def jitted(self, function: Callable[..., Any]) -> Any:
        """A function of a segment's arguments, to be compiled for its device; the first argument is donated."""
        options = cpu_compiler_options() if self.platform == "cpu" else None
        return jax.jit(function, donate_argnums=(0,), compiler_options=options)

    def compile(self, jitted: Any, forms: Sequence[Any]) -> Any:
        """Compiles such a function for arguments of these forms, so that a call with them finds the code there.

        Returns the compiled function, which takes nothing else.
        """
        with self._on_device():
            return jitted.lower(*forms).compile()

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.is_default else jax.default_device(self.jax_device)

    def _trace(self, updated: Any, read: Any, inputs: Any, constants: Any, keys: Any, static: Any) -> Any:
        # An uninitialised variable is seen here and not on every call: None in place of an array traces anew.
        for (_, variable), value in (*zip(self.updated, updated, strict=True), *zip(self.read, read, strict=True)):
            if value is None:
                variable.read()
        values: dict[tuple[int, int], Any] = {}
        for edge, value in zip(self.inputs, inputs, strict=True):
            values[(id(edge[0]), edge[1])] = value.value() if isinstance(value, Borrowed) else value
        for edge, value in zip(self.plan.static, static, strict=True):
            values[(id(edge[0]), edge[1])] = value
        here.traced = here.program, [*map(shape_text, inputs), *map(value_text, static)]
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
        failed = trace.failed
        if self.host is not None:
            # Small results that only the client wants go to host memory as part of the program: no transfer follows.
            # What comes in and goes out again cannot.
            for i in self.fetched:
                if id(computed[i]) not in taken and getattr(outputs[i], "nbytes", MAX_ON_HOST) < MAX_ON_HOST:
                    outputs[i] = jax.device_put(outputs[i], self.host)
            failed = failed and jax.device_put(failed, self.host)
        # The updated variables come first, so that each gets the buffer that was donated for it.
        return new, outputs, assigned, failed

    def _function(self, values: list[Any]) -> Callable[..., Any]:
        """The function to call with these values."""
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
            self.specialised[key] = compiled  # the last one used is the last one to go
            if len(self.specialised) > MAX_SPECIALISED:
                del self.specialised[next(iter(self.specialised))]
            return compiled

    @property
    def versions(self) -> int:
        """For how many shapes and values it was compiled."""
        return sum(f._cache_size() for f in (self._compiled, *self.specialised.values()) if f is not None)  # type: ignore[attr-defined]

    # Running

    def __call__(self, values: list[Any], drawn: dict[str, np.ndarray], quick: bool = False) -> None:
        """Runs in this thread, or, if it is to be quick and has to be compiled first, raises NeedsThread."""
        _here.quick, here.program = quick, self.program
        compiled = self._compiled or self._function(values)
        outputs = self.run(compiled, self._inputs(values), drawn)
        for slot, value in zip(self.out_slots, outputs, strict=True):
            values[slot] = value

    def run(
        self,
        compiled: Callable[..., Any],
        inputs: list[Any],
        drawn: dict[str, np.ndarray],
        sizes: Mapping[str, int] | None = None,
    ) -> list[Any]:
        """Calls compiled code of this segment: gives its outputs, and puts the new values of variables in place."""
        keys = self.random_state.keys(self.random, drawn) if self.random else None
        try:
            outputs, failed = self._run(self.locks, compiled, inputs, keys, sizes)
        except _Stale:
            # An update used up a buffer between our read and the call: once more, and keep updates away meanwhile.
            outputs, failed = self._run(self.all_locks, compiled, inputs, keys, sizes)
        if failed is not None:
            self.checks.raise_if(failed, sizes=sizes)
        return outputs  # type: ignore[no-any-return]

    def _inputs(self, values: list[Any]) -> list[Any]:
        inputs = [values[s] for s in self.in_slots]
        if self.platform == "cpu":
            for i, value in enumerate(inputs):
                if value.__class__ is np.ndarray and value.nbytes >= MIDDLE:
                    lent = self.is_fed[i] and value.nbytes >= LARGE
                    inputs[i] = borrowed(value) if lent else aligned(value)
        return inputs

    def forms(self, values: list[Any]) -> tuple[Any, Any]:
        """The function that would be called with these values, and the shapes and types of its arguments."""
        compiled = self._compiled or self._function(values)
        keys = np.zeros((len(self.random), 4), np.uint32) if self.random else None
        updated = [v.read() for v in self.updated_variables]
        read = [v.read() for v in self.read_variables]
        arguments = (updated, read, self._inputs(values), self.constants, keys)
        return compiled, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)

    def _run(
        self,
        locks: list[Any],
        compiled: Callable[..., Any],
        inputs: list[Any],
        keys: Any,
        sizes: Mapping[str, int] | None,
    ) -> tuple[Any, Any]:
        """Calls the compiled code with `locks` held, and puts the new values of variables in place."""
        if not locks:
            _, outputs, _, failed = self._call(compiled, [], inputs, keys)
            return outputs, failed
        updated = self.updated_variables
        for lock in locks:
            lock.acquire()
        try:
            old = [v.value for v in updated]
            try:
                new, outputs, assigned, failed = self._call(compiled, old, inputs, keys)
            except BaseException:
                self._forget_lost(old)
                raise
            if assigned and failed is not None:
                self.put(new, ())
                self.checks.raise_if(failed, sizes=sizes)
            self.put(new, assigned)
        finally:
            for lock in locks:
                lock.release()
        return outputs, failed

    def _forget_lost(self, old: list[Any]) -> None:
        """A call that failed while it ran (out of memory, say) has used up the buffers donated to it."""
        for variable, value in zip(self.updated_variables, old, strict=True):
            if _is_used_up(value):
                variable.value = None

    def put(self, new: Sequence[Any], assigned: Sequence[Any]) -> None:
        """Puts the new values of variables in place: of those that are updated, and of those that are only assigned."""
        for variable, value in zip(self.updated_variables, new, strict=True):
            variable.value = value
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
        except Exception as error:  # of jax and XLA, of many kinds
            if any(map(_is_used_up, read)):
                raise _Stale from error
            raise self._error(error) from error

    def _moved(self, variable: Variable, value: np.ndarray) -> Any:
        """The value of a variable that NumPy has made, for compiled code; kept so, unless NumPy works on in it."""
        array = placed(value, self.jax_device)
        if not variable.in_place and variable.lock.acquire(blocking=False):
            if variable.value is value:
                variable.value = array
            variable.lock.release()
        return array

    def _error(self, error: Exception) -> OpError:
        text = str(error)
        kind = ResourceExhaustedError if "RESOURCE_EXHAUSTED" in text else InternalError
        return kind(None, self.name, f"Segment at '{self.name}': {text}")


def _is_used_up(value: Any) -> bool:
    """Whether the buffer of a variable's value has been donated."""
    return value is USED_UP or (isinstance(value, jax.Array) and value.is_deleted())


def _output(value: Any, taken: set[int], dtype: DType) -> Any:
    """A value as an output of compiled code: an array of its own, or a list of tensors as it is.

    jax would hand an input that is also an output through as the same buffer; who fetches it owns it, so it is copied.
    """
    if hasattr(value, "tree_flatten"):
        return value
    if has_symbols(value):
        return as_numbers(value, dtype.as_numpy_dtype)
    return jnp.copy(value) if id(value) in taken else jnp.asarray(value)


def _host_memory(device: Any) -> Any:
    """Where a device other than the CPU can write to on the host, or None."""
    if device.platform == "cpu" or all(m.kind != "pinned_host" for m in device.addressable_memories()):
        return None
    return jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
