"""The arguments of a traced function: which of them are tensors, and which decide that it is traced anew."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.eager.tensor import EagerTensor
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dtypes
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.variables.eager import EagerVariable

Dims = tuple[int | None, ...] | None


class Identity:
    """Stands for an object that has no value to compare: it is the same only as itself, while it lives."""

    __slots__ = ("_number", "_reference")

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value  # it lives as long as this key

    def __eq__(self, other: object) -> bool:
        found = self._reference()
        return isinstance(other, Identity) and found is not None and found is other._reference()

    def __hash__(self) -> int:
        return self._number


class Form:
    """The form of a call. Calls of one form, whose shapes fit a trace, share the trace.

    `key` has the structure of the arguments and their Python values, `specs` one spec for each tensor.

    >>> Form({"x": tf.constant([1.0, 2.0]), "training": True})
    """

    __slots__ = ("key", "specs", "tensors", "variables")

    def __init__(self, arguments: Mapping[str, Any], specs: Sequence[TensorSpec] | None = None) -> None:
        self.tensors: list[Any] = []  # a TensorSpec stands for any tensor
        self.variables: list[EagerVariable] = []
        names: list[str] = []
        keys: list[Any] = []
        for name, value in arguments.items():
            leaves = nest.flatten(value, expand_composites=True)
            keys += [name, _skeleton(value)]
            for leaf, path in zip(leaves, _paths(value, name), strict=True):
                before = len(self.tensors)
                keys.append(self._key(leaf))
                if len(self.tensors) > before:
                    names.append(leaf.name if isinstance(leaf, TensorSpec) and leaf.name else path)
        self.key = tuple(keys)
        given = self.tensors if specs is None else specs
        self.specs = [
            TensorSpec(t.shape, t.dtype.base_dtype, (specs is not None and t.name) or n)
            for t, n in zip(given, names, strict=True)
        ]

    def _key(self, leaf: Any) -> Any:
        if isinstance(leaf, (np.ndarray, np.generic)):
            leaf = convert_to_tensor(leaf)
        if isinstance(leaf, (Tensor, TensorSpec)):
            self.tensors.append(leaf)
            return Tensor, leaf.dtype.base_dtype
        if isinstance(leaf, EagerVariable):
            if not any(leaf is v for v in self.variables):
                self.variables.append(leaf)
            number = next(i for i, v in enumerate(self.variables) if v is leaf)
            return EagerVariable, leaf.dtype, dims_of(leaf.shape), leaf.trainable, number
        return leaf if _compares_by_value(leaf) else Identity(leaf)

    @property
    def shapes(self) -> tuple[Dims, ...]:
        """The shapes of the tensors."""
        return tuple([dims_of(spec.shape) for spec in self.specs])

    def relaxed(self, shapes: Sequence[Dims]) -> Form:
        """This form with shapes that fit the given ones too."""
        other = Form({})
        other.key, other.tensors, other.variables = self.key, self.tensors, self.variables
        other.specs = [
            TensorSpec(_common(dims_of(spec.shape), dims), spec.dtype, spec.name)
            for spec, dims in zip(self.specs, shapes, strict=True)
        ]
        return other


def _compares_by_value(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    if value is None:
        return True
    return not inspect.ismodule(value) and getattr(type(value), "__eq__", None) is not object.__eq__


def _skeleton(value: Any) -> Any:
    """The nesting of an argument, without its leaves."""
    if isinstance(value, Mapping):
        return type(value), tuple((k, _skeleton(value[k])) for k in sorted(value))
    if isinstance(value, (list, tuple)):
        return type(value), tuple([_skeleton(v) for v in value])
    if nest.is_nested(value, expand_composites=True):
        return type(value), len(nest.flatten(value, expand_composites=True))
    return None


def _paths(value: Any, name: str) -> Iterator[str]:
    """A name for each leaf of an argument, in order: of `s = {"a": [x]}` it is `s_a_0`."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _paths(value[key], f"{name}_{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _paths(item, f"{name}_{i}")
    else:
        yield from (name for _ in nest.flatten(value, expand_composites=True))


def replaced(value: Any, tensors: Iterator[Any], variables: Mapping[int, Any]) -> Any:
    """The argument with the next of `tensors` for each of its tensors, and `variables[id(v)]` for each variable v."""

    def new(leaf: Any) -> Any:
        if _is_tensor(leaf):
            return next(tensors)
        return variables.get(id(leaf), leaf)

    leaves = nest.flatten(value, expand_composites=True)
    return nest.pack_sequence_as(value, [new(leaf) for leaf in leaves], expand_composites=True)


def dims_of(shape: TensorShape) -> Dims:
    """A shape as a key."""
    return None if shape.rank is None else tuple(shape.as_list())


def covers(general: Dims, special: Dims) -> bool:
    """Tells if every tensor of the special shape has the general one too."""
    if general is None:
        return True
    if special is None or len(special) != len(general):
        return False
    return all(g is None or g == s for g, s in zip(general, special, strict=True))


def _common(first: Dims, second: Dims) -> Dims:
    """The most special shape that covers both."""
    if first is None or second is None or len(first) != len(second):
        return None
    return tuple([a if a == b else None for a, b in zip(first, second, strict=True)])


class HasNoKey(Exception):
    """Raised for arguments whose form takes a `Form` to know."""


def key_of(value: Any, leaves: list[Any]) -> Any:
    """The form of an argument of plain structures, tensors and arrays; appends its tensors and arrays to `leaves`.

    It is a tenth of the work that making a `Form` is. Arguments with the same key have equal forms and shapes.
    """
    kind = value.__class__
    if kind is EagerTensor:
        try:
            shape = value._value.shape
        except AttributeError:  # a handle, or a value without a shape
            raise HasNoKey from None
        leaves.append(value)
        return value.dtype, shape
    if kind is np.ndarray:
        if value.dtype.kind not in "biufc" or not value.dtype.isnative:
            raise HasNoKey
        leaves.append(value)
        return value.dtype, value.shape
    if kind is tuple or kind is list:
        return kind, tuple([key_of(item, leaves) for item in value])
    if kind is dict:
        return kind, tuple([(name, key_of(value[name], leaves)) for name in sorted(value)])
    if value is None or kind is bool or kind is int or kind is str:
        return kind, value
    raise HasNoKey


class FunctionSpec:
    """The parameters of a function: `f.function_spec`. It binds the arguments of calls in one canonical way."""

    def __init__(self, function: Callable[..., Any], name: str, input_signature: Any = None) -> None:
        self._name = name
        self.signature = inspect.signature(function)
        self.input_signature = None if input_signature is None else _checked_signature(input_signature, name)
        parameters = self.signature.parameters.values()
        self._positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        # A function in the body of a class may be a method, whose first parameter the signature does not have.
        self._checked = input_signature is None

    def _check_count(self, count: int) -> None:
        if count > len(self._positional) and self._rest is None:
            raise TypeError(
                f"{self._name}: input_signature has {count} specs, but the parameters are {self.signature}."
            )
        for parameter in self.signature.parameters.values():
            is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if parameter.default is parameter.empty and not is_rest and parameter not in self._positional[:count]:
                raise TypeError(
                    f"{self._name}: input_signature has no spec for the parameter '{parameter.name}', which has no "
                    f"default. The parameters are {self.signature}."
                )

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """The arguments by parameter, with defaults."""
        try:
            found = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{self._name}: {error}. Received args {args!r:.300} and kwargs {kwargs!r:.300} for the parameters "
                f"{self.signature}."
            ) from None
        found.apply_defaults()
        return found

    def form(self, bound: inspect.BoundArguments) -> Form:
        """The form of a call. With an input signature all calls have one form, and its arguments become tensors."""
        if self.input_signature is None:
            return Form(bound.arguments)
        if not self._checked:
            self._check_count(len(self.input_signature))
            self._checked = True
        specs: list[TensorSpec] = []
        names = [p.name for p in self._positional]
        for i, spec in enumerate(self.input_signature[: len(names)]):
            bound.arguments[names[i]] = self._fitted(bound.arguments[names[i]], spec, specs)
        more = self.input_signature[len(names) :]
        if more:
            given = bound.arguments[self._rest or ""]
            bound.arguments[self._rest or ""] = self._fitted(tuple(given), tuple(more), specs)
        for name, value in bound.arguments.items():
            if name in names[len(self.input_signature) :] or name not in (*names, self._rest):
                for leaf in nest.flatten(value, expand_composites=True):
                    if _is_tensor(leaf):
                        raise TypeError(
                            f"{self._name}: the tensor for '{name}' has no spec in input_signature "
                            f"{self.input_signature}."
                        )
        return Form(bound.arguments, specs)

    def _fitted(self, value: Any, spec: Any, specs: list[TensorSpec]) -> Any:
        """An argument as the tensors that a spec, or a structure of specs, asks for."""
        if isinstance(spec, SparseTensorSpec) and isinstance(value, SparseTensor):
            if value.dtype.base_dtype is not spec.dtype or not spec.shape.is_compatible_with(value.get_shape()):
                raise self._misfit(value, spec)
            rank = spec.shape.rank
            specs += [
                TensorSpec((None, rank), dtypes.int64),
                TensorSpec((None,), spec.dtype),
                TensorSpec((rank,), dtypes.int64),
            ]
            return value
        if isinstance(spec, RaggedTensorSpec) and isinstance(value, Ragged):
            if not spec.is_compatible_with(value):
                raise self._misfit(value, spec)
            specs += spec.part_specs()
            return value
        if isinstance(spec, TensorSpec):
            if not isinstance(value, (Tensor, TensorSpec)):
                try:
                    value = convert_to_tensor(value, dtype=spec.dtype)
                except (TypeError, ValueError) as error:
                    raise self._misfit(value, spec) from error
            if value.dtype.base_dtype is not spec.dtype or not covers(dims_of(spec.shape), dims_of(value.shape)):
                raise self._misfit(value, spec)
            specs.append(spec)
            return value
        if isinstance(spec, Mapping) and isinstance(value, Mapping) and spec.keys() == value.keys():
            fitted = {k: self._fitted(value[k], spec[k], specs) for k in sorted(spec)}
            return {k: fitted[k] for k in value}
        if isinstance(spec, (list, tuple)) and isinstance(value, (list, tuple)) and len(spec) == len(value):
            items = [self._fitted(v, s, specs) for v, s in zip(value, spec, strict=True)]
            return spec._make(items) if hasattr(spec, "_make") else type(spec)(items)
        raise self._misfit(value, spec)

    def _misfit(self, value: Any, spec: Any) -> TypeError:
        return TypeError(f"{self._name}: the argument {value!r:.300} does not fit {spec!r} of input_signature.")

    # Calls of one trace

    def structured(self, bound: inspect.BoundArguments, form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a trace, with a spec for each tensor."""
        specs = iter(form.specs)

        def spec(leaf: Any) -> Any:
            parts = [next(specs) for p in nest.flatten(leaf, expand_composites=True) if _is_tensor(p)]
            if isinstance(leaf, SparseTensor):
                return SparseTensorSpec(leaf.get_shape(), leaf.dtype)
            if isinstance(leaf, Ragged):
                return RaggedTensorSpec.from_value(type(leaf).described(*parts))
            return parts[0] if len(parts) == 1 else leaf

        named = {name: nest.map_structure(spec, value) for name, value in bound.arguments.items()}
        found = inspect.BoundArguments(self.signature, named)
        return found.args, found.kwargs

    def leaves(self, bound: inspect.BoundArguments, form: Form) -> dict[str, list[Any]]:
        """The leaves of the arguments of a trace, by parameter, with a spec for each tensor."""
        specs = iter(form.specs)
        return {
            name: [next(specs) if _is_tensor(leaf) else leaf for leaf in nest.flatten(value, expand_composites=True)]
            for name, value in bound.arguments.items()
        }

    def fill(self, leaves: Mapping[str, list[Any]], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors of a call of a trace. Python values may be left out; given ones must be those of the trace."""
        named = {ls[0].name: name for name, ls in leaves.items() if len(ls) == 1 and isinstance(ls[0], TensorSpec)}
        kwargs = {named.get(k, k): v for k, v in kwargs.items()}
        try:
            given = self.signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}. The parameters are {self.signature}.") from None
        tensors: list[Tensor] = []
        for name, expected in leaves.items():
            if name not in given:
                if any(isinstance(leaf, TensorSpec) for leaf in expected):
                    raise TypeError(f"{self._name}: missing a required argument: '{name}', {expected!r}.")
                continue
            values = nest.flatten(given[name], expand_composites=True)
            if len(values) != len(expected):
                raise TypeError(f"{self._name}: '{name}' must be like {expected!r}, received {given[name]!r:.300}.")
            for value, leaf in zip(values, expected, strict=True):
                if isinstance(leaf, TensorSpec):
                    tensors.append(self._tensor(name, value, leaf))
                elif isinstance(value, Tensor) or not (value is leaf or bool(value == leaf)):
                    raise TypeError(f"{self._name}: it was traced with {name}={leaf!r}, received {value!r:.300}.")
        return tensors

    def _tensor(self, name: str, value: Any, spec: TensorSpec) -> Tensor:
        tensor: Tensor = convert_to_tensor(value, dtype=None if isinstance(value, Tensor) else spec.dtype)
        if tensor.dtype.base_dtype is not spec.dtype:
            raise InvalidArgumentError(
                f"{self._name}: the argument '{name}' must be {spec.dtype.name}, received {tensor.dtype.name}."
            )
        return tensor


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, TensorSpec, np.ndarray, np.generic))


def _checked_signature(given: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{name}: input_signature must be a list or tuple of tf.TensorSpec, received {given!r}.")
    for leaf in nest.flatten(given):
        if not isinstance(leaf, TensorSpec):
            raise TypeError(f"{name}: input_signature must consist of tf.TensorSpec, received {leaf!r} in it.")
    return tuple(given)
