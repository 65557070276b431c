"""Functions of a SavedModel as functions that can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.eager.arguments import FunctionSpec
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function_graph import FuncGraph
from penstock.eager.graph import the_graph
from penstock.errors import DataLossError
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.effects import order_effects
from penstock.graph.importer import add_function
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.saved_model.structures import Unknown, decode
from penstock.trackable.base import Trackable
from penstock.variables.resource import ResourceVariable
from penstock.variables.variable import Variable


class Functions:
    """The concrete functions of a SavedModel. Each is built when it is first needed."""

    def __init__(self, library: Any, saved: Mapping[str, Any], bound: Callable[[int], Any]) -> None:
        self._library = list(library)
        self._saved = saved
        self._bound = bound  # the variable or tensor that an object of the model is to functions
        self._built: dict[str, ConcreteFunction] = {}
        self.names = {proto.signature.name: proto for proto in self._library}

    def signature(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a function, with a spec for each tensor."""
        args, kwargs = decode(self._entry(name).canonicalized_input_signature) or ((), {})
        return tuple(args), dict(kwargs)

    def _entry(self, name: str) -> Any:
        if name not in self._saved:
            raise ValueError(f"The SavedModel has no concrete function '{name[:100]}'.")
        return self._saved[name]

    def concrete(self, name: str) -> ConcreteFunction:
        """A concrete function by name."""
        found = self._built.get(name)
        if found is None:
            found = self._built[name] = self._build(name)
        return found

    def _build(self, name: str) -> ConcreteFunction:
        entry = self._entry(name)
        args, kwargs = self.signature(name)
        specs = _flat_specs((args, kwargs))
        for spec in specs:
            if isinstance(spec, Unknown):
                raise NotImplementedError(f"Function '{name}' of the SavedModel takes {spec!r}.")
        bound = [self._bound(number) for number in entry.bound_inputs]
        graph = FuncGraph(name, the_graph())
        with graph.as_default():
            given = [graph.add_input(s.dtype, s.shape, f"argument_{i}") for i, s in enumerate(specs)]
            given += [graph.capture(v.handle if isinstance(v, ResourceVariable) else v) for v in bound]
            graph.outputs, graph.targets = add_function(graph, self._library, name, given)
            order_effects(graph)
        structure = _with_composites(decode(entry.output_signature), iter(graph.outputs), name)
        variables = [v for v in bound if isinstance(v, Variable)]
        concrete = ConcreteFunction(name, graph, structure, variables)
        # The concrete function knows its variables weakly: the model may be gone when a signature is still used.
        concrete._kept = bound  # type: ignore[attr-defined]
        concrete.structured_input_signature = (args, kwargs)
        return concrete

    def bare(self, name: str, keywords: Sequence[str], positional: int) -> ConcreteFunction:
        """A concrete function that is called with tensors by name, such as a signature."""
        concrete = self.concrete(name)
        specs = _flat_specs(concrete.structured_input_signature)
        names = list(keywords) if len(keywords) == len(specs) else [f"argument_{i}" for i in range(len(specs))]
        concrete.function_spec = FunctionSpec(parameters_of(names, positional), name)
        concrete.argument_leaves = {n: [spec] for n, spec in zip(names, specs, strict=True)}
        return concrete


class _Parameters:
    """Has the parameters of a function, and nothing else."""

    def __init__(self, signature: inspect.Signature) -> None:
        self.__signature__ = signature

    def __call__(self) -> None:
        raise NotImplementedError("Only the parameters of this function are known.")


def parameters_of(names: Sequence[str], positional: int) -> _Parameters:
    """Parameters with these names; the first ones may be given by position."""
    kind = inspect.Parameter
    kinds = [kind.POSITIONAL_OR_KEYWORD if i < positional else kind.KEYWORD_ONLY for i in range(len(names))]
    try:
        return _Parameters(inspect.Signature([kind(n, k) for n, k in zip(names, kinds, strict=True)]))
    except ValueError as error:
        raise DataLossError(f"A function of a SavedModel has parameters that are not valid: {error}.") from error


def _flat_specs(structure: Any) -> list[Any]:
    """The specs in a structure, one per tensor."""
    found: list[Any] = []
    for leaf in nest.flatten(structure):
        if isinstance(leaf, SparseTensorSpec):
            rank = leaf.shape.rank
            found += [TensorSpec((None, rank), "int64"), TensorSpec((None,), leaf.dtype), TensorSpec((rank,), "int64")]
        elif isinstance(leaf, RaggedTensorSpec):
            found += leaf.part_specs()
        elif isinstance(leaf, (TensorSpec, Unknown)):
            found.append(leaf)
    return found


def _with_composites(structure: Any, outputs: Iterator[Tensor], name: str) -> Any:
    """The structure of results: specs, and sparse tensors of the graph in place of their specs."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, SparseTensorSpec):
            return SparseTensor(next(outputs), next(outputs), next(outputs))
        if isinstance(leaf, RaggedTensorSpec):
            flat, *splits = [next(outputs) for _ in leaf.part_specs()]
            return RaggedTensor.from_nested_row_splits(flat, splits, validate=False)
        if isinstance(leaf, TensorSpec):
            next(outputs)
            return leaf
        if leaf is None:
            return None
        raise NotImplementedError(f"Function '{name}' of the SavedModel returns {leaf!r}.")

    return nest.map_structure(convert, structure)


class LoadedFunction(Trackable):
    """A tf.function of a SavedModel: it has the traces that were saved, and can make no others."""

    def __init__(
        self, name: str, functions: Functions, traces: Sequence[str], signature: inspect.Signature, specs: Any
    ) -> None:
        self._name = name
        self._functions = functions
        self._traces = list(traces)
        self._signature = signature
        self.input_signature = specs

    @property
    def concrete_functions(self) -> list[ConcreteFunction]:
        """All traces."""
        return [self._functions.concrete(name) for name in self._traces]

    @property
    def python_signature(self) -> inspect.Signature:
        """The parameters of the function that was traced."""
        return self._signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, tensors = self._matching(args, kwargs)
        return self._functions.concrete(name).call(tensors)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for arguments like these; a tf.TensorSpec stands for any tensor that fits it."""
        if not args and not kwargs and len(self._traces) == 1:
            return self._functions.concrete(self._traces[0])
        return self._functions.concrete(self._matching(args, kwargs)[0])

    def _matching(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, list[Tensor]]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}. The parameters are {self._signature}.") from None
        bound.apply_defaults()
        given = (bound.args, bound.kwargs)
        for convert in (False, True):
            for name in self._traces:
                saved_args, saved_kwargs = self._functions.signature(name)
                expected = (saved_args + given[0][len(saved_args) :], saved_kwargs)
                tensors = _fit(expected, given, convert)
                if tensors is not None:
                    return name, tensors
        options = [f"  Option {i + 1}: {self._functions.signature(n)}" for i, n in enumerate(self._traces)]
        kind = TypeError if self._traces and self.input_signature is not None else ValueError
        raise kind(
            f"Could not find matching concrete function to call loaded from the SavedModel: {self._name} received "
            f"{given[0]!r:.500} and {given[1]!r:.300}, and was saved with {len(options)} traces:\n" + "\n".join(options)
        )

    def __repr__(self) -> str:
        return f"<LoadedFunction {self._name}{self._signature}>"


def _fit(expected: Any, given: Any, convert: bool) -> list[Any] | None:
    """The tensors of an argument that fits; None if it does not. With `convert`, Python values become tensors."""
    if isinstance(expected, SparseTensorSpec):
        fits = isinstance(given, SparseTensor) and given.dtype.base_dtype is expected.dtype
        return [given.indices, given.values, given.dense_shape] if fits else None
    if isinstance(expected, RaggedTensorSpec):
        fits = isinstance(given, Ragged) and expected.is_compatible_with(given)
        return given.parts if fits else None
    if isinstance(expected, TensorSpec):
        return _fit_tensor(expected, given, convert)
    if isinstance(expected, Mapping):
        if not isinstance(given, Mapping) or given.keys() != expected.keys():
            return None
        return _joined(_fit(expected[key], given[key], convert) for key in sorted(expected))
    if isinstance(expected, (list, tuple)):
        if not isinstance(given, (list, tuple)) or len(given) != len(expected):
            return None
        return _joined(_fit(e, g, convert) for e, g in zip(expected, given, strict=True))
    if isinstance(given, (Tensor, Variable, np.ndarray, Unknown)) or isinstance(expected, Unknown):
        return None
    return [] if type(given) is type(expected) and given == expected else None


def _joined(parts: Iterator[list[Any] | None]) -> list[Any] | None:
    found: list[Any] = []
    for part in parts:
        if part is None:
            return None
        found += part
    return found


def _fit_tensor(spec: TensorSpec, given: Any, convert: bool) -> list[Any] | None:
    if isinstance(given, TensorSpec):
        return [given] if spec.is_compatible_with(given) else None
    if not isinstance(given, Tensor):
        if given is None or not (convert or isinstance(given, (Variable, np.ndarray, np.generic))):
            return None
        try:
            given = convert_to_tensor(given, dtype=spec.dtype if convert else None)
        except (TypeError, ValueError):
            return None
    return [given] if spec.is_compatible_with(given) else None
