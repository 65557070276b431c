"""Segment: pure nodes compiled as one XLA program, with the variables they read and write threaded through."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InternalError, InvalidArgumentError, OpError, ResourceExhaustedError
from penstock.graph.checks import NotTraceable
from penstock.ops.types import on_platform
from penstock.passes.ir import Edge, Node
from penstock.worker.plan import BIG_CONSTANT, SegmentPlan
from penstock.worker.randomness import RandomState, is_random
from penstock.worker.resources import Variable
from penstock.worker.tracing import Checks, Trace, variables_in

_DELETED = "deleted"  # in the message of jax's error for a buffer that was donated meanwhile


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
    ) -> None:
        self.plan = plan
        self.platform = platform
        self.jax_device = jax_device
        static = {(id(n), i) for n, i in plan.static}
        self.inputs = [e for e in plan.inputs if (id(e[0]), e[1]) not in static]
        self.in_slots = [slot_of(e) for e in self.inputs]
        self.static_slots = [slot_of(e) for e in plan.static]
        self.out_slots = [slot_of(e) for e in plan.outputs]
        self.variable_node = variable_node
        reads, writes = variables_in(plan.nodes, variable_node)
        # Written and read before: donated. Written only: nothing goes in. Read only: shared with whoever else reads.
        self.updated = [(n, variable_for(n)) for n in writes if n in reads]
        self.assigned = [(n, variable_for(n)) for n in writes if n not in reads]
        self.read = [(n, variable_for(n)) for n in reads if n not in writes]
        self.locks = [v.lock for _, v in sorted(self.updated + self.assigned, key=lambda pair: pair[1].name)]
        self.updated_variables = [v for _, v in self.updated]
        self.assigned_variables = [v for _, v in self.assigned]
        self.read_variables = [v for _, v in self.read]
        self.random = [n for n in plan.nodes if is_random(n)]
        self.random_state = random_state
        self.constants = [
            jax.device_put(n.attrs["value"], jax_device)
            for n in plan.nodes if n.op.name == "Const" and n.attrs["value"].size > BIG_CONSTANT
        ]  # fmt: skip
        self.checks = Checks()
        self.name = next((n.name for n in plan.nodes if n.op.name != "Const"), "constants")
        self._compiled: Callable[..., Any] | None = None if plan.static else self._jit(())
        self._specialised: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    # Compiling

    def _jit(self, static: Sequence[np.ndarray]) -> Callable[..., Any]:
        def segment(updated: Any, read: Any, inputs: Any, constants: Any, keys: Any) -> Any:
            with ExitStack() as context:
                context.enter_context(on_platform(self.platform))
                return self._trace(updated, read, inputs, constants, keys, static)

        return jax.jit(segment, donate_argnums=(0,))

    def _trace(self, updated: Any, read: Any, inputs: Any, constants: Any, keys: Any, static: Any) -> Any:
        values: dict[tuple[int, int], Any] = {}
        for edge, value in zip(self.inputs, inputs, strict=True):
            values[(id(edge[0]), edge[1])] = value
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
        outputs = [_output(trace.value(edge), taken) for edge in self.plan.outputs]
        new = [jnp.asarray(state[n]) for n, _ in self.updated]
        if trace.failed is not None:
            # A failed check leaves the variables as they were.
            ok = trace.failed[0] == 0
            new = [jnp.where(ok, n, o) for n, o in zip(new, updated, strict=True)]
        return outputs, new, [jnp.asarray(state[n]) for n, _ in self.assigned], trace.failed

    def _specialise(self, values: list[Any]) -> Callable[..., Any]:
        arrays = [np.asarray(values[s]) for s in self.static_slots]
        key = tuple((a.dtype.str, a.shape, a.tobytes()) for a in arrays)
        with self._lock:
            compiled = self._specialised.get(key)
            if compiled is None:
                compiled = self._specialised[key] = self._jit(arrays)
            return compiled

    # Running

    def __call__(self, values: list[Any], drawn: dict[str, np.ndarray]) -> None:
        compiled = self._compiled or self._specialise(values)
        inputs = [values[s] for s in self.in_slots]
        keys = self.random_state.keys(self.random, drawn) if self.random else None
        if not self.locks:
            outputs, _, _, failed = self._call(compiled, [], inputs, keys)
        else:
            for lock in self.locks:
                lock.acquire()
            try:
                old = [v.read() for v in self.updated_variables]
                outputs, new, assigned, failed = self._call(compiled, old, inputs, keys)
                for variable, value in zip(self.updated_variables, new, strict=True):
                    variable.value = value
                if failed is not None:
                    self.checks.raise_if(failed)
                for variable, value in zip(self.assigned_variables, assigned, strict=True):
                    if not variable.shape.is_compatible_with(value.shape):
                        raise InvalidArgumentError(
                            None, self.name,
                            f"Assign requires shapes of both tensors to match: variable '{variable.name}' has shape "
                            f"{variable.shape}, received {value.shape}.",
                        )  # fmt: skip
                    variable.value = value
            finally:
                for lock in reversed(self.locks):
                    lock.release()
        if failed is not None:
            self.checks.raise_if(failed)
        for slot, value in zip(self.out_slots, outputs, strict=True):
            values[slot] = value

    def _call(self, compiled: Callable[..., Any], updated: list[Any], inputs: list[Any], keys: Any) -> Any:
        for _ in range(100):
            read = [v.read() for v in self.read_variables]
            try:
                return compiled(updated, read, inputs, self.constants, keys)
            except (OpError, NotTraceable):
                raise
            except (RuntimeError, ValueError) as error:
                if not (_DELETED in str(error) and any(r.is_deleted() for r in read)):
                    raise self._error(error) from error
                # An update donated a buffer between our read and the call: read again.
        raise InternalError(None, self.name, "a variable was replaced 100 times while it was read")

    def _error(self, error: Exception) -> OpError:
        text = str(error)
        kind = ResourceExhaustedError if "RESOURCE_EXHAUSTED" in text else InternalError
        return kind(None, self.name, f"Segment at '{self.name}': {text}")


def _output(value: Any, taken: set[int]) -> Any:
    """A value as an output of compiled code: an array of its own, or a list of tensors as it is.

    jax would hand an input that is also an output through as the same buffer; who fetches it owns it, so it is copied.
    """
    if hasattr(value, "tree_flatten"):
        return value
    return jnp.copy(value) if id(value) in taken else jnp.asarray(value)
