"""Converts attrs of nodes to AttrValue protos and back. The protos may come from anywhere, so every size is checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto.attr_value_pb2 import AttrValue, NameAttrList

from penstock.graph.arrays import MAX_RANK
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.function import Call, Function
from penstock.graph.hooks import hooks
from penstock.graph.opdef import MISSING, AttrDef, OpDef, registered
from penstock.graph.shape import TensorShape
from penstock.graph.tensor_proto import array_from_proto, tensor_proto

MAX_OUTPUTS = 65536  # of one node

_FIELD = {
    "string": "s",
    "int": "i",
    "float": "f",
    "bool": "b",
    "type": "type",
    "shape": "shape",
    "tensor": "tensor",
    "func": "func",
}
_KIND = {field: kind for kind, field in _FIELD.items()}


# Writing


class Library:
    """The function bodies that a GraphDef refers to, each under a name of its own."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self._name_of: dict[int, str] = {}

    def name(self, function: Function) -> str:
        """The name of `function` in this GraphDef; two bodies of the same name get different names."""
        known = self._name_of.get(id(function))
        if known is not None:
            return known
        name = self._new_name(function)
        self.functions[name] = function
        self._name_of[id(function)] = name
        return name

    def _new_name(self, function: Function) -> str:
        base = name = re.sub(r"[^A-Za-z0-9_]", "_", function.name) or "function"
        suffix = 0
        while name in self.functions or registered(name) is not None:
            suffix += 1
            name = f"{base}_{suffix}"
        return name


def fill_attrs(target: Any, op_def: OpDef, attrs: dict[str, Any], library: Library) -> None:
    """Writes a node's attrs into a map of AttrValues."""
    for name, value in attrs.items():
        declared = op_def.attrs.get(name)
        dtype = attrs.get("dtype")
        target[name].CopyFrom(attr_to_proto(value, declared.kind if declared else kind_of(value), library, dtype))


def kind_of(value: Any) -> str:
    """The kind of an attr that the op type does not declare, such as `_class`, derived from its value."""
    if isinstance(value, (list, tuple)):
        return f"list({kind_of(value[0]) if value else 'int'})"
    kinds: tuple[tuple[Any, str], ...] = (
        (bool, "bool"),
        ((int, np.integer), "int"),
        ((float, np.floating), "float"),
        ((str, bytes), "string"),
        (DType, "type"),
        (TensorShape, "shape"),
        (np.ndarray, "tensor"),
        ((Function, Call), "func"),
    )
    for types, kind in kinds:
        if isinstance(value, types):
            return kind
    raise TypeError(f"An attr cannot hold {value!r} of type {type(value).__name__}.")


def attr_to_proto(value: Any, kind: str, library: Library | None = None, dtype: DType | None = None) -> AttrValue:
    """An attr's value as an AttrValue; `dtype` is the type of a `tensor` value.

    >>> attr_to_proto(tf.float32, "type")
    type: DT_FLOAT
    """
    library = library or Library()
    proto = AttrValue()
    if kind.startswith("list("):
        proto.list.SetInParent()
        inner = kind[5:-1]
        field = getattr(proto.list, _FIELD[inner])
        field.extend(_single(v, inner, library, dtype) for v in value)
        return proto
    single = _single(value, kind, library, dtype)
    if kind in ("shape", "tensor", "func"):
        getattr(proto, _FIELD[kind]).CopyFrom(single)
    else:
        setattr(proto, _FIELD[kind], single)
    return proto


def _single(value: Any, kind: str, library: Library, dtype: DType | None) -> Any:
    if kind == "string":
        return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    if kind == "int":
        return int(value)
    if kind == "float":
        return float(value)
    if kind == "bool":
        return bool(value)
    if kind == "type":
        return as_dtype(value).as_datatype_enum
    if kind == "shape":
        return value.as_proto()
    if kind == "tensor":
        fits = dtype is not None and (dtype.base_dtype.name == "string") == (value.dtype == object)
        return tensor_proto(value, dtype if fits and dtype is not None else as_dtype(value.dtype))
    if isinstance(value, Call):
        proto = NameAttrList(name=value.op)
        op_def = registered(value.op)
        assert op_def is not None, value.op
        fill_attrs(proto.attr, op_def, value.attrs, library)
        return proto
    return NameAttrList(name=library.name(value))


# Reading


def declared_attrs(name: str, op_def: OpDef, given: Any, functions: Any, depth: int = 0) -> dict[str, Any]:
    """Reads the attrs that an op type declares from AttrValues; ValueError if one is missing or not allowed."""
    attrs: dict[str, Any] = {}
    for attr in op_def.attrs.values():
        if attr.name in given:
            attrs[attr.name] = attr_from_proto(given[attr.name], attr, functions, depth)
        elif attr.default is not MISSING:
            attrs[attr.name] = tuple(attr.default) if isinstance(attr.default, list) else attr.default
        else:
            raise ValueError(f"Node '{name}' ({op_def.name}): the attr '{attr.name}' is missing.")
    counts = {arg.number_attr for arg in (*op_def.inputs, *op_def.outputs) if arg.number_attr}
    for count in counts:
        if not 0 <= attrs[count] <= MAX_OUTPUTS:
            raise ValueError(f"Attr '{count}' of node '{name}' must be between 0 and {MAX_OUTPUTS}, is {attrs[count]}.")
    for attr in op_def.attrs.values():
        wanted = attrs.get("dtype")
        if attr.kind == "tensor" and wanted and given[attr.name].tensor.dtype != wanted.as_datatype_enum:
            raise ValueError(f"Node '{name}': the tensor in attr '{attr.name}' is not of type {attrs['dtype'].name}.")
    return attrs


def attr_from_proto(value: AttrValue, attr: AttrDef | None = None, functions: Any = None, depth: int = 0) -> Any:
    """Reads the value of an attr; ValueError if the AttrValue is not of the declared kind or not allowed.

    `functions.value(call, depth)` resolves a `func` attr. Without a declaration the message decides the kind.
    """
    if attr is None:
        return _undeclared(value, functions)
    given = value.WhichOneof("value")
    is_list = attr.kind.startswith("list(")
    kind = attr.kind[5:-1] if is_list else attr.kind
    if given != ("list" if is_list else _FIELD[kind]):
        raise ValueError(f"The attr '{attr.name}' must be of kind '{attr.kind}', received '{given}'.")
    if not is_list:
        result = _plain(getattr(value, _FIELD[kind]), kind, functions, depth)
        _check_allowed(attr, (result,))
        return result
    filled = [field.name for field, items in value.list.ListFields() if items]
    if any(field != _FIELD[kind] for field in filled):
        raise ValueError(f"The attr '{attr.name}' must be of kind '{attr.kind}', received a list of {filled}.")
    results = tuple(_plain(v, kind, functions, depth) for v in getattr(value.list, _FIELD[kind]))
    _check_allowed(attr, results)
    return results


def _check_allowed(attr: AttrDef, values: Sequence[Any]) -> None:
    if attr.allowed and attr.kind in ("type", "list(type)"):
        for value in values:
            if value.base_dtype not in attr.allowed:
                names = ", ".join(d.name for d in attr.allowed)
                raise ValueError(f"The attr '{attr.name}' must be one of {names}, received {value.name}.")


def _undeclared(value: AttrValue, functions: Any) -> Any:
    """Reads an attr that no op type declares; the message decides its kind."""
    field = value.WhichOneof("value")
    if field is None or field == "placeholder":
        raise ValueError("An attr has no value.")
    if field != "list":
        return _plain(getattr(value, field), _KIND[field], functions, 0)
    filled = value.list.ListFields()
    if len(filled) > 1:
        raise ValueError("An attr is a list of several kinds of values.")
    return tuple(_plain(v, _KIND[f.name], functions, 0) for f, items in filled for v in items)


def _plain(value: Any, kind: str, functions: Any, depth: int) -> Any:
    if kind == "string":
        return value.decode("utf-8", "surrogateescape")
    if kind == "type":
        return read_dtype(value)
    if kind == "shape":
        return read_shape(value)
    if kind == "tensor":
        return array_from_proto(value)
    if kind == "func":
        return _function(value, functions, depth + 1)
    return value


def _function(value: NameAttrList, functions: Any, depth: int) -> Any:
    if functions is None:
        raise ValueError(f"The function '{value.name[:100]}' is not known here.")
    return functions.value(value, depth)


def read_dtype(enum: int) -> DType:
    """The type with this enum; ValueError if there is none."""
    try:
        return DType(enum)
    except TypeError as error:
        raise ValueError(f"No type has the number {enum}.") from error


def read_shape(proto: Any) -> TensorShape:
    """The shape in a TensorShapeProto; ValueError if it is not a valid shape."""
    if proto.unknown_rank:
        return TensorShape.of(None)
    if len(proto.dim) > MAX_RANK or any(d.size < -1 for d in proto.dim):
        raise ValueError(f"A shape of {len(proto.dim)} dimensions is too long, or one of them is negative.")
    return TensorShape.of(tuple(None if d.size == -1 else d.size for d in proto.dim))


hooks.attr_from_proto = attr_from_proto
