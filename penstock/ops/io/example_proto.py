"""The messages of `tf.train.Example`, in TensorFlow's format.

TensorBoard ships TensorFlow's other messages but not these. They are in a separate pool, so that TensorFlow's may be
loaded in the same process.

>>> Example(features=Features(feature={"x": Feature(float_list=FloatList(value=[1.0]))})).SerializeToString()
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {"bytes": _Field.TYPE_BYTES, "float": _Field.TYPE_FLOAT, "int64": _Field.TYPE_INT64}

# Message: fields as (name, type, how): several values, one of a `kind`, a map from strings, or a single message.
_MESSAGES: dict[str, list[tuple[str, str, str]]] = {
    "BytesList": [("value", "bytes", "several")],
    "FloatList": [("value", "float", "several")],
    "Int64List": [("value", "int64", "several")],
    "Feature": [
        ("bytes_list", "BytesList", "kind"),
        ("float_list", "FloatList", "kind"),
        ("int64_list", "Int64List", "kind"),
    ],
    "Features": [("feature", "Feature", "map")],
    "FeatureList": [("feature", "Feature", "several")],
    "FeatureLists": [("feature_list", "FeatureList", "map")],
    "Example": [("features", "Features", "single")],
    "SequenceExample": [("context", "Features", "single"), ("feature_lists", "FeatureLists", "single")],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tensorflow/core/example/example.proto", package="tensorflow", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, type_name, how) in enumerate(fields, 1):
            added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
            if how in ("several", "map"):
                added.label = _Field.LABEL_REPEATED
            if how == "kind":
                if not message.oneof_decl:
                    message.oneof_decl.add(name="kind")
                added.oneof_index = 0
            if how == "map":
                # A map is encoded as a list of entries.
                entry = message.nested_type.add(name="".join(p.title() for p in field.split("_")) + "Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
                entry.field.add(
                    name="value",
                    number=2,
                    label=_Field.LABEL_OPTIONAL,
                    type=_Field.TYPE_MESSAGE,
                    type_name=f".tensorflow.{type_name}",
                )
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".tensorflow.{name}.{entry.name}"
            elif type_name in _KINDS:
                added.type = _KINDS[type_name]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".tensorflow.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}")) for name in _MESSAGES
    }


_classes = _messages()
BytesList: Any = _classes["BytesList"]
FloatList: Any = _classes["FloatList"]
Int64List: Any = _classes["Int64List"]
Feature: Any = _classes["Feature"]
Features: Any = _classes["Features"]
FeatureList: Any = _classes["FeatureList"]
FeatureLists: Any = _classes["FeatureLists"]
Example: Any = _classes["Example"]
SequenceExample: Any = _classes["SequenceExample"]
