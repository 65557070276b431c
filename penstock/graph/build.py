"""Adding a node: from a Python call of an op to a checked Operation in a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import Graph, get_default_graph, graph_of
from penstock.graph.hooks import eager_hooks, hooks
from penstock.graph.infer import infer_shapes
from penstock.graph.opdef import MISSING, ArgDef, OpDef
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import as_shape


def build(op_def: OpDef, args: Sequence[Any], kwargs: dict[str, Any], name: str | None) -> Any:
    """Adds a node for a call `op_def(*args, **kwargs)` and returns its outputs in the form that users expect."""
    count = len(op_def.inputs)
    if len(args) > count:
        kwargs = _named(op_def, args[count:], kwargs if name is None else {**kwargs, "name": name})
        name = kwargs.pop("name", None)
    values: list[Any] = list(args[:count])
    if len(args) < count:
        kwargs = dict(kwargs)  # the caller's stays as it is
    for arg in op_def.inputs[len(args) :]:
        if arg.name not in kwargs:
            raise TypeError(f"{op_def.name}: missing input '{arg.name}'.")
        values.append(kwargs.pop(arg.name))
    graph = graph_of(values)
    if graph.is_eager:
        return _run(graph, op_def, values, dict(kwargs), name)
    scope = name if name and name.endswith("/") else graph.unique_name(name or op_def.default_name) + "/"
    attrs = dict(kwargs)
    tensors: list[Tensor] = []
    # Constants made from Python inputs go under the op's own name: `MatMul/b`.
    scopes = graph._scopes
    before, scopes.name = scopes.name, scope[:-1]
    try:
        for arg, value in zip(op_def.inputs, values, strict=True):
            tensors += _convert_input(op_def, arg, value, attrs, tensors)
    finally:
        scopes.name = before
    # An op that changes a variable runs on the device of the variable.
    variables = [t.op for arg, t in zip(op_def.inputs, tensors, strict=False) if arg.is_ref]
    if not variables:
        return user_outputs(build_node(graph, op_def, tensors, attrs, scope))
    with ExitStack() as beside:
        for variable in variables:
            beside.enter_context(graph.colocate_with(variable))
        return user_outputs(build_node(graph, op_def, tensors, attrs, scope))


def _run(graph: Graph, op_def: OpDef, values: list[Any], attrs: dict[str, Any], name: str | None) -> Any:
    """Runs the operation of a call, in a graph that runs its operations at once."""
    tensors: list[Tensor] = []
    for arg, value in zip(op_def.inputs, values, strict=True):
        tensors += _convert_input(op_def, arg, value, attrs, tensors)
    return user_outputs(eager_hooks.run_op(graph, op_def, tensors, attrs, name or op_def.default_name))


def _named(op_def: OpDef, extra: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Names the arguments that follow the inputs: the attrs that no input decides, required ones first, then `name`."""
    names = [name for name, _ in op_def.parameters[len(op_def.inputs) :]]
    if len(extra) > len(names):
        raise TypeError(
            f"{op_def.name} takes {len(op_def.inputs)} inputs and then {', '.join(names)}; received {len(extra)} "
            "arguments after the inputs."
        )
    given = dict(zip(names, extra, strict=False))
    twice = sorted(given.keys() & kwargs.keys())
    if twice:
        raise TypeError(f"{op_def.name} got multiple values for argument '{twice[0]}'.")
    return {**kwargs, **given}


def build_node(graph: Graph, op_def: OpDef, inputs: list[Tensor], attrs: dict[str, Any], name: str) -> Operation:
    """Adds a node whose inputs are tensors already; infers the type attrs that `attrs` does not give."""
    _infer_type_attrs(op_def, inputs, attrs, name)
    complete = _complete_attrs(op_def, attrs, name)
    types = output_types(op_def, complete)
    return graph.add_op(op_def, inputs, complete, types, name, infer_shapes)


def user_outputs(op: Operation) -> Any:
    """The operation itself if it has no outputs, its only tensor, or its tensors grouped as declared."""
    outputs = op.op_def.outputs
    if not op.outputs:
        return op
    if len(outputs) == 1:
        return op.outputs if outputs[0].is_list else op.outputs[0]
    if not any(arg.is_list for arg in outputs):
        return tuple(op.outputs)
    grouped: list[Any] = []
    rest = iter(op.outputs)
    for arg in outputs:
        count = len(_arg_types(arg, op.attrs))
        grouped.append([next(rest) for _ in range(count)] if arg.is_list else next(rest))
    return tuple(grouped)


def _convert_input(op_def: OpDef, arg: ArgDef, value: Any, attrs: dict[str, Any], before: list[Tensor]) -> list[Tensor]:
    if not arg.is_list:
        dtype = arg.type or attrs.get(arg.type_attr)
        if isinstance(value, Tensor) and (dtype is None or (value.dtype is dtype and not arg.is_ref)):
            tensor = value
        else:
            tensor = _to_tensor(op_def, arg, value, None if dtype is None else as_dtype(dtype), arg.name, before)
        if arg.type_attr and dtype is None:
            _check_allowed(op_def, arg.type_attr, arg.name, tensor.dtype)
            attrs[arg.type_attr] = tensor.dtype.base_dtype
        return [tensor]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"Expected list for '{arg.name}' argument to '{op_def.name}' Op, not {value!r}.")
    if arg.type_list_attr:
        given = attrs.get(arg.type_list_attr)
        wanted: list[DType | None] = [None] * len(value) if given is None else [as_dtype(d) for d in given]
    else:
        dtype = arg.type or attrs.get(arg.type_attr)
        if dtype is None:
            # The first tensor decides the type, so that [x, 1.0] makes a constant of x's type.
            dtype = next((v.dtype.base_dtype for v in value if hasattr(v, "dtype") and hasattr(v, "op")), None)
        wanted = [None if dtype is None else as_dtype(dtype)] * len(value)
    tensors = []
    for i, (item, want) in enumerate(zip(value, wanted, strict=True)):
        tensors.append(_to_tensor(op_def, arg, item, want, f"{arg.name}_{i}", before))
        if want is None and not arg.type_list_attr:
            wanted[i + 1 :] = [tensors[0].dtype.base_dtype] * (len(value) - i - 1)
            break
    for i in range(len(tensors), len(value)):
        tensors.append(_to_tensor(op_def, arg, value[i], wanted[i], f"{arg.name}_{i}", before))
    if arg.type_list_attr:
        attrs.setdefault(arg.type_list_attr, [t.dtype.base_dtype for t in tensors])
    elif arg.type_attr and tensors:
        _check_allowed(op_def, arg.type_attr, arg.name, tensors[0].dtype)
        attrs.setdefault(arg.type_attr, tensors[0].dtype.base_dtype)
    if arg.number_attr:
        attrs.setdefault(arg.number_attr, len(tensors))
    return tensors


def _to_tensor(op_def: OpDef, arg: ArgDef, value: Any, dtype: DType | None, name: str, before: list[Tensor]) -> Tensor:
    if value is None:
        raise ValueError(f"{op_def.name}: None is not supported as the input '{arg.name}'.")
    if arg.is_ref:
        value = getattr(value, "_ref", lambda: value)()
    default = op_def.attrs[arg.type_attr].default if arg.type_attr and dtype is None else MISSING
    try:
        tensor = convert_to_tensor(value, dtype=None if isinstance(value, Tensor) else dtype, name=name)
        allowed = op_def.attrs[arg.type_attr].allowed or (default,) if arg.type_attr else ()
        if default is not MISSING and tensor.dtype.base_dtype not in allowed:
            # The default is used only if the value's own type is not allowed, such as that of an empty list.
            tensor = convert_to_tensor(value, name=name, preferred_dtype=default)
    except TypeError as error:
        if dtype is None or "inferred from" in str(error) or get_default_graph().is_eager:
            raise
        raise TypeError(
            f"Input '{arg.name}' of '{op_def.name}' Op has type {type(value).__name__} ({value!r:.80}) that does "
            f"not match type {dtype.name} of {_deciding_argument(op_def, arg, before)}. ({error})"
        ) from error
    if dtype is not None and tensor.dtype.base_dtype != dtype.base_dtype:
        if get_default_graph().is_eager:
            raise InvalidArgumentError(
                f"cannot compute {op_def.name}: input #{len(before)} ('{arg.name}') must be a {dtype.name} tensor, and "
                f"is a {tensor.dtype.base_dtype.name} tensor. Convert it with tf.cast. [Op:{op_def.name}]"
            )
        raise TypeError(
            f"Input '{arg.name}' of '{op_def.name}' Op has type {tensor.dtype.base_dtype.name} that does not match "
            f"type {dtype.name} of {_deciding_argument(op_def, arg, before)}."
        )
    if arg.is_ref and not tensor.dtype._is_ref_dtype:
        raise TypeError(
            f"'{op_def.name}' Op requires that input '{arg.name}' be a mutable tensor (e.g.: a tf.Variable), "
            f"received {value!r}."
        )
    return tensor


def _deciding_argument(op_def: OpDef, arg: ArgDef, before: list[Tensor]) -> str:
    for other, tensor in zip(op_def.inputs, before, strict=False):
        if arg.type_attr and other.type_attr == arg.type_attr and other is not arg:
            return f"argument '{other.name}' ({tensor.name})"
    return "expected type" if arg.type else f"attr '{arg.type_attr}'"


def _check_allowed(op_def: OpDef, attr: str, parameter: str, dtype: DType) -> None:
    allowed = op_def.attrs[attr].allowed
    if allowed and dtype.base_dtype not in allowed:
        # An operation that runs at once fails as its kernel would.
        raise (InvalidArgumentError if get_default_graph().is_eager else TypeError)(
            f"{op_def.name}: value passed to parameter '{parameter}' has DataType {dtype.base_dtype.name} not in list "
            f"of allowed values: {', '.join(d.name for d in allowed)}"
        )


def _infer_type_attrs(op_def: OpDef, inputs: list[Tensor], attrs: dict[str, Any], name: str) -> None:
    """Fills in the attrs that the types and number of the input tensors decide."""
    rest = iter(inputs)
    for arg in op_def.inputs:
        if arg.type_list_attr and arg.type_list_attr not in attrs:
            attrs[arg.type_list_attr] = [t.dtype.base_dtype for t in rest]  # a mixed list is always last
            return
        if arg.number_attr:
            if arg.number_attr not in attrs:
                attrs[arg.number_attr] = len(inputs) - (len(op_def.inputs) - 1)
            count = int(attrs[arg.number_attr])
        elif arg.type_list_attr:
            count = len(attrs[arg.type_list_attr])
        else:
            count = 1
        for _ in range(count):
            tensor = next(rest, None)
            if tensor is None:
                raise ValueError(f"{op_def.name} '{name.rstrip('/')}': an input for '{arg.name}' is missing.")
            if arg.type_attr and arg.type_attr not in attrs:
                attrs[arg.type_attr] = tensor.dtype.base_dtype
    extra = sum(1 for _ in rest)
    if extra:
        raise ValueError(f"{op_def.name} '{name.rstrip('/')}': {extra} inputs too many.")


_CANONICAL: dict[str, Callable[[Any], Any]] = {
    "type": as_dtype,
    "shape": as_shape,
    "int": int,
    "float": float,
    "list(type)": lambda v: tuple(as_dtype(x) for x in v),
    "list(shape)": lambda v: tuple(as_shape(x) for x in v),
    "list(int)": lambda v: tuple(int(x) for x in v),
    "list(float)": lambda v: tuple(float(x) for x in v),
    "list(string)": lambda v: tuple(_text(x) for x in v),
    "list(bool)": lambda v: tuple(bool(x) for x in v),
    "list(func)": tuple,
    "string": lambda v: _text(v),
}


def _text(value: Any) -> str:
    """Decodes a string attr such that encoding it again restores the same bytes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _complete_attrs(op_def: OpDef, attrs: dict[str, Any], name: str) -> dict[str, Any]:
    complete = {}
    for attr in op_def.attrs.values():
        value = attrs.pop(attr.name, attr.default)
        if value is MISSING:
            raise TypeError(f"{op_def.name} '{name.rstrip('/')}': the attr '{attr.name}' is missing.")
        convert = _CANONICAL.get(attr.kind)
        if convert is not None:
            try:
                value = convert(value)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{op_def.name} '{name.rstrip('/')}': attr '{attr.name}' must be of kind {attr.kind}, "
                    f"received {value!r} ({error})."
                ) from error
        if attr.kind == "type" and attr.allowed and value.base_dtype not in attr.allowed:
            _check_allowed(op_def, attr.name, attr.name, value)
        complete[attr.name] = value
    for key, value in attrs.items():
        if not key.startswith("_"):
            raise TypeError(f"{op_def.name} got an unexpected keyword argument '{key}'.")
        complete[key] = value
    return complete


def _arg_types(arg: ArgDef, attrs: dict[str, Any]) -> list[DType]:
    if arg.type_list_attr:
        types = list(attrs[arg.type_list_attr])
    else:
        dtype = arg.type or attrs[arg.type_attr]
        types = [dtype] * (attrs[arg.number_attr] if arg.number_attr else 1)
    return [t._as_ref for t in types] if arg.is_ref else types


def output_types(op_def: OpDef, attrs: dict[str, Any]) -> list[DType]:
    """The types of a node's outputs, from its attrs."""
    outputs = op_def.outputs
    if len(outputs) == 1:
        return _arg_types(outputs[0], attrs)
    return [t for arg in outputs for t in _arg_types(arg, attrs)]


hooks.build = build
hooks.build_node = build_node
