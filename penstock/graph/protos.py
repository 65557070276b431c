"""Protocol buffer messages declared in Python, for those that no installed package provides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_MAP = re.compile(r"map<(?P<key>\w+),(?P<value>[\w.]+)>")


def make_messages(
    file: str,
    package: str,
    messages: Mapping[str, str],
    services: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    imports: Sequence[Any] = (),
) -> dict[str, Any]:
    """Makes classes of messages whose fields are written as in a .proto file, numbered in order.

    `oneof` before a field distinguishes its absence from its default; a map is written without spaces, as in
    `map<int32,Point> points`. `imports` are descriptors of files whose messages are used; `services` are methods with
    their request and response types.

    >>> make_messages("a.proto", "a", {"Point": "double x; double y", "Line": "repeated Point points"})["Line"]()
    """
    proto = descriptor_pb2.FileDescriptorProto(name=file, package=package, syntax="proto3")
    proto.dependency.extend(imported.name for imported in imports)
    for name, fields in messages.items():
        message = proto.message_type.add(name=name)
        for number, declaration in enumerate(filter(None, (f.strip() for f in fields.split(";"))), 1):
            *label, kind, field = declaration.split()
            parts = _MAP.fullmatch(kind)
            several = _Field.LABEL_REPEATED if parts or label == ["repeated"] else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=several)
            if label == ["oneof"]:
                added.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"has_{field}")
            if parts:
                # On the wire a map is a list of entries, and protobuf wants this name for their type.
                entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                for place, part in enumerate(("key", "value"), 1):
                    item = entry.field.add(name=part, number=place, label=_Field.LABEL_OPTIONAL)
                    _set_type(item, parts[part], package, messages)
                kind = f"{package}.{name}.{entry.name}"
            _set_type(added, kind, package, messages)
    for name, methods in (services or {}).items():
        service = proto.service.add(name=name)
        for method, (request, reply) in methods.items():
            service.method.add(name=method, input_type=f".{package}.{request}", output_type=f".{package}.{reply}")
    pool = descriptor_pool.Default()
    pool.Add(proto)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


def _set_type(field: Any, kind: str, package: str, messages: Mapping[str, str]) -> None:
    scalar = getattr(_Field, f"TYPE_{kind.upper()}", None)
    if scalar is not None:
        field.type = scalar
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}" if kind in messages else f".{kind}"
