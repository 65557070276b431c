"""Reads and writes `saved_model.pb`, and knows where the other files of a SavedModel are."""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import meta_graph_pb2, versions_pb2

from penstock.checkpoint import files
from penstock.errors import DataLossError
from penstock.graph.protos import make_messages

_classes = make_messages(
    "penstock/saved_model.proto",
    "penstock.saved_model",
    {
        "SavedModel": "int64 saved_model_schema_version; repeated tensorboard.MetaGraphDef meta_graphs",
        "FingerprintDef": """
            uint64 saved_model_checksum; uint64 graph_def_program_hash; uint64 signature_def_hash;
            uint64 saved_object_graph_hash; uint64 checkpoint_hash; tensorboard.VersionDef version; string uuid
        """,
    },
    imports=[meta_graph_pb2.DESCRIPTOR, versions_pb2.DESCRIPTOR],
)
SavedModel: Any = _classes["SavedModel"]

FILE = "saved_model.pb"
SCHEMA = 1


def contains_saved_model(export_dir: Any) -> bool:
    """Tells if there is a SavedModel in a directory.

    >>> tf.saved_model.contains_saved_model("/tmp/model")
    True
    """
    return os.path.isfile(os.path.join(os.fspath(export_dir), FILE))


def variables_prefix(directory: str) -> str:
    """The checkpoint of a SavedModel's variables."""
    return os.path.join(directory, "variables", "variables")


def asset_path(directory: str, filename: str) -> str:
    """The path of an asset. Its name comes from a file, so that it must not lead out of the directory."""
    parts = filename.replace("\\", "/").split("/")
    if not filename or os.path.isabs(filename) or ".." in parts:
        raise DataLossError(f"'{os.path.join(directory, FILE)}' has an asset with the name '{filename[:200]}'.")
    return os.path.join(directory, "assets", *parts)


def read_meta_graph(directory: str, tags: Any) -> Any:
    """The meta graph of a SavedModel that has just these tags; None: the only one."""
    path = os.path.join(directory, FILE)
    if not os.path.isfile(path):
        raise OSError(f"SavedModel file does not exist at: {directory}/{FILE}")
    try:
        model = SavedModel.FromString(files.read(path))
    except DecodeError as error:
        raise DataLossError(f"'{path}' is damaged: it cannot be read as a SavedModel.") from error
    if model.saved_model_schema_version != SCHEMA:
        raise DataLossError(f"'{path}' has version {model.saved_model_schema_version} of the format, not {SCHEMA}.")
    found = list(model.meta_graphs)
    if tags is not None:
        wanted = {tags} if isinstance(tags, str) else set(tags)
        found = [meta for meta in found if set(meta.meta_info_def.tags) == wanted]
    if len(found) != 1:
        known = [sorted(meta.meta_info_def.tags) for meta in model.meta_graphs]
        raise ValueError(f"Importing a SavedModel needs one meta graph with the tags {tags}; '{path}' has {known}.")
    return found[0]


def fingerprint(model: Any) -> bytes:
    """The contents of `fingerprint.pb`: numbers that tell two models apart."""
    meta = model.meta_graphs[0]
    parts = [
        model,
        meta.graph_def,
        meta_graph_pb2.MetaGraphDef(signature_def=meta.signature_def),
        meta.object_graph_def,
    ]
    digests = [hashlib.blake2b(p.SerializeToString(deterministic=True), digest_size=8).digest() for p in parts]
    names = ("saved_model_checksum", "graph_def_program_hash", "signature_def_hash", "saved_object_graph_hash")
    message = _classes["FingerprintDef"](uuid=str(uuid.uuid4().int))
    message.version.producer = 4
    for name, digest in zip(names, digests, strict=True):
        setattr(message, name, int.from_bytes(digest, "little"))
    return bytes(message.SerializeToString())
