"""NumPy runs kernels that are written for jax: it runs a kernel's jaxpr, traced once for all sizes.

A kernel is traced with a symbol for each size, equal sizes by the same symbol, so that one program serves every shape
of that pattern, and all nodes of one op type and one set of attributes share it. A kernel that must know its sizes is
traced for each shape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from penstock.graph.checks import NotTraceable
from penstock.graph.function import Call, Function
from penstock.graph.shape import TensorShape
from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.numpy_program import NumpyProgram
from penstock.jaxprs.symbols import named_sizes, numbered, symbolic
from penstock.kernel.types import on_platform
from penstock.passes.ir import Node
from penstock.segments.kinds import static_inputs
from penstock.segments.tracing import Checks, Trace

_programs: dict[Any, _Program | None] = {}  # None: the kernel must know its sizes
_shared: dict[Any, OpPrograms] = {}
_lock = threading.Lock()
_UNKNOWN: Any = object()
_MANY = 4096  # no more programs are kept
_SHORT = 64  # numbers: a longer input is no list of sizes or bounds


class TooMuchWork(Exception):
    """Raised for work that takes NumPy far longer than compiled code."""


def programs_of(node: Node, donated: Sequence[int] = ()) -> OpPrograms:
    """Returns the programs that a node shares with all nodes like it. They may write into the inputs in `donated`."""
    wanted = {k: v for k, v in node.attrs.items() if k in node.op.wants}
    types = tuple([source.dtypes[i].base_dtype for source, i in node.inputs])
    static = static_inputs(node)
    key = (node.op.kernel, hashable(wanted) if wanted else (), node.dtypes, types, static, *donated)
    found = _shared.get(key)
    if found is None:
        with _lock:
            if len(_shared) > _MANY:
                _shared.clear()
            found = _shared[key] = OpPrograms(key, static, donated)
    return found


class OpPrograms:
    """Holds the programs of nodes that are alike, by the shapes of their inputs."""

    def __init__(self, key: Any, static: frozenset[int], donated: Sequence[int]) -> None:
        self._key = key
        self._donated = donated  # the inputs that a program may write into
        self._static = static
        self._by_shapes: dict[Any, _Program] = {}

    def run(self, node: Node, arguments: list[Any], key: Any, take: Callable[[int], np.ndarray]) -> list[Any]:
        """Returns the results of the node's kernel: first the new values of variables, then its outputs.

        `take(position)` returns an input that the program may write into.
        """
        program = self.known(arguments)
        if program is None:
            try:
                program = self._found(node, arguments, key)
            except NotTraceable:
                more = self._static | _indices(node, arguments)
                if more == self._static:
                    raise
                self._static = more
                program = self._found(node, arguments, key)
            if len(self._by_shapes) > _MANY:
                self._by_shapes.clear()
            self._by_shapes[self._signature(arguments)] = program
        return program.run(node, arguments, key, take)

    def known(self, arguments: Sequence[Any]) -> _Program | None:
        """Returns the program for arguments of these shapes, if they were run before."""
        return self._by_shapes.get(self._signature(arguments))

    def _signature(self, arguments: Sequence[Any]) -> Any:
        shapes = tuple([None if a is None else a.shape for a in arguments])
        return (shapes, *[arguments[i].tobytes() for i in self._static]) if self._static else shapes

    def _found(self, node: Node, arguments: Sequence[Any], key: Any) -> _Program:
        given = [a if i in self._static else None for i, a in enumerate(arguments)]
        moving = [a for i, a in enumerate(arguments) if i not in self._static and a is not None]
        known = tuple(None if a is None else (a.tobytes(), a.shape, a.dtype) for a in given)
        absent = tuple(a is None for a in arguments)
        types = tuple(a.dtype for a in moving)
        name = (self._key, known, absent, types, key is None)
        exact = tuple([a.shape for a in moving])
        pattern = numbered(exact)
        for shapes in (pattern, exact) if pattern != exact else (exact,):
            form = (name, shapes)
            program: _Program | None = _programs.get(form, _UNKNOWN)
            if program is _UNKNOWN:
                forms = list(zip(symbolic(shapes), types, strict=True))
                program = self._made(node, given, absent, forms, key, shapes is exact)
                with _lock:
                    if len(_programs) > _MANY:
                        _programs.clear()
                    _programs[form] = program
            if program is not None:
                return program
        raise AssertionError("a kernel does not know its sizes though they are given")

    def _made(self, node: Node, given: Any, absent: Any, moving: Any, key: Any, is_exact: bool) -> _Program | None:
        """Makes the program. Returns None if the kernel must know its sizes."""
        try:
            return _Program(node, given, absent, moving, key, self._donated)
        except Exception:  # kernels raise many kinds: a symbol is no int, and comparisons of it may have no answer
            if is_exact:
                raise
            return None


def _indices(node: Node, arguments: Sequence[Any]) -> frozenset[int]:
    """Returns the inputs that may be indices or sizes. A kernel that cannot be traced otherwise gets their values."""
    written = {node.op.input_index(name) for name in node.op.writes}
    given = [i for i, a in enumerate(arguments) if a is not None and a.dtype.kind in "iu" and a.size <= _SHORT]
    return frozenset(i for i in given if i not in written)


class _Program:
    """Holds a kernel as a NumPy program, and the checks that it makes."""

    def __init__(
        self,
        node: Node,
        given: Sequence[Any],
        absent: Sequence[bool],
        moving: list[tuple[Any, Any]],
        key: Any,
        donated: Sequence[int],
    ) -> None:
        self._checks = Checks()
        self._moving = [i for i, value in enumerate(given) if value is None and not absent[i]]
        self._fails = False
        self._keyed = key is not None

        def kernel(arrays: list[Any], key: Any) -> list[Any]:
            values: dict[tuple[int, int], Any] = {}
            state: dict[Node, Any] = {}
            arguments = list(given)
            for i, array in zip(self._moving, arrays, strict=True):
                arguments[i] = array
            written = {node.op.input_index(name) for name in node.op.writes}
            alone = Node(node.name, node.op, node.attrs, node.dtypes, order=node.order)
            variables: dict[int, Node] = {}
            for i, ((source, index), value) in enumerate(zip(node.inputs, arguments, strict=True)):
                parameter = Node(source.name, source.op, source.attrs, (source.dtypes[index],))
                alone.inputs.append((parameter, 0))
                if i in written:
                    variables[id(parameter)] = parameter
                    state[parameter] = value
                else:
                    values[(id(parameter), 0)] = value
            trace = Trace(values, state, {id(alone): key}, lambda edge: variables.get(id(edge[0])), self._checks)
            with on_platform("cpu"):
                trace.run([alone])
            new = [state[alone.inputs[i][0]] for i in sorted(written)]
            is_reference = bool(node.op.writes and node.op.outputs and node.op.outputs[0].is_ref)
            outputs = [trace.values[(id(alone), i)] for i in range(is_reference, len(node.dtypes))]
            self._fails = trace.failed is not None
            return [*new, *outputs, *(trace.failed or ())]

        forms = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in moving]
        positions = [self._moving.index(i) for i in donated]
        jaxpr = jax.make_jaxpr(kernel)(forms, key)
        try:
            self._program = NumpyProgram(jaxpr, positions)
        except (KeyError, TypeError, AttributeError) as error:
            raise NoRule(node.op.name, f"jax writes it in a way that is not known here, {error!r}") from error
        self._written = [self._moving[i] for i in self._program.written]

    def run(self, node: Node, arguments: list[Any], key: Any, take: Callable[[int], np.ndarray]) -> list[Any]:
        """Returns the results for a node that shares this program."""
        for position in self._written:
            arguments[position] = take(position)
        given = [arguments[i] for i in self._moving]
        results = self._program([*given, key] if self._keyed else given)
        if self._fails:
            if results[-2]:
                self._checks.raise_if(results[-2:], node.name, named_sizes([a.shape for a in given]))
            del results[-2:]
        return results


def hashable(value: Any) -> Any:
    """Returns the value of an attr, or attrs, as a key: equal keys mean the same."""
    if isinstance(value, dict):
        return tuple(sorted((k, hashable(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Call):
        return value.op, hashable(value.attrs)
    return str(value) if isinstance(value, TensorShape) else id(value) if isinstance(value, Function) else value
