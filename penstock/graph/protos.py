"""Protocol buffer messages declared in Python, for those that no installed package provides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto


def make_messages(
    file: str,
    package: str,
    messages: Mapping[str, str],
    services: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    imports: Sequence[Any] = (),
) -> dict[str, Any]:
    """Makes classes of messages whose fields are written as in a .proto file, numbered in order.

    `oneof` before a field distinguishes its absence from its default. `imports` are descriptors of files whose messages
    are used; `services` are methods with their request and response types.

    >>> make_messages("a.proto", "a", {"Point": "double x; double y", "Line": "repeated Point points"})["Line"]()
    """
    proto = descriptor_pb2.FileDescriptorProto(name=file, package=package, syntax="proto3")
    proto.dependency.extend(imported.name for imported in imports)
    for name, fields in messages.items():
        message = proto.message_type.add(name=name)
        for number, declaration in enumerate(filter(None, (f.strip() for f in fields.split(";"))), 1):
            *label, kind, field = declaration.split()
            several = _Field.LABEL_REPEATED if label == ["repeated"] else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=several)
            if label == ["oneof"]:
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"has_{field}")
            scalar = getattr(_Field, f"TYPE_{kind.upper()}", None)
            if scalar is not None:
                added.type = scalar
            else:
                added.type = _Field.TYPE_MESSAGE
                added.type_name = f".{package}.{kind}" if kind in messages else f".{kind}"
    for name, methods in (services or {}).items():
        service = proto.service.add(name=name)
        for method, (request, reply) in methods.items():
            service.method.add(name=method, input_type=f".{package}.{request}", output_type=f".{package}.{reply}")
    pool = descriptor_pool.Default()
    pool.Add(proto)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
