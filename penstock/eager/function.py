"""tf.function: a Python function that is traced into a graph for each new form of its arguments."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from penstock.autograph.wrapper import converted
from penstock.data.structure import Carried, RaggedTensorSpec
from penstock.eager.arguments import Dims, Form, FunctionSpec, HasNoKey, covers, key_of, replaced
from penstock.eager.concrete import Compiled, ConcreteFunction
from penstock.eager.function_graph import FuncGraph
from penstock.eager.retraces import Retraces
from penstock.eager.tensor import EagerOperation, EagerTensor
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.effects import order_effects
from penstock.graph.function import Function as Body
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import VariableWatcher, recorders
from penstock.memory import aligned_copy
from penstock.ops.array.passthrough import identity
from penstock.ops.control.tensor_array import TensorArray
from penstock.variables.creation import variable_creator_scope

_names = itertools.count(1)


class _Settings:
    run_eagerly = False


class Function:
    """A Python function that runs as graphs. `tf.function` makes it.

    >>> f = tf.function(lambda x: x * x)
    >>> f(tf.constant(3.0)), f.experimental_get_tracing_count()
    """

    def __init__(
        self,
        python_function: Callable[..., Any],
        input_signature: Any = None,
        autograph: bool = True,
        reduce_retracing: bool = False,
        autograph_options: Any = None,
        name: str = "",
    ) -> None:
        self._python_function = python_function
        self._name = name or getattr(python_function, "__name__", type(python_function).__name__)
        self._spec = FunctionSpec(python_function, self._name, input_signature)
        self._autograph = autograph
        self._autograph_options = autograph_options
        self._reduce_retracing = reduce_retracing
        self._traces: dict[Any, list[tuple[tuple[Dims, ...], ConcreteFunction]]] = {}  # by key: shapes and traces
        self._known: dict[Any, ConcreteFunction] = {}  # by the keys of arguments, see `key_of`
        self._has_created = False  # the first call, which may make variables, is over
        self._tracing_count = 0
        self._retraces = Retraces(self._name)
        self._bound: dict[int, tuple[weakref.ref[Any], Function]] = {}  # by id of an instance
        self._lock = threading.RLock()
        functools.update_wrapper(self, python_function, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Function:
        if instance is None:
            return self
        number = id(instance)
        found = self._bound.get(number)
        if found is None:
            method = _Method(self._python_function, instance)
            function = Function(
                method,
                self._spec.input_signature,
                self._autograph,
                self._reduce_retracing,
                self._autograph_options,
                self._name,
            )
            bound = self._bound  # this, not the function, is what the callback keeps
            found = bound[number] = (weakref.ref(instance, lambda _: bound.pop(number, None)), function)
        return found[1]

    @property
    def python_function(self) -> Callable[..., Any]:
        """The function that is traced."""
        return self._python_function

    @property
    def function_spec(self) -> FunctionSpec:
        """The parameters."""
        return self._spec

    @property
    def input_signature(self) -> tuple[Any, ...] | None:
        """The specs that all calls must fit, or None."""
        return self._spec.input_signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _Settings.run_eagerly:
            return self._python_function(*args, **kwargs)
        self._retraces.calls += 1
        graph = get_default_graph()
        key: Any = None
        leaves: list[Any] = []
        if not kwargs and graph.is_eager and not graph._scopes.devices:
            # Binding the arguments takes longer than all else in a small call (30 of 45 us on one CPU core).
            try:
                key = tuple([key_of(a, leaves) for a in args])
                concrete = self._known.get(key)
            except HasNoKey:
                key = concrete = None
            if concrete is not None:
                return concrete.run(graph, [_own(leaf) for leaf in leaves])
        concrete, form = self._traced(args, kwargs, is_call=True)
        if key is not None and _is_free(concrete) and _agree(leaves, form.tensors):
            self._known[key] = concrete
        return concrete.call(form.tensors)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for arguments like these; a tf.TensorSpec stands for any tensor that fits it."""
        if self._spec.input_signature is not None and not args and not kwargs:
            args = self._spec.input_signature
        if any(isinstance(leaf, RaggedTensorSpec) for leaf in nest.flatten((args, kwargs))):
            args, kwargs = nest.map_structure(
                lambda leaf: leaf.stand_in() if isinstance(leaf, RaggedTensorSpec) else leaf, (tuple(args), kwargs)
            )
        return self._traced(args, kwargs)[0]

    @property
    def concrete_functions(self) -> list[ConcreteFunction]:
        """All traces."""
        return [concrete for found in self._traces.values() for _, concrete in found]

    def experimental_get_tracing_count(self) -> int:
        """The number of times that the function has been traced."""
        return self._tracing_count

    def pretty_printed_concrete_signatures(self, verbose: bool = True) -> str:
        """The signatures of all traces as text."""
        return "\n\n".join(concrete.pretty_printed_signature(verbose) for concrete in self.concrete_functions)

    def traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[ConcreteFunction, list[Tensor]]:
        """The trace for a call, and the tensors among its arguments, without running it."""
        concrete, form = self._traced(args, kwargs, is_call=True)
        return concrete, form.tensors

    # Tracing

    def _traced(
        self, args: Sequence[Any], kwargs: dict[str, Any], is_call: bool = False
    ) -> tuple[ConcreteFunction, Form]:
        bound = self._spec.bound(args, kwargs)
        form = self._spec.form(bound)
        device = _current_device()
        key = (form.key, device)
        with self._lock:
            found = self._find(key, form)
            if found is None:
                if is_call:
                    self._retraces.note()
                found = self._new_trace(key, bound, form, device)
        return (found.for_variables(form.variables) if form.variables else found), form

    def _find(self, key: Any, form: Form) -> ConcreteFunction | None:
        """The trace with the most special shapes that fit those of a call."""
        best: tuple[tuple[Dims, ...], ConcreteFunction] | None = None
        shapes = form.shapes
        for trace in self._traces.get(key, ()):
            if _all_cover(trace[0], shapes) and _reaches(trace[1]) and (best is None or _all_cover(best[0], trace[0])):
                best = trace
        return None if best is None else best[1]

    def _new_trace(self, key: Any, bound: inspect.BoundArguments, form: Form, device: str) -> ConcreteFunction:
        traces = self._traces.setdefault(key, [])
        if self._reduce_retracing and self._spec.input_signature is None and traces:
            form = form.relaxed(traces[-1][0])
        if not self._has_created:
            created: list[Any] = []
            concrete = self._trace(bound, form, device, created)
            self._has_created = True
            if created:
                # Later calls must not make variables, and do not run Python again: the first one shows that they can.
                concrete = self._trace(bound, form, device, None)
        else:
            concrete = self._trace(bound, form, device, None)
        self._tracing_count += 1
        traces.append((form.shapes, concrete))
        return concrete

    def _trace(
        self, bound: inspect.BoundArguments, form: Form, device: str, created: list[Any] | None
    ) -> ConcreteFunction:
        """Traces the function. Variables that it makes are added to `created`; None: it may make none."""
        name = f"__inference_{self._name}_{next(_names)}"
        graph = FuncGraph(name, get_default_graph())

        def create(make: Callable[..., Any], **kwargs: Any) -> Any:
            if created is None:
                raise ValueError(
                    f"tf.function {self._name} makes a variable, but not for the first time. Only the first call may "
                    "make variables, and each once: keep the variable, or make it outside of the function."
                )
            kwargs["initial_value"] = _lifted(graph, kwargs.get("initial_value"), form.tensors)
            variable = make(**kwargs)
            created.append(variable)
            return variable

        with (
            graph.as_default(),
            graph.device(device or None),
            variable_creator_scope(create),
            VariableWatcher() as watcher,
        ):
            parameters = [graph.add_input(spec.dtype, spec.shape, _op_name(spec.name)) for spec in form.specs]
            stand_ins = {id(v): _stand_in(graph, v) for v in form.variables}
            rest = iter(parameters)
            traced = inspect.BoundArguments(
                bound.signature, {name: replaced(value, rest, stand_ins) for name, value in bound.arguments.items()}
            )
            result = self._convert()(*traced.args, **traced.kwargs)
            structure = _outputs(graph, result, self._name)
            order_effects(graph)
        given = {id(stand_in): v for v in form.variables for stand_in in [stand_ins[id(v)]]}
        variables = [given.get(id(v), v) for v in watcher.variables]
        concrete = ConcreteFunction(name, graph, structure, variables)
        concrete.function_spec = self._spec
        concrete.structured_input_signature = self._spec.structured(bound, form)
        concrete.argument_leaves = self._spec.leaves(bound, form)
        return concrete

    def _convert(self) -> Callable[..., Any]:
        """The function that is called to trace: with control flow over tensors as nodes, unless `autograph=False`."""
        function = self._python_function
        if isinstance(function, _Method):
            function = function.bound()
        return converted(function, self._autograph_options) if self._autograph else function

    def __repr__(self) -> str:
        return f"<penstock.eager.function.Function {self._name} at {id(self):#x}>"


def _own(leaf: Any) -> Any:
    """An argument as a value for one call: an array may be changed by its owner, whatever becomes of the results."""
    if leaf.__class__ is EagerTensor:
        return leaf
    return convert_to_tensor(leaf) if recorders.items else aligned_copy(leaf)


def _agree(leaves: Sequence[Any], tensors: Sequence[Tensor]) -> bool:
    """Tells if the tensors of a call are its arguments as they are, none of them left out, added, or cast."""
    return len(leaves) == len(tensors) and all(
        leaf is tensor if leaf.__class__ is EagerTensor else leaf.dtype == tensor.dtype.base_dtype.as_numpy_dtype
        for leaf, tensor in zip(leaves, tensors, strict=True)
    )


class _Method:
    """A method bound to an instance that it does not keep alive."""

    def __init__(self, function: Callable[..., Any], instance: Any) -> None:
        self.__name__ = getattr(function, "__name__", "method")
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(types.MethodType(function, instance))
        self._function = function
        self._instance = weakref.ref(instance)

    def bound(self) -> Callable[..., Any]:
        """The method as Python binds it, which keeps the instance alive."""
        instance = self._instance()
        if instance is None:
            raise ReferenceError(f"The object whose method {self.__name__} is called is gone.")
        return types.MethodType(self._function, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.bound()(*args, **kwargs)


def _all_cover(general: Sequence[Dims], special: Sequence[Dims]) -> bool:
    return all(covers(g, s) for g, s in zip(general, special, strict=True))


def _reaches(concrete: ConcreteFunction) -> bool:
    """Tells if a trace can be used here: what it captured of an outer function has a value only there."""
    graph = get_default_graph()
    return all(isinstance(t, EagerTensor) or t.graph is graph for t in concrete.graph.captured)


def _is_free(concrete: ConcreteFunction) -> bool:
    """Tells if a trace captured nothing of an outer function."""
    return all(isinstance(t, EagerTensor) for t in concrete.graph.captured)


def _current_device() -> str:
    """The device that the scopes around a call of a function ask for."""
    graph = get_default_graph()
    if not graph._scopes.devices:
        return ""
    return graph.scoped_device(EagerOperation(graph, op_of("NoOp"), [], {}, []))


def _op_name(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name or "arg").lstrip("_") or "arg"


def _stand_in(graph: FuncGraph, variable: Any) -> Any:
    """A variable for the time of a trace: another one that is an argument of a call may take its place."""
    stand_in = copy.copy(variable)
    stand_in._handle = graph.add_handle_parameter(variable.handle)
    return stand_in


def _lifted(graph: FuncGraph, initial: Any, arguments: Sequence[Any]) -> Any:
    """An initial value of a variable; one that depends on the arguments of the first call is computed with them."""
    if callable(initial) or not any(_is_symbolic(leaf) for leaf in nest.flatten(initial)):
        return initial
    tensor = convert_to_tensor(initial)
    inside = tensor if tensor.graph is graph else graph.capture(tensor)
    given = [*arguments, *graph.captured]
    needed = sorted(Body("initial_value", graph, graph.inputs, [inside]).dependencies()[0])
    values = [given[i] for i in needed]
    if not all(isinstance(v, EagerTensor) for v in values):
        raise ValueError(
            f"The initial value {initial!r} of a variable depends on arguments of the function that have no value "
            "while it is traced. Call the function with tensors first, or make the variable outside of it."
        )
    compiled = Compiled(graph, [graph.inputs[i] for i in needed], [inside], ())
    value = compiled.run([v._value for v in values])[0]
    outer = graph.outer_graph
    while outer.outer_graph is not None:
        outer = outer.outer_graph
    return EagerTensor(outer, value, inside.dtype.base_dtype, "")


def _is_symbolic(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not isinstance(leaf, EagerTensor)


def _outputs(graph: FuncGraph, result: Any, name: str) -> Any:
    """Sets the outputs of a function's graph. Returns the structure of the results, of these tensors."""

    def convert(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, Operation):
            return None
        if isinstance(leaf, TensorArray):
            graph.outputs.append(identity(leaf.flow))
            return leaf.with_flow(graph.outputs[-1])
        if isinstance(leaf, Carried):
            graph.outputs.append(identity(leaf._variant_tensor))
            return leaf.carried_by(graph.outputs[-1])
        try:
            tensor = convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            if isinstance(leaf, Tensor):
                raise
            raise TypeError(
                f"tf.function {name} must return tensors, structures of tensors or None, received {leaf!r:.200} of "
                f"type {type(leaf).__name__} among its results."
            ) from error
        graph.outputs.append(identity(tensor))
        return graph.outputs[-1]

    leaves = [convert(leaf) for leaf in nest.flatten(result, expand_composites=True)]
    return nest.pack_sequence_as(result, leaves, expand_composites=True)


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: Any = None,
    experimental_autograph_options: Any = None,
    experimental_attributes: Any = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Makes a function run as graphs: traced once per form of its arguments, then run without Python.

    All functions are compiled; `jit_compile` and the options for other compilers are accepted.

    >>> @tf.function
    ... def square(x):
    ...     return x * x
    >>> square(tf.constant(3.0))
    """

    def decorate(python_function: Callable[..., Any]) -> Function:
        if not callable(python_function):
            raise TypeError(f"tf.function takes a callable object, received {python_function!r}.")
        is_relaxed = bool(reduce_retracing or experimental_relax_shapes)
        return Function(python_function, input_signature, autograph, is_relaxed, experimental_autograph_options)

    return decorate if func is None else decorate(func)


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Makes functions run as plain Python, for debugging, or as graphs again.

    >>> tf.config.run_functions_eagerly(True)
    """
    _Settings.run_eagerly = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Tells if functions run as plain Python."""
    return _Settings.run_eagerly


def inside_function() -> bool:
    """Tells if this code runs while a function is traced.

    >>> tf.inside_function()
    False
    """
    return get_default_graph().is_function
