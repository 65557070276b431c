"""ConcreteFunction: a function traced for one signature, ready to run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from penstock.autodiff.walk import Walk, flows
from penstock.data.structure import Carried
from penstock.eager.arguments import FunctionSpec
from penstock.eager.function_graph import FuncGraph, clone, copy_into
from penstock.eager.runtime import runtime
from penstock.eager.seeds import STREAM
from penstock.eager.tensor import EagerOperation, EagerTensor
from penstock.errors import OpError
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.effects import order_effects
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.identity import IdentityDict
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import recorders, variable_accessed
from penstock.master.master import Master
from penstock.master.signature import Signature
from penstock.ops.array.creation import zeros_like
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.engine.vjp import differentiable
from penstock.segments.borrowing import MIDDLE
from penstock.segments.tiers import FEW_NODES

_MANY = 64  # sets of variables that a trace was called with, for which its copies are kept


class Compiled:
    """The results and effects of a graph as steps of the runtime's master."""

    def __init__(
        self, graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor], targets: Sequence[Operation]
    ) -> None:
        self.outputs = list(outputs)
        self._graph = graph
        self._inputs = list(inputs)
        self._targets = list(targets)
        for operation in graph.get_operations():
            if operation.op_def.random or operation.op_def.control_flow:
                operation.attrs[STREAM] = f"{getattr(graph, 'name', '')}/{operation.name}"
        self._signature: Signature | None = None
        self._master: Master | None = None
        self._mutations = -1

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Runs a step with these values for the parameters. An error names the line of the program that failed."""
        try:
            return runtime.recovering(self._run, values)
        except OpError as error:
            op = self._graph.find(error.op_name) if error.op is None and error.op_name else error.op
            raise type(error)(None if op is None else op.node_def, op, error.message) from error

    def _run(self, values: Sequence[Any]) -> list[Any]:
        signature = self._signature
        if signature is None or self._mutations != self._graph.mutations or self._master is not runtime.master:
            signature = self._prepared(runtime.master)
        return runtime.run(signature, values)

    def _prepared(self, master: Master) -> Signature:
        signature = master.prepared(self._inputs, self.outputs, self._targets)
        weakref.finalize(self, master.forget, signature).atexit = False
        self._signature, self._master, self._mutations = signature, master, self._graph.mutations
        return signature


class ConcreteFunction:
    """One trace of a function. It takes the tensors of the trace; Python values may be left out.

    >>> f = tf.function(lambda x, n: x * n).get_concrete_function(tf.TensorSpec([], tf.int32), 3)
    >>> f(tf.constant(5))
    """

    def __init__(self, name: str, graph: FuncGraph, structured_outputs: Any, variables: Sequence[Any]) -> None:
        self.name = name
        self.graph = graph
        self.structured_outputs = structured_outputs  # a structure of tensors, composites, TensorArrays and None
        self.structured_input_signature: Any = None
        self.function_spec: FunctionSpec | None = None
        self.argument_leaves: dict[str, list[Any]] = {}  # by parameter, with a spec for each tensor
        self._variables = [weakref.ref(v) for v in variables]
        self._packed = _packer(structured_outputs)
        # NumPy runs small graphs, and takes its own arrays.
        self._placed_from = MIDDLE if graph.version <= FEW_NODES else 0
        self._compiled = Compiled(graph, graph.inputs, graph.outputs, graph.targets)
        self._gradients: list[_Gradient] = []  # the first derivative, then what the next ones need
        self._clones: dict[Any, ConcreteFunction] = {}
        # What others have made of this function, by maker: it lives as long as both.
        self.derived: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables that the function uses, as far as they are alive."""
        return tuple(v for v in (reference() for reference in self._variables) if v is not None)

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """Those of the variables that are trainable."""
        return tuple(v for v in self.variables if v.trainable)

    @property
    def inputs(self) -> list[Tensor]:
        """The parameters of the graph."""
        return list(self.graph.inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors of the graph that are the results."""
        return list(self.graph.outputs)

    @property
    def captured_inputs(self) -> list[Tensor]:
        """The tensors, and handles of resources, that the function uses from outside."""
        return [*self.graph.captured, *self.graph.handles]

    @property
    def output_shapes(self) -> Any:
        """The static shapes of the results, in their structure."""
        return nest.map_structure(lambda t: None if t is None else t.shape, self.structured_outputs)

    @property
    def output_dtypes(self) -> Any:
        """The types of the results, in their structure."""
        return nest.map_structure(lambda t: None if t is None else t.dtype, self.structured_outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self.function_spec is not None
        return self.call(self.function_spec.fill(self.argument_leaves, args, kwargs))

    def traced(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[ConcreteFunction, list[Tensor]]:
        """This function, and the tensors among the arguments of a call."""
        assert self.function_spec is not None
        return self, self.function_spec.fill(self.argument_leaves, args, kwargs)

    def call(self, arguments: Sequence[Tensor]) -> Any:
        """Calls the function with tensors for its own parameters, and returns its results in their structure."""
        graph = get_default_graph()
        for argument in arguments:
            if not isinstance(argument, EagerTensor):
                break
        else:
            if graph.is_eager:
                return self.run(graph, arguments)
        given = dict(zip(self.graph.inputs, [*arguments, *self.graph.captured], strict=True))
        copies = copy_into(graph, self.graph, given)
        return self._packed([copies[t] for t in self.graph.outputs])

    def packed(self, graph: Graph, values: Sequence[Any]) -> Any:
        """Values that were computed elsewhere as the results of a call."""
        return self._packed(_tensors(graph, values, self.graph.outputs))

    def run(self, graph: Graph, arguments: Sequence[Any]) -> Any:
        """Calls the function with tensors that have values."""
        captured = self.graph.captured
        values = runtime.values((*arguments, *captured) if captured else arguments, self._placed_from)
        if recorders.items:
            for variable in self.variables:
                variable_accessed(variable)
            inputs = [*arguments, *captured, *(outer for outer, _ in self.graph.resources)]
            order = sum(recorder.tracks(inputs) for recorder in recorders.items)
            if order:
                results = self._run_recorded(graph, inputs, values, order)
                return self._packed(results[: len(self.graph.outputs)])
        return self._packed(_tensors(graph, self._compiled.run(values), self.graph.outputs))

    def _run_recorded(
        self, graph: Graph, inputs: list[Tensor], values: list[Any], order: int, has_effects: bool = True
    ) -> list[Tensor]:
        """Runs the function for tapes: each tape around it may take one more derivative."""
        gradients = self._differentiated(order)
        forward = gradients[-1].forward if has_effects else gradients[-1].forward_again
        results = _tensors(graph, forward.run(values), forward.outputs)
        outputs = results[: len(gradients[-1].differentiated)]
        operation = EagerOperation(graph, op_of("IdentityN"), inputs, {"T": ()}, outputs)

        def gradient(op: Operation, *dys: Any) -> list[Any]:
            more = 1 + sum(recorder.tracks(inputs) for recorder in recorders.items)
            if more > order:
                # A persistent tape records while it is asked. What further derivatives need is computed anew.
                again = self._run_recorded(graph, inputs, values, more, has_effects=False)
                return self._differentiated(more)[0].gradients(inputs, again, dys)
            last = max((i for i, dy in enumerate(dys) if dy is not None), default=0)
            return next(g for g in gradients if last < len(g.differentiated)).gradients(inputs, results, dys)

        operation.gradient = gradient
        for recorder in recorders.items:
            recorder.record(operation)
        return results

    def _differentiated(self, order: int) -> list[_Gradient]:
        with self._lock:
            if self._gradients and self._gradients[-1].mutations != self.graph.mutations:
                self._gradients = []
            while len(self._gradients) < order:
                outputs = self._gradients[-1].forward.outputs if self._gradients else self.graph.outputs
                self._gradients.append(_Gradient(self, outputs))
            return self._gradients[:order]

    def for_variables(self, variables: Sequence[Any]) -> ConcreteFunction:
        """This function with other variables in place of those that were its arguments when it was traced."""
        handles = [v.handle for v in variables]
        traced = [outer for outer, _ in self.graph.handle_parameters]
        if all(a is b for a, b in zip(handles, traced, strict=True)):
            return self
        key = tuple([id(h) for h in handles])
        found = self._clones.get(key)
        if found is None:
            if len(self._clones) == _MANY:
                self._clones.clear()
            found = self._clones[key] = self._clone(variables, handles, traced)
        return found

    def _clone(self, variables: Sequence[Any], handles: Sequence[Tensor], traced: Sequence[Tensor]) -> ConcreteFunction:
        graph, copies = clone(self.graph, handles)
        graph.outputs = [copies[t] for t in self.graph.outputs]
        order_effects(graph)
        new = {id(handle): variable for handle, variable in zip(traced, variables, strict=True)}
        used = [new.get(id(v.handle), v) for v in self.variables]
        found = ConcreteFunction(self.name, graph, self._packed(graph.outputs), used)
        found.structured_input_signature, found.function_spec = self.structured_input_signature, self.function_spec
        found.argument_leaves = self.argument_leaves
        return found

    def pretty_printed_signature(self, verbose: bool = True) -> str:
        """The parameters and results as text."""
        assert self.function_spec is not None
        parameters = self.function_spec.signature.parameters
        args, kwargs = self.structured_input_signature
        named = dict(zip(parameters, args, strict=False)) | kwargs
        result = nest.map_structure(_described, self.structured_outputs)
        if not verbose:
            inside = ", ".join(f"{name}: {_described(value)}" for name, value in named.items())
            return f"({inside}) -> {result}"
        lines = [f"  {n} ({parameters[n].kind.name}): {_described(v)}" for n, v in named.items() if n in parameters]
        captures = [f"  {t.dtype.name}, shape {t.shape}" for t in self.captured_inputs]
        return "\n".join(
            ["Input Parameters:", *(lines or ["  None"]), "Output Type:", f"  {result}", "Captures:"]
            + (captures or ["  None"])
        )

    def __str__(self) -> str:
        return f"ConcreteFunction {self.pretty_printed_signature()}" if self.function_spec else repr(self)

    def __repr__(self) -> str:
        return f"<ConcreteFunction {self.name} at {id(self):#x}>"


class _Text(str):
    """Text that is shown without quotes."""

    __repr__ = str.__str__


def _described(value: Any) -> _Text:
    if isinstance(value, Tensor):
        return _Text(f"TensorSpec(shape={value.shape}, dtype={value.dtype!r}, name=None)")
    return _Text(f"Literal[{value!r}]" if value is None or isinstance(value, (bool, int, float, str)) else repr(value))


def _tensors(graph: Graph, values: Sequence[Any], like: Sequence[Tensor]) -> list[Tensor]:
    device = runtime.default_device
    return [EagerTensor(graph, v, t.dtype, device) for v, t in zip(values, like, strict=True)]


def _packer(structure: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function that puts results into the structure of a function's results."""
    leaves = nest.flatten(structure, expand_composites=True)
    if all(isinstance(leaf, Tensor) for leaf in leaves):
        if isinstance(structure, Tensor):
            return lambda tensors: tensors[0]
        if type(structure) in (list, tuple) and len(structure) == len(leaves):
            return type(structure)

    def pack(tensors: Sequence[Tensor]) -> Any:
        rest = iter(tensors)
        new = [leaf if leaf is None else _like(leaf, next(rest)) for leaf in leaves]
        return nest.pack_sequence_as(structure, new, expand_composites=True)

    return pack


def _like(leaf: Any, tensor: Tensor) -> Any:
    if isinstance(leaf, Carried):
        return leaf.carried_by(tensor)
    return leaf.with_flow(tensor) if isinstance(leaf, TensorArray) else tensor


class _Gradient:
    """The gradient of some tensors of a function's graph, as a function; and the function with what that needs."""

    def __init__(self, concrete: ConcreteFunction, differentiated: Sequence[Tensor]) -> None:
        graph = concrete.graph
        self.differentiated = differentiated
        self.given = [i for i, t in enumerate(differentiated) if differentiable(t.dtype)]
        sources = [*graph.inputs, *(node for _, node in graph.resources)]
        backward = FuncGraph(graph.unique_function_name(f"{concrete.name}_gradient"), graph)
        with backward.as_default():
            ys = [differentiated[i] for i in self.given]
            dys = [backward.add_input(t.dtype, t.shape, "grad") for t in ys]
            walk = Walk(backward)
            walk.run(ys, list(dys), [t for t in sources if flows(t.dtype)], [])
            structure = [_inside(backward, walk.gradient_of(t)) if flows(t.dtype) else None for t in sources]
        order_effects(backward)
        backward.outputs = [t for g in structure if g is not None for t in nest.flatten(g, expand_composites=True)]
        # The values that it takes from the function become parameters, which come after the gradients.
        needed = [t for t in backward.captured if not isinstance(t, EagerTensor)]
        backward.captured = [t for t in backward.captured if isinstance(t, EagerTensor)]
        backward.inputs = [*dys, *(backward.capture(t) for t in (*needed, *backward.captured))]
        outer = IdentityDict.of((node, handle) for handle, node in graph.resources)
        backward.handles = IdentityDict.of(
            (outer.get(handle, handle), node) for handle, node in backward.handles.items()
        )
        self.mutations = graph.mutations
        known = {t: ("input", i) for i, t in enumerate(graph.inputs)}
        kept = [t for t in needed if t not in known and not any(t is d for d in differentiated)]
        results = [*differentiated, *kept]
        known.update({t: ("output", i) for i, t in enumerate(results) if t not in known})
        self._needed = [known[t] for t in needed]
        self.forward = Compiled(graph, graph.inputs, results, graph.targets)
        self.forward_again = Compiled(graph, graph.inputs, results, ())
        self._backward = ConcreteFunction(backward.name, backward, structure, concrete.variables)

    def gradients(self, inputs: Sequence[Tensor], results: Sequence[Tensor], dys: Sequence[Any]) -> list[Any]:
        """One gradient, or None, per input of a call that gave these results of `forward`."""
        given = [zeros_like(results[i]) if dys[i] is None else convert_to_tensor(dys[i]) for i in self.given]
        values = {"input": inputs, "output": results}
        found: list[Any] = self._backward.call([*given, *(values[kind][i] for kind, i in self._needed)])
        return found


def _inside(graph: FuncGraph, gradient: Any) -> Any:
    """A gradient whose tensors are all of the given graph."""
    if gradient is None:
        return None

    def own(tensor: Tensor) -> Tensor:
        return tensor if tensor.graph is graph else graph.capture(tensor)

    if isinstance(gradient, IndexedSlices):
        shape = gradient.dense_shape
        return IndexedSlices(own(gradient.values), own(gradient.indices), None if shape is None else own(shape))
    return own(gradient)
