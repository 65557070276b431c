"""Op types as TensorFlow's OpDef messages, as meta graphs carry them."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto import op_def_pb2

from penstock.graph.attrs import attr_to_proto
from penstock.graph.opdef import MISSING, ArgDef, OpDef


def op_proto(op_def: OpDef) -> Any:
    """The declaration of an op type: inputs, outputs, attrs with their defaults."""
    proto = op_def_pb2.OpDef(name=op_def.name, is_stateful=op_def.stateful)
    proto.input_arg.extend(_arg(arg) for arg in op_def.inputs)
    proto.output_arg.extend(_arg(arg) for arg in op_def.outputs)
    for attr in op_def.attrs.values():
        entry = proto.attr.add(name=attr.name, type=attr.kind)
        if attr.default is not MISSING:
            entry.default_value.CopyFrom(attr_to_proto(attr.default, attr.kind))
        if attr.allowed:
            entry.allowed_values.list.type.extend(dtype.as_datatype_enum for dtype in attr.allowed)
    return proto


def _arg(arg: ArgDef) -> Any:
    proto = op_def_pb2.OpDef.ArgDef(
        name=arg.name,
        type_attr=arg.type_attr,
        number_attr=arg.number_attr,
        type_list_attr=arg.type_list_attr,
        is_ref=arg.is_ref,
    )
    if arg.type is not None:
        proto.type = arg.type.as_datatype_enum
    return proto
