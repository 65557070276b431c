"""Messages of TensorFlow that tensorboard does not include: a checkpoint's index, its state, queue runners."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto import tensor_shape_pb2, versions_pb2

from penstock.graph.protos import make_messages

_MESSAGES = {
    "BundleHeaderProto": "int32 num_shards; int32 endianness; tensorboard.VersionDef version",  # 0 is little endian
    # A missing length means the whole dimension, so it must differ from 0.
    "Extent": "int64 start; oneof int64 length",
    "TensorSliceProto": "repeated Extent extent",
    "BundleEntryProto": """
        int32 dtype; tensorboard.TensorShapeProto shape; int32 shard_id; int64 offset; int64 size; fixed32 crc32c;
        repeated TensorSliceProto slices
    """,
    "CheckpointState": """
        string model_checkpoint_path; repeated string all_model_checkpoint_paths;
        repeated double all_model_checkpoint_timestamps; double last_preserved_timestamp
    """,
    "QueueRunnerDef": """
        string queue_name; repeated string enqueue_op_name; string close_op_name; string cancel_op_name;
        repeated int32 queue_closed_exception_types
    """,  # status codes
}

_classes = make_messages(
    "penstock/checkpoint.proto",
    "penstock.checkpoint",
    _MESSAGES,
    imports=[tensor_shape_pb2.DESCRIPTOR, versions_pb2.DESCRIPTOR],
)
BundleHeaderProto: Any = _classes["BundleHeaderProto"]
BundleEntryProto: Any = _classes["BundleEntryProto"]
TensorSliceProto: Any = _classes["TensorSliceProto"]
CheckpointState: Any = _classes["CheckpointState"]
QueueRunnerDef: Any = _classes["QueueRunnerDef"]
