"""Bundles: named tensors in files `PREFIX.data-0000i-of-0000n`, with an index in `PREFIX.index`.

A save writes all files under temporary names, and renames them when they are on disk, the index last. Until then the
names belong to the previous checkpoint: if `PREFIX` is saved again, its new data gets a number of shards that is not
in use, and the old data is removed after the index has changed.
"""

from __future__ import annotations

import glob
import os
import struct
import uuid
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np
from tensorboard.compat.proto import tensor_shape_pb2

from penstock.checkpoint import crc, files, table, variants, varint
from penstock.checkpoint.messages import BundleEntryProto, BundleHeaderProto
from penstock.checkpoint.slices import Slice
from penstock.errors import DataLossError, InvalidArgumentError, NotFoundError
from penstock.graph.dtype import DType, as_dtype, string, variant
from penstock.memory import aligned_empty

_PRODUCER = 1
_MAX_ELEMENTS = 1 << 48  # a shape with more elements means that the file is damaged


def index_path(prefix: str) -> str:
    """The index of a bundle."""
    return f"{prefix}.index"


def data_path(prefix: str, shard: int, count: int) -> str:
    """A data file of a bundle."""
    return f"{prefix}.data-{shard:05d}-of-{count:05d}"


def data_paths(prefix: str) -> list[str]:
    """The data files that a bundle has on disk."""
    return sorted(glob.glob(f"{glob.escape(prefix)}.data-?????-of-?????"))


def exists(prefix: str) -> bool:
    """Tells if there is a bundle of that name."""
    return os.path.exists(index_path(prefix))


class BundleWriter:
    """Writes one shard. It is not visible before `finish`.

    >>> with BundleWriter("/tmp/model.ckpt-1") as writer:
    ...     writer.add("w", np.ones([2, 3], np.float32))
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._temporary_path = f"{prefix}.tempstate{uuid.uuid4().hex}"
        self._entries: dict[bytes, Any] = {}
        self._offset = 0
        self._file: BinaryIO | None = files.create(f"{self._temporary_path}.data")

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.finish()
        else:
            self.discard()

    def add(self, name: str, value: np.ndarray) -> None:
        """Appends a tensor."""
        if not name or name.encode() in self._entries:
            raise InvalidArgumentError(f"The name '{name}' is empty or in the checkpoint already.")
        self._entries[name.encode()] = self._write(value, name)

    def add_slice(self, name: str, shape: tuple[int, ...], part: Slice, value: np.ndarray) -> None:
        """Appends a part of the tensor `name`, which has `shape` as a whole."""
        if tuple(value.shape) != part.lengths:
            raise InvalidArgumentError(
                f"The slice of '{name}' has shape {part.lengths}, its value {tuple(value.shape)}."
            )
        entry = self._write(value, name)
        whole = self._entries.get(name.encode())
        if whole is None:
            whole = self._entries[name.encode()] = BundleEntryProto(dtype=entry.dtype, shape=_shape_proto(shape))
        elif _shape(whole) != shape:
            raise InvalidArgumentError(f"Slices of '{name}' belong to shapes {_shape(whole)} and {shape}.")
        whole.slices.append(part.to_proto())
        self._entries[part.key(name)] = entry

    def _write(self, value: np.ndarray, name: str) -> Any:
        assert self._file is not None
        dtype = string if value.dtype.kind in "OSU" else as_dtype(value.dtype)
        if variants.holds(value):
            dtype = variant
            data, checksum = variants.encode(value.reshape(-1).tolist())
            files.write(self._file, data)
            size = len(data)
        elif dtype is string:
            pieces, checksum = _string_data(value)
            for piece in pieces:
                files.write(self._file, piece)
            size = sum(map(len, pieces))
        else:
            plain = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            total = crc.Sum()
            files.write(self._file, plain, total.add)
            checksum, size = total.value, len(plain)
        entry = BundleEntryProto(
            dtype=dtype.as_datatype_enum,
            shape=_shape_proto(value.shape),
            offset=self._offset,
            size=size,
            crc32c=crc.mask(checksum),
        )
        self._offset += size
        return entry

    def finish(self) -> None:
        """Renames the files of the bundle, the index last."""
        assert self._file is not None
        try:
            files.finish(self._file)
            self._file = None
            commit(self._prefix, self._entries, [(f"{self._temporary_path}.data", list(self._entries.values()))])
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the temporary files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        files.remove(f"{self._temporary_path}.data")


def commit(prefix: str, entries: dict[bytes, Any], shards: list[tuple[str, list[Any]]]) -> None:
    """Renames the data files `shards` (each with its entries), then writes the index of them all."""
    old = data_paths(prefix)
    in_use = {int(path.rpartition("-of-")[2]) for path in old} if exists(prefix) else set()
    count = len(shards)
    while count in in_use:
        count += len(shards)
    for i, (aside, held) in enumerate(shards):
        shard = count - len(shards) + i
        for entry in held:
            if not entry.slices:
                entry.shard_id = shard
        files.rename(aside, data_path(prefix, shard, count))
    header = BundleHeaderProto(num_shards=count)
    header.version.producer = _PRODUCER
    encoded = {b"": header.SerializeToString(), **{k: e.SerializeToString() for k, e in entries.items()}}
    files.write_whole(index_path(prefix), table.encode(sorted(encoded.items())))
    for path in old:
        if not path.endswith(f"-of-{count:05d}"):
            files.remove(path)


def merge(prefixes: Iterable[str], target: str, delete_old: bool = True) -> None:
    """Merges several bundles into one, by renaming their data files."""
    entries: dict[bytes, Any] = {}
    shards: list[tuple[str, list[Any]]] = []
    prefixes = list(prefixes)
    for prefix in prefixes:
        reader = BundleReader(prefix)
        held: dict[int, list[Any]] = {shard: [] for shard in range(reader.num_shards)}
        for key, entry in reader.entries.items():
            if key in entries:
                if not entry.slices or not entries[key].slices:
                    raise InvalidArgumentError(f"'{key.decode()}' is in two of the checkpoints to merge.")
                entries[key].slices.extend(entry.slices)
                continue
            entries[key] = entry
            if not entry.slices:
                held[entry.shard_id].append(entry)
        shards += [
            (data_path(prefix, shard, reader.num_shards), members)
            for shard, members in held.items()
            if os.path.exists(data_path(prefix, shard, reader.num_shards))
        ]
    commit(target, entries, shards)
    if delete_old:
        for prefix in prefixes:
            files.remove(index_path(prefix))
            files.remove_directory(os.path.dirname(prefix))


class BundleReader:
    """Reads a bundle. Every checksum is verified; damage is a DataLossError that names the file and the tensor.

    >>> BundleReader("/tmp/model.ckpt-1").read("w")
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._where = index_path(prefix)
        try:
            raw = table.decode(files.read(self._where), self._where)
        except NotFoundError as error:
            raise NotFoundError(
                f"Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {prefix}"
            ) from error
        header = self._parse(BundleHeaderProto, raw.pop(b"", b""), "the header")
        if header.endianness != 0 or header.version.min_consumer > _PRODUCER or header.num_shards < 1:
            raise DataLossError(f"'{self._where}' has a header that cannot be read: {str(header).split()!r}.")
        self.num_shards: int = header.num_shards
        self.entries = {key: self._parse(BundleEntryProto, value, repr(key)) for key, value in raw.items()}

    def _parse(self, kind: Any, data: bytes, what: str) -> Any:
        try:
            return kind.FromString(data)
        except Exception as error:
            raise DataLossError(f"'{self._where}' is damaged: {what} cannot be read.") from error

    def names(self) -> list[str]:
        """The names of the tensors, sorted; the parts of a tensor count as one."""
        return sorted(key.decode() for key in self.entries if not key.startswith(b"\x00"))

    def has(self, name: str) -> bool:
        """Tells if there is a tensor of that name."""
        return name.encode() in self.entries

    def entry(self, name: str) -> Any:
        """The entry of a tensor in the index."""
        entry = self.entries.get(name.encode())
        if entry is None:
            raise NotFoundError(f"Key {name} not found in checkpoint '{self.prefix}'.")
        return entry

    def dtype(self, name: str) -> DType:
        """The type of a tensor."""
        return as_dtype(self.entry(name).dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._shape(self.entry(name), name)

    def read(self, name: str) -> np.ndarray:
        """Reads a tensor; one that was saved in parts is put together."""
        entry = self.entry(name)
        if not entry.slices:
            return self._data(entry, name)
        shape = self._shape(entry, name)
        return self.read_slice(name, Slice((0,) * len(shape), shape))

    def read_slice(self, name: str, wanted: Slice, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """Reads a part of a tensor, regardless of how it was split when saved. `shape` is the expected full shape."""
        entry = self.entry(name)
        stored = self._shape(entry, name)
        if shape is not None and shape != stored:
            raise InvalidArgumentError(
                f"Shape of '{name}' in checkpoint '{self.prefix}' is {list(stored)}, wanted {list(shape)}."
            )
        if not entry.slices:
            return np.ascontiguousarray(self._data(entry, name)[wanted.within(Slice((0,) * len(stored), stored))])
        result = np.empty(wanted.lengths, _numpy(entry))
        filled = 0
        for proto in entry.slices:
            part = self._part(proto, stored, name)
            common = wanted.overlap(part)
            if common is not None:
                held = self.entries.get(part.key(name))
                if held is None:
                    raise DataLossError(f"'{self._where}' lacks a part of '{name}'.")
                result[common.within(wanted)] = self._data(held, name)[common.within(part)]
                filled += int(np.prod(common.lengths))
        if filled != result.size:
            raise DataLossError(f"The parts of '{name}' in '{self._where}' do not cover what is wanted.")
        return result

    def _part(self, proto: Any, shape: tuple[int, ...], name: str) -> Slice:
        try:
            return Slice.from_proto(proto, shape)
        except ValueError as error:
            raise DataLossError(f"'{self._where}' is damaged at '{name}': {error}.") from error

    def _shape(self, entry: Any, name: str) -> tuple[int, ...]:
        shape = _shape(entry)
        if any(d < 0 for d in shape) or int(np.prod(shape, dtype=object)) > _MAX_ELEMENTS:
            raise DataLossError(f"'{self._where}' gives '{name}' the shape {shape}.")
        return shape

    def _data(self, entry: Any, name: str) -> np.ndarray:
        path = data_path(self.prefix, entry.shard_id, self.num_shards)
        shape = self._shape(entry, name)
        try:
            with files.named(path), open(path, "rb") as file:
                available = os.fstat(file.fileno()).st_size
                if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > available:
                    raise ValueError(f"it ends at {available}, before {entry.offset + entry.size}")
                data = aligned_empty((entry.size,))
                file.seek(entry.offset)
                total = crc.Sum()
                if not files.read_into(file, data, total.add):
                    raise ValueError("it ends too early")
            if entry.dtype == string.as_datatype_enum:
                return _read_strings(data.tobytes(), shape, entry.crc32c)
            if entry.dtype == variant.as_datatype_enum:
                count = int(np.prod(shape, dtype=np.int64))
                return variants.decode(data.tobytes(), count, entry.crc32c).reshape(shape)
            if crc.mask(total.value) != entry.crc32c:
                raise ValueError("the checksum is wrong")
            array: np.ndarray = data.view(_numpy(entry)).reshape(shape)
            return array
        except NotFoundError as error:
            raise DataLossError(f"'{path}', which holds '{name}', is missing.") from error
        except (ValueError, TypeError) as error:
            raise DataLossError(f"'{path}' is damaged at '{name}': {error}.") from error


def _numpy(entry: Any) -> Any:
    dtype = as_dtype(entry.dtype)
    return object if dtype is string else dtype.as_numpy_dtype


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple(d.size for d in entry.shape.dim)


def _shape_proto(shape: Iterable[int]) -> Any:
    return tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=d) for d in shape])


def _string_data(value: np.ndarray) -> tuple[list[Any], int]:
    """Lengths as varints, a checksum of them as plain numbers, then the strings; and the checksum of all this."""
    items = [s.encode() if isinstance(s, str) else bytes(s) for s in np.asarray(value, object).reshape(-1)]
    checksum = 0
    for item in items:
        checksum = crc.extend(checksum, _plain_length(len(item)))
    lengths = struct.pack("<I", crc.mask(checksum))
    body = b"".join(items)
    checksum = crc.extend(crc.extend(checksum, lengths), body)
    return [b"".join(varint.encode(len(item)) for item in items) + lengths, body], checksum


def _plain_length(length: int) -> bytes:
    return struct.pack("<I" if length < 1 << 32 else "<Q", length)


def _read_strings(data: bytes, shape: tuple[int, ...], expected: int) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    if count > len(data):
        raise ValueError("it is too short for its strings")
    lengths, at, checksum = [], 0, 0
    for _ in range(count):
        length, at = varint.decode(data, at)
        lengths.append(length)
        checksum = crc.extend(checksum, _plain_length(length))
    (found,) = struct.unpack_from("<I", data, at)
    if crc.mask(checksum) != found:
        raise ValueError("the checksum of the lengths is wrong")
    checksum = crc.extend(crc.extend(checksum, data[at : at + 4]), data[at + 4 :])
    if crc.mask(checksum) != expected or sum(lengths) != len(data) - at - 4:
        raise ValueError("the checksum is wrong")
    at += 4
    result = np.empty(count, object)
    for i, length in enumerate(lengths):
        result[i] = data[at : at + length]
        at += length
    return result.reshape(shape)
