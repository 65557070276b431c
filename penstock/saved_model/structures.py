"""Structures of values and specs as StructuredValue messages, and back."""

from __future__ import annotations

import collections
import inspect
import keyword
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.struct_pb2 import StructuredValue, TypeSpecProto

from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.errors import DataLossError
from penstock.graph.attrs import read_dtype, read_shape
from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor


class Unknown:
    """Stands for a value of a kind that penstock does not have: a function that takes or gives one cannot be called."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}, which penstock does not have>"


def encode(value: Any) -> Any:
    """A structure as a message; tensors as their specs.

    >>> encode({"x": tf.TensorSpec([None], tf.float32)})
    """
    message = StructuredValue()
    if value is None:
        message.none_value.SetInParent()
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        message.int64_value = value
    elif isinstance(value, float):
        message.float64_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, TensorShape):
        message.tensor_shape_value.CopyFrom(value.as_proto())
    elif isinstance(value, DType):
        message.tensor_dtype_value = value.as_datatype_enum
    elif isinstance(value, (SparseTensorSpec, SparseTensor)):
        shape = value.shape if isinstance(value, SparseTensorSpec) else value.get_shape()
        message.type_spec_value.type_spec_class = TypeSpecProto.SPARSE_TENSOR_SPEC
        message.type_spec_value.type_spec_class_name = "SparseTensorSpec"
        message.type_spec_value.num_flat_components = 1
        message.type_spec_value.type_state.CopyFrom(encode((shape, value.dtype)))
    elif isinstance(value, (RaggedTensorSpec, Ragged)):
        rows = value if isinstance(value, RaggedTensorSpec) else RaggedTensorSpec.from_value(value)
        message.type_spec_value.type_spec_class = TypeSpecProto.RAGGED_TENSOR_SPEC
        message.type_spec_value.type_spec_class_name = "RaggedTensorSpec"
        message.type_spec_value.num_flat_components = 1 + rows.ragged_rank
        state = (rows.shape, rows.dtype, rows.ragged_rank, rows.row_splits_dtype)
        message.type_spec_value.type_state.CopyFrom(encode(state))
    elif isinstance(value, (TensorSpec, Tensor)):
        spec = message.tensor_spec_value
        spec.name = (value.name or "") if isinstance(value, TensorSpec) else ""
        spec.shape.CopyFrom(value.shape.as_proto())
        spec.dtype = value.dtype.base_dtype.as_datatype_enum
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        message.named_tuple_value.name = type(value).__name__
        for name, item in zip(value._fields, value, strict=True):
            message.named_tuple_value.values.add(key=name, value=encode(item))
    elif isinstance(value, (list, tuple)):
        items = message.list_value if isinstance(value, list) else message.tuple_value
        items.SetInParent()
        items.values.extend(encode(item) for item in value)
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        message.dict_value.SetInParent()
        for key, item in value.items():
            message.dict_value.fields[key].CopyFrom(encode(item))
    else:
        raise ValueError(
            f"{value!r:.200} cannot be a part of a signature in a SavedModel: it is {type(value).__name__}. Numbers, "
            "strings, None, tensors, and lists, tuples and dicts of them can."
        )
    return message


def decode(message: Any) -> Any:
    """The structure that a message describes."""
    kind = message.WhichOneof("kind")
    value: Any = getattr(message, kind) if kind else None
    match kind:
        case "none_value" | None:
            return None
        case "bool_value" | "int64_value" | "float64_value" | "string_value":
            return value
        case "tensor_shape_value":
            return read_shape(value)
        case "tensor_dtype_value":
            return read_dtype(value)
        case "tensor_spec_value" | "bounded_tensor_spec_value":
            return TensorSpec(read_shape(value.shape), read_dtype(value.dtype), value.name or None)
        case "list_value":
            return [decode(item) for item in value.values]
        case "tuple_value":
            return tuple(decode(item) for item in value.values)
        case "dict_value":
            # The order of a map in a message is not kept; sorted it is that of the tensors.
            return {key: decode(value.fields[key]) for key in sorted(value.fields)}
        case "named_tuple_value":
            return _named_tuple(value)
        case "type_spec_value" if value.type_spec_class == TypeSpecProto.SPARSE_TENSOR_SPEC:
            state = decode(value.type_state)
            if isinstance(state, tuple) and len(state) == 2:
                return SparseTensorSpec(*state)
            return Unknown("SparseTensorSpec")
        case "type_spec_value" if value.type_spec_class == TypeSpecProto.RAGGED_TENSOR_SPEC:
            state = decode(value.type_state)
            if isinstance(state, tuple) and len(state) == 4:
                return RaggedTensorSpec(*state)
            return Unknown("RaggedTensorSpec")
        case "type_spec_value":
            return Unknown(value.type_spec_class_name or "a type")
    return Unknown(kind)


def _named_tuple(message: Any) -> Any:
    names = [item.key for item in message.values]
    if not all(n.isidentifier() and not n.startswith("_") and not keyword.iskeyword(n) for n in (message.name, *names)):
        raise DataLossError(f"A named tuple in a SavedModel has the name '{message.name[:100]}' and fields {names}.")
    return collections.namedtuple(message.name, names)(*(decode(item.value) for item in message.values))


def encode_signature(signature: inspect.Signature) -> Any:
    """The parameters of a Python function as the message that a SavedFunction has."""
    parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    defaults = [p.default for p in positional if p.default is not p.empty]
    fields = {
        "args": [p.name for p in positional],
        "varargs": next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None),
        "varkw": next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None),
        "defaults": tuple(defaults) or None,
        "kwonlyargs": [p.name for p in keywords],
        "kwonlydefaults": {p.name: p.default for p in keywords if p.default is not p.empty} or None,
        "annotations": {},
    }
    return encode(collections.namedtuple("FullArgSpec", fields)(**fields))


def decode_signature(message: Any, is_method: bool) -> inspect.Signature:
    """The parameters of a Python function from the message that a SavedFunction has."""
    spec = decode(message)
    kind = inspect.Parameter
    try:
        args = list(spec.args)
        defaults = list(spec.defaults or ())
        first = len(args) - len(defaults)
        found = [
            kind(name, kind.POSITIONAL_OR_KEYWORD, default=defaults[i - first] if i >= first else kind.empty)
            for i, name in enumerate(args)
        ]
        found = found[1:] if is_method else found
        if spec.varargs:
            found.append(kind(spec.varargs, kind.VAR_POSITIONAL))
        given = spec.kwonlydefaults or {}
        found += [kind(name, kind.KEYWORD_ONLY, default=given.get(name, kind.empty)) for name in spec.kwonlyargs]
        if spec.varkw:
            found.append(kind(spec.varkw, kind.VAR_KEYWORD))
        return inspect.Signature(found)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataLossError(f"A function of a SavedModel has parameters that cannot be read: {error}.") from error
