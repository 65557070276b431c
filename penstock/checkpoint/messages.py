"""Messages of TensorFlow that tensorboard does not bring along: a checkpoint's index, its state, queue runners."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorboard.compat.proto import tensor_shape_pb2, versions_pb2

_Field = descriptor_pb2.FieldDescriptorProto

# message: (field, number, type, repeated, message type)
_MESSAGES: dict[str, list[tuple[str, int, int, bool, str]]] = {
    "BundleHeaderProto": [
        ("num_shards", 1, _Field.TYPE_INT32, False, ""),
        ("endianness", 2, _Field.TYPE_INT32, False, ""),  # 0 is little
        ("version", 3, _Field.TYPE_MESSAGE, False, ".tensorboard.VersionDef"),
    ],
    "Extent": [
        ("start", 1, _Field.TYPE_INT64, False, ""),
        ("length", 2, _Field.TYPE_INT64, False, ""),
    ],
    "TensorSliceProto": [("extent", 1, _Field.TYPE_MESSAGE, True, ".penstock.checkpoint.Extent")],
    "BundleEntryProto": [
        ("dtype", 1, _Field.TYPE_INT32, False, ""),
        ("shape", 2, _Field.TYPE_MESSAGE, False, ".tensorboard.TensorShapeProto"),
        ("shard_id", 3, _Field.TYPE_INT32, False, ""),
        ("offset", 4, _Field.TYPE_INT64, False, ""),
        ("size", 5, _Field.TYPE_INT64, False, ""),
        ("crc32c", 6, _Field.TYPE_FIXED32, False, ""),
        ("slices", 7, _Field.TYPE_MESSAGE, True, ".penstock.checkpoint.TensorSliceProto"),
    ],
    "CheckpointState": [
        ("model_checkpoint_path", 1, _Field.TYPE_STRING, False, ""),
        ("all_model_checkpoint_paths", 2, _Field.TYPE_STRING, True, ""),
        ("all_model_checkpoint_timestamps", 3, _Field.TYPE_DOUBLE, True, ""),
        ("last_preserved_timestamp", 4, _Field.TYPE_DOUBLE, False, ""),
    ],
    "QueueRunnerDef": [
        ("queue_name", 1, _Field.TYPE_STRING, False, ""),
        ("enqueue_op_name", 2, _Field.TYPE_STRING, True, ""),
        ("close_op_name", 3, _Field.TYPE_STRING, False, ""),
        ("cancel_op_name", 4, _Field.TYPE_STRING, False, ""),
        ("queue_closed_exception_types", 5, _Field.TYPE_INT32, True, ""),  # status codes
    ],
}


def _make() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="penstock/checkpoint.proto", package="penstock.checkpoint", syntax="proto3",
        dependency=[tensor_shape_pb2.DESCRIPTOR.name, versions_pb2.DESCRIPTOR.name],
    )  # fmt: skip
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, of in fields:
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            declared = message.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)
            if name == "Extent" and field == "length":
                # Absent means all of the dimension, so it must be told from 0.
                message.oneof_decl.add(name="has_length")
                declared.oneof_index = 0
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"penstock.checkpoint.{name}"))
        for name in _MESSAGES
    }


_classes = _make()
BundleHeaderProto: Any = _classes["BundleHeaderProto"]
BundleEntryProto: Any = _classes["BundleEntryProto"]
TensorSliceProto: Any = _classes["TensorSliceProto"]
CheckpointState: Any = _classes["CheckpointState"]
QueueRunnerDef: Any = _classes["QueueRunnerDef"]
