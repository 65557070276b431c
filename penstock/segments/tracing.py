"""Tracing runs kernels on jax tracers, so that a segment becomes one XLA program. Known values fold in NumPy."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError, OpError
from penstock.graph.checks import NotTraceable, ignoring_checks, recording_checks
from penstock.graph.function import Function
from penstock.graph.opdef import OpDef, grouped, static_positions
from penstock.jaxprs.symbols import NOT_FOR_SYMBOLS, as_numbers, has_symbols, here, is_symbol, with_sizes
from penstock.ops.engine.if_while import first_failure
from penstock.passes.ir import Edge, Node, blamed
from penstock.segments.kinds import body, written_positions
from penstock.segments.randomness import inner_state, is_random, reserved


class VariableRef:
    """Stands for a variable in place of a value: it says which variable, not what it holds."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


class Checks:
    """Keeps the messages of a segment's run-time checks by number. 0 means that all checks passed."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, str]] = [("", "")]
        self._lock = threading.Lock()  # a background thread may add checks, too

    def add(self, node: str, message: str) -> int:
        """Returns the number of a new check."""
        with self._lock:
            self._messages.append((node, message))
            return len(self._messages) - 1

    def raise_if(self, failed: Any, name: str = "", sizes: Mapping[str, int] | None = None) -> None:
        """Raises the error that the code reports, if any.

        `name` is the node, if several share the code; `sizes` are the sizes of its symbols.
        """
        code, detail = failed
        if code := int(code):
            node, message = self._messages[code]
            node = name or node
            message = with_sizes(message, sizes or {}).format(int(detail))
            raise InvalidArgumentError(None, node, f"{message} [node '{node}']")


class Trace:
    """Holds the values of nodes while a segment (or a body within it) is traced."""

    def __init__(
        self,
        values: dict[tuple[int, int], Any],
        state: dict[Node, Any],
        keys: dict[int, Any],
        variable_node: Callable[[Edge], Node | None],
        checks: Checks,
    ) -> None:
        self.values = values
        self.state = state
        self.keys = keys
        self.variable_node = variable_node
        self.checks = checks
        self.failed: Any = None  # the first check that failed, a Failure
        self._recorded = 0  # number of checks
        self.made: set[Any] = set()  # keys of checks that need not be repeated
        self._guarded: dict[Node, int] = {}  # by written variable: how many checks its writes have respected
        self._by_rows = False  # the current kernel respects the checks itself
        self._node: Node | None = None
        self.inner_failed: Any = None  # of the body traced last; its caller merges it
        self.drawn: dict[int, Any] = {}  # by random node: by how much its generator moves on

    def run(self, nodes: Iterable[Node]) -> None:
        """Runs the kernels of `nodes` in order. Writes of rows are held back while nothing depends on them.

        They then run together and respect the checks of all, so that no variable has to be kept as it was.
        """
        held: list[Node] = []
        with recording_checks(self):
            for node in nodes:
                if (id(node), 0) in self.values and node.dtypes:
                    continue
                if held and self._depends(node, held):
                    self._write_rows(held)
                    held = []
                if node.op.writes and any(arg.name == "indices" for arg in node.op.inputs):
                    held.append(node)
                else:
                    self._run_node(node)
            self._write_rows(held)

    def _depends(self, node: Node, others: Sequence[Node]) -> bool:
        """Tells if a node has an input or control input from the others, or shares a variable with one."""
        if any(node_before in others for node_before in (*(s for s, _ in node.inputs), *node.controls)):
            return True
        touched = self._variables(node)
        return any(touched & self._variables(other) for other in others)

    def _variables(self, node: Node) -> set[Node]:
        return {ref.node for ref in map(self.reference, node.inputs) if ref is not None}

    def _write_rows(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._run_node(node, writes=False)
        with ignoring_checks():
            for node in nodes:
                self._run_node(node)

    def value(self, edge: Edge) -> Any:
        """Returns the value on an edge; for a reference, what the variable holds at this point."""
        value = self.values.get((id(edge[0]), edge[1]))
        if value is None:
            variable = self.variable_node(edge)
            assert variable is not None, f"no value for {edge}"
            return self.state[variable]
        return self.state[value.node] if isinstance(value, VariableRef) else value

    def reference(self, edge: Edge) -> VariableRef | None:
        """Returns the variable that an edge refers to, or None if it is no reference."""
        value = self.values.get((id(edge[0]), edge[1]))
        if isinstance(value, VariableRef):
            return value
        node = self.variable_node(edge) if value is None else None
        return None if node is None else VariableRef(node)

    def _run_node(self, node: Node, writes: bool = True) -> None:
        op = node.op
        self._node = node
        self._by_rows = False
        variables: list[Node | None] = []
        arguments: list[Any] = []
        for edge in node.inputs:
            ref = self.reference(edge)
            variables.append(ref.node if ref else None)
            if ref is None:
                arguments.append(self.value(edge))
            elif op.control_flow:
                arguments.append(ref)
            else:
                arguments.append(self.state.get(ref.node))
        for i in static_positions(op, node.attrs, len(arguments)):
            if not isinstance(arguments[i], (np.ndarray, np.generic)):
                error = NotTraceable(f"{op.name} '{node.name}' needs the value of input {i}, known only at run time")
                error.node = node
                raise error
        try:
            # jnp's functions are jitted, and tracing each as a program of its own takes half of the time.
            with jax.disable_jit() if _has_no_loop(op) else contextlib.nullcontext():
                result = self._result(node, arguments)
        except NotTraceable as error:
            error.node = node  # the outermost node will run on the host
            raise
        except KERNEL_ERRORS as error:
            raise named_error(error, node, arguments) from error
        results = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
        if op.random:
            self.drawn[id(node)] = reserved(node, results[0].shape)
        if op.writes:
            if writes:
                self._write(node, variables, results)
            return
        for i, (value, dtype) in enumerate(zip(results, node.dtypes, strict=True)):
            self.values[(id(node), i)] = _typed(value, dtype)

    def _result(self, node: Node, arguments: list[Any]) -> Any:
        """Calls the kernel. Static inputs may hold symbols; in other inputs symbols become numbers first."""
        if not any(map(has_symbols, arguments)):
            return call_kernel(node, arguments, self)
        op = node.op
        static = static_positions(op, node.attrs, len(arguments))
        known_values = all(isinstance(a, (np.ndarray, np.generic)) for a in arguments)
        if op.numpy and known_values and all(t.is_integer for t in node.dtypes):
            if op.name == "Cast":
                return arguments[0]
            try:
                return call_kernel(node, arguments, self)
            except (*NOT_FOR_SYMBOLS, TypeError) as error:
                # The result depends on the size, so it is computed when the program runs.
                here.undecided.append(str(error))
        numbers = list(arguments)
        for i, (source, output) in enumerate(node.inputs):
            if i not in static and has_symbols(arguments[i]):
                numbers[i] = as_numbers(arguments[i], source.dtypes[output].as_numpy_dtype)
        return call_kernel(node, numbers, self)

    def _write(self, node: Node, variables: Sequence[Node | None], results: list[Any]) -> None:
        for name in node.op.writes:
            variable = variables[node.op.input_index(name)]
            assert variable is not None
            covered = self._recorded if self._by_rows else -1
            self._guarded[variable] = min(covered, self._guarded.get(variable, covered))
            dtype = variable.attrs.get("dtype")  # a parameter of a body has none
            self.state[variable] = _typed(results.pop(0), dtype) if dtype else results.pop(0)
        for i, value in enumerate(results):
            self.values[(id(node), i)] = _typed(value, node.dtypes[i])
        if node.op.outputs and node.op.outputs[0].is_ref:
            self.values[(id(node), 0)] = VariableRef(variables[0])  # type: ignore[arg-type]

    def call(
        self, function: Function, arguments: Sequence[Any], run: Any = None, branch: int | None = None
    ) -> list[Any]:
        """Traces a body on `arguments` and returns its outputs. Its random numbers vary by `run`, an iteration."""
        part = body(function)
        values: dict[tuple[int, int], Any] = {}
        for parameter, argument in zip(part.feeds, arguments, strict=True):
            values[(id(parameter), 0)] = argument
        keys = {id(n): inner_state(self.keys[id(self._node)], n, run, branch) for n in part.nodes if is_random(n)}
        inner = Trace(values, self.state, keys, lambda edge: None, self.checks)
        inner.run(part.nodes)
        self.inner_failed = inner.failed
        return [inner.value(edge) for edge in part.fetches]

    def count_runs(self, number: Any) -> None:
        """Notes how often a loop has run its body, or which branch has run."""
        self.drawn[id(self._node)] = number

    def record(self, ok: Any, message: str, detail: Any) -> None:
        """Adds a check that a kernel makes."""
        self._recorded += 1
        number = self.checks.add(self._node.name if self._node else "", message)
        bad = ~jnp.all(ok)
        self.merge_failure((jnp.where(bad, jnp.int64(number), 0), jnp.asarray(detail).astype(jnp.int64)))

    def rows_to_write(self, indices: Any, size: int) -> Any:
        """Returns `indices`, or indices of no row if a check has failed so far."""
        self._by_rows = True
        return indices if self.failed is None else jnp.where(self.failed[0] == 0, indices, size).astype(indices.dtype)

    def needs_guard(self, variable: Node) -> bool:
        """Tells if a variable may have changed although a check failed: it was not written by rows after the last."""
        return self._guarded[variable] < self._recorded

    def merge_failure(self, report: Any) -> None:
        """Keeps the first failure."""
        if report is not None:
            self.failed = report if self.failed is None else first_failure(self.failed, report)


# Kernels in these modules have no loops of jax, which would be unrolled where jit is off.
_WITHOUT_LOOPS = frozenset(
    f"penstock.ops.{name}"
    for name in (
        "linalg.matmul",
        "math.argmax",
        "math.arithmetic",
        "math.cumulative",
        "math.reduce",
        "math.unary",
        "nn.activation",
        "nn.cross_entropy",
        "nn.layer_parts",
    )
)


def _has_no_loop(op: OpDef) -> bool:
    is_dense_update = bool(op.writes) and all(arg.name != "indices" for arg in op.inputs)
    return op.numpy or is_dense_update or op.kernel.__module__ in _WITHOUT_LOOPS


KERNEL_ERRORS = (OpError, TypeError, ValueError, IndexError, ZeroDivisionError, NotImplementedError)


def named_error(error: Exception, node: Node, arguments: Sequence[Any]) -> OpError:
    """Returns an error of a kernel in the form for the program: it names the node, and the shapes if they misfit."""
    if isinstance(error, OpError):
        return type(error)(None, blamed(error, node), f"{error.message} [node '{node.name}']")
    shapes = ", ".join(str(list(getattr(a, "shape", ()))) for a in arguments)
    message = f"{node.op.name} '{node.name}' with inputs of shape {shapes}: {error}"
    return InvalidArgumentError(None, node.name, message)


def call_kernel(node: Node, arguments: list[Any], trace: Any) -> Any:
    """Calls a node's kernel with its inputs grouped as declared and the attrs it wants."""
    op = node.op
    attrs = {k: v for k, v in node.attrs.items() if k in op.wants}
    if "ctx" in op.wants:
        attrs["ctx"] = trace
    kernel = functools.partial(op.kernel, *grouped(op, node.attrs, arguments), **attrs)
    return kernel(key=_generator(node, kernel, trace.keys[id(node)])) if op.random else kernel()


def _generator(node: Node, kernel: Callable[..., Any], state: Any) -> Any:
    """Returns the state of a node's generator. In a body it has the number of the run, and how far a run goes shows."""
    if not isinstance(state, tuple):
        return state
    key, run, high = state
    with ignoring_checks():
        form = jax.eval_shape(lambda key: kernel(key=key), jax.ShapeDtypeStruct((3,), np.uint64))
    shape = (form[0] if isinstance(form, (tuple, list)) else form).shape
    blocks = as_numbers(np.asarray(reserved(node, shape), object), np.uint64)
    return jnp.stack([jnp.uint64(key), jnp.uint64(run) * blocks, jnp.uint64(high)])


def _typed(value: Any, dtype: Any) -> Any:
    """Returns `value` in the type that the graph declares, since kernels may widen it."""
    if has_symbols(value) or is_symbol(value):
        return np.asarray(value, object)
    wanted = dtype.base_dtype._numpy
    if wanted is None or isinstance(value, VariableRef) or not hasattr(value, "dtype"):
        return np.asarray(value, wanted) if isinstance(value, (bool, int, float, complex)) else value
    if value.dtype == wanted:
        return value
    return value.astype(wanted)


def variables_in(
    nodes: Iterable[Node], variable_node: Callable[[Edge], Node | None]
) -> tuple[dict[Node, None], dict[Node, None]]:
    """Returns the variables whose old value these nodes need, and those that they write."""
    reads: dict[Node, None] = {}
    writes: dict[Node, None] = {}
    for node in nodes:
        written = written_positions(node.op)
        for i, edge in enumerate(node.inputs):
            variable = variable_node(edge)
            if variable is None:
                continue
            if variable not in writes and not (i in written and node.op.overwrites):
                reads[variable] = None
            if i in written:
                writes[variable] = None
    return reads, writes
