"""The tables of `tf.lookup`, which map keys to values and outlive a step, and the ops on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from penstock.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, UnimplementedError
from penstock.gfile import GFile
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, behind
from penstock.ops.string.forms import invalid, listed, parse_number, texts

_SCALAR = TensorShape.of(())
WHOLE_LINE, LINE_NUMBER = -2, -1  # special columns of a text file


class Table:
    """Maps keys to values. A key or value is a number, a string or, if its shape is not (), a row of them."""

    kind = "MutableHashTable"

    def __init__(
        self,
        name: str,
        key_dtype: DType,
        value_dtype: DType,
        value_shape: TensorShape = _SCALAR,
        key_shape: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.key_dtype, self.value_dtype = key_dtype, value_dtype
        self.value_shape = tuple(d or 0 for d in value_shape.as_list())
        self.key_shape = key_shape
        self.entries: dict[Any, Any] = {}
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"

    def close(self) -> None:
        """Drops the entries when the session ends."""
        self.entries = {}

    def check(self, keys: np.ndarray, key_dtype: DType, value_dtype: DType | None = None) -> None:
        """Raises an error unless keys and values have the table's types."""
        if key_dtype != self.key_dtype:
            raise invalid(f"{self}: Key must be type {self.key_dtype.name} but got {key_dtype.name}")
        if value_dtype is not None and value_dtype != self.value_dtype:
            raise invalid(f"{self}: Value must be type {self.value_dtype.name} but got {value_dtype.name}")
        rank = len(self.key_shape)
        if rank and np.shape(keys)[-rank:] != self.key_shape:
            raise invalid(f"{self}: Expected key shape {list(self.key_shape)}, received {np.shape(keys)}")

    def keys_of(self, keys: np.ndarray) -> list[Any]:
        """A tensor of keys as a list of dict keys."""
        if not self.key_shape:
            return np.asarray(keys).reshape(-1).tolist()
        rows = np.asarray(keys).reshape(-1, int(np.prod(self.key_shape))).tolist()
        return [tuple(row) for row in rows]

    def values_of(self, keys: np.ndarray, values: np.ndarray) -> list[Any]:
        """A tensor of values, one per key, as a list of dict values."""
        outer = self.outer(keys)
        if np.shape(values) != (*outer, *self.value_shape):
            raise invalid(
                f"{self}: Expected shape {[*outer, *self.value_shape]} for value, got {list(np.shape(values))}"
            )
        if not self.value_shape:
            return np.asarray(values).reshape(-1).tolist()
        return list(np.array(values).reshape(-1, *self.value_shape))

    def outer(self, keys: np.ndarray) -> tuple[int, ...]:
        """The shape of a tensor of keys without the shape of one key."""
        return np.shape(keys)[: np.ndim(keys) - len(self.key_shape)]

    def array(self, values: list[Any], outer: tuple[int, ...], dtype: DType, inner: tuple[int, ...]) -> np.ndarray:
        """Keys or values as a tensor."""
        if inner:
            rows = np.empty((len(values), *inner), dtype.as_numpy_dtype)
            for i, row in enumerate(values):
                rows[i] = np.reshape(np.array(row, rows.dtype), inner)
            return rows.reshape(*outer, *inner)
        if dtype is dt.string:
            return texts(values, outer)
        return np.array(values, dtype.as_numpy_dtype).reshape(outer)

    def find(self, keys: np.ndarray, default: np.ndarray) -> np.ndarray:
        """The values of `keys`; missing keys get `default`, which is one value for all or one per key."""
        outer, wanted = self.outer(keys), self.keys_of(keys)
        if np.shape(default) == self.value_shape:
            fallback = np.asarray(default).tolist() if not self.value_shape else default
            get = self.entries.get
            return self.array([get(key, fallback) for key in wanted], outer, self.value_dtype, self.value_shape)
        if np.shape(default) != (*outer, *self.value_shape):
            raise invalid(
                f"{self}: Expected shape {list(self.value_shape)} or {[*outer, *self.value_shape]} for default value, "
                f"got {list(np.shape(default))}"
            )
        defaults = self.values_of(keys, default)
        found = [self.entries.get(key, other) for key, other in zip(wanted, defaults, strict=True)]
        return self.array(found, outer, self.value_dtype, self.value_shape)

    def insert(self, keys: np.ndarray, values: np.ndarray, clear: bool = False) -> None:
        """Sets the values of keys."""
        pairs = dict(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))
        with self.lock:
            if clear:
                self.entries = pairs
            else:
                self.entries.update(pairs)

    def remove(self, keys: np.ndarray) -> None:
        """Removes keys; missing keys are ignored."""
        with self.lock:
            for key in self.keys_of(keys):
                self.entries.pop(key, None)

    def size(self) -> int:
        return len(self.entries)

    def export(self) -> tuple[np.ndarray, np.ndarray]:
        """All keys, and all values in the same order."""
        with self.lock:
            keys, values = list(self.entries), list(self.entries.values())
        return (
            self.array(keys, (len(keys),), self.key_dtype, self.key_shape),
            self.array(values, (len(values),), self.value_dtype, self.value_shape),
        )


class StaticTable(Table):
    """A table that is filled once, by its initializer."""

    kind = "HashTable"

    def __init__(self, name: str, key_dtype: DType, value_dtype: DType) -> None:
        super().__init__(name, key_dtype, value_dtype)
        self.initialized = False

    def require_initialized(self) -> None:
        """Raises FailedPreconditionError if the initializer has not run."""
        if not self.initialized:
            raise FailedPreconditionError(f"Table not initialized: {self}. Run tf.tables_initializer() first.")

    def initialize(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Fills the table. It may be called again with the same entries."""
        entries: dict[Any, Any] = {}
        for key, value in pairs:
            if entries.setdefault(key, value) != value:
                raise FailedPreconditionError(
                    f"HashTable has different value for same key. Key {key!r} has {entries[key]!r} and trying to add "
                    f"value {value!r}"
                )
        with self.lock:
            if self.initialized and entries != self.entries:
                raise FailedPreconditionError(f"{self} is initialized already, with other entries.")
            self.entries, self.initialized = entries, True

    def find(self, keys: np.ndarray, default: np.ndarray) -> np.ndarray:
        self.require_initialized()
        return super().find(keys, default)

    def insert(self, keys: np.ndarray, values: np.ndarray, clear: bool = False) -> None:
        if not clear:
            raise UnimplementedError(f"{self} is filled by its initializer; use a MutableHashTable.")
        if not np.size(keys):
            raise invalid("keys and values cannot be empty tensors.")
        self.initialize(zip(self.keys_of(keys), self.values_of(keys, values), strict=True))

    def remove(self, keys: np.ndarray) -> None:
        raise UnimplementedError(f"{self} is filled by its initializer; use a MutableHashTable.")

    def export(self) -> tuple[np.ndarray, np.ndarray]:
        self.require_initialized()
        return super().export()


class DenseTable(Table):
    """A table with two reserved keys that it cannot hold."""

    kind = "MutableDenseHashTable"
    forbidden: tuple[Any, ...] = ()

    def keys_of(self, keys: np.ndarray) -> list[Any]:
        found = super().keys_of(keys)
        for name, key in zip(("empty_key", "deleted_key"), self.forbidden, strict=False):
            if key in found:
                raise invalid(f"{self}: Using the {name} as a table key is not allowed: {key!r}")
        return found


def _found(resource: Callable[..., Any], create: Callable[[str], Table]) -> Any:
    found = resource(create)
    new = create(found.name) if isinstance(found, Table) else None
    if (
        new is None
        or type(found) is not type(new)
        or (found.key_dtype, found.value_dtype, found.value_shape) != (new.key_dtype, new.value_dtype, new.value_shape)
    ):
        raise invalid(f"{found} exists already, with other types. Use another shared_name.")
    return as_handle(found)


@op("HashTableV2", "-> table_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def hash_table_v2(
    *,
    container: str = "",
    shared_name: str = "",
    use_node_name_sharing: bool = False,
    key_dtype: DType,
    value_dtype: DType,
    resource: Any,
) -> Any:
    return _found(resource, lambda name: StaticTable(name, key_dtype, value_dtype))


@op("MutableHashTableV2", "-> table_handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def mutable_hash_table_v2(
    *,
    container: str = "",
    shared_name: str = "",
    use_node_name_sharing: bool = False,
    key_dtype: DType,
    value_dtype: DType,
    resource: Any,
) -> Any:
    return _found(resource, lambda name: Table(name, key_dtype, value_dtype))


@op(
    "MutableHashTableOfTensorsV2",
    "-> table_handle: resource",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def mutable_hash_table_of_tensors_v2(
    *,
    container: str = "",
    shared_name: str = "",
    use_node_name_sharing: bool = False,
    key_dtype: DType,
    value_dtype: DType,
    value_shape: TensorShape = _SCALAR,
    resource: Any,
) -> Any:
    return _found(resource, lambda name: Table(name, key_dtype, value_dtype, value_shape))


@op(
    "MutableDenseHashTableV2",
    "key_dtype, key_dtype -> table_handle: resource",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def mutable_dense_hash_table_v2(
    empty_key: Any,
    deleted_key: Any,
    *,
    container: str = "",
    shared_name: str = "",
    use_node_name_sharing: bool = False,
    key_dtype: DType,
    value_dtype: DType,
    value_shape: TensorShape = _SCALAR,
    initial_num_buckets: int = 131072,
    max_load_factor: float = 0.8,
    resource: Any,
) -> Any:
    if np.shape(empty_key) != np.shape(deleted_key):
        raise invalid(f"empty_key has shape {np.shape(empty_key)}, deleted_key {np.shape(deleted_key)}.")
    if initial_num_buckets < 1 or initial_num_buckets & (initial_num_buckets - 1):
        raise invalid(f"Number of buckets must be a power of 2, received {initial_num_buckets}.")

    def create(name: str) -> DenseTable:
        table = DenseTable(name, key_dtype, value_dtype, value_shape, np.shape(empty_key))
        table.forbidden = (*Table.keys_of(table, empty_key), *Table.keys_of(table, deleted_key))
        return table

    found = create("").forbidden
    if found[0] == found[1]:
        raise invalid(f"Empty and deleted keys must be different, received {found[0]!r} for both.")
    return _found(resource, create)


def _found_shape(op: Operation) -> list[TensorShape]:
    handle, keys, default = op.input_list
    rank = 0
    if handle.op.type == "MutableDenseHashTableV2":
        empty = handle.op.input_list[0].shape
        if empty.rank is None:
            return [TensorShape.of(None)]
        rank = empty.rank
    if keys.shape.rank is None:
        return [TensorShape.of(None)]
    outer = keys.shape[: keys.shape.rank - rank]
    declared = handle.op.attrs.get("value_shape")
    if declared is not None:
        return [outer.concatenate(declared)]
    return [outer if default.shape.rank is not None or handle.op.type == "HashTableV2" else TensorShape.of(None)]


@op(
    "LookupTableFindV2",
    "resource, Tin, Tout -> values: Tout",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_found_shape,
)
def lookup_table_find_v2(table_handle: Any, keys: Any, default_value: Any, *, Tin: DType, Tout: DType) -> Any:
    table: Table = behind(table_handle)
    table.check(keys, Tin, Tout)
    return table.find(keys, default_value)


@op("LookupTableSizeV2", "resource -> size: int64", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def lookup_table_size_v2(table_handle: Any) -> Any:
    return np.array(behind(table_handle).size(), np.int64)


@op("LookupTableInsertV2", "resource, Tin, Tout ->", host=True, stateful=True, no_gradient=True)
def lookup_table_insert_v2(table_handle: Any, keys: Any, values: Any, *, Tin: DType, Tout: DType) -> None:
    table: Table = behind(table_handle)
    table.check(keys, Tin, Tout)
    table.insert(keys, values)


@op("LookupTableRemoveV2", "resource, Tin ->", host=True, stateful=True, no_gradient=True)
def lookup_table_remove_v2(table_handle: Any, keys: Any, *, Tin: DType) -> None:
    table: Table = behind(table_handle)
    table.check(keys, Tin)
    table.remove(keys)


def _export_shapes(op: Operation) -> list[TensorShape]:
    return [TensorShape.of(None), TensorShape.of(None)]


@op(
    "LookupTableExportV2",
    "resource -> keys: Tkeys, values: Tvalues",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_export_shapes,
)
def lookup_table_export_v2(table_handle: Any, *, Tkeys: DType, Tvalues: DType) -> Any:
    table: Table = behind(table_handle)
    if (Tkeys, Tvalues) != (table.key_dtype, table.value_dtype):
        raise invalid(f"{table} holds {table.key_dtype.name} and {table.value_dtype.name}, not {Tkeys} and {Tvalues}.")
    return table.export()


@op("LookupTableImportV2", "resource, Tin, Tout ->", host=True, stateful=True, no_gradient=True)
def lookup_table_import_v2(table_handle: Any, keys: Any, values: Any, *, Tin: DType, Tout: DType) -> None:
    table: Table = behind(table_handle)
    table.check(keys, Tin, Tout)
    table.insert(keys, values, clear=True)


@op("InitializeTableV2", "resource, Tkey, Tval ->", host=True, stateful=True, no_gradient=True)
def initialize_table_v2(table_handle: Any, keys: Any, values: Any, *, Tkey: DType, Tval: DType) -> None:
    table: Table = behind(table_handle)
    table.check(keys, Tkey, Tval)
    table.insert(keys, values, clear=True)


@op("InitializeTableFromTextFileV2", "resource, string ->", host=True, stateful=True, no_gradient=True)
def initialize_table_from_text_file_v2(
    table_handle: Any,
    filename: Any,
    *,
    key_index: int,
    value_index: int,
    vocab_size: int = -1,
    delimiter: str = "\t",
    offset: int = 0,
) -> None:
    table = behind(table_handle)
    if not isinstance(table, StaticTable):
        raise invalid(f"{table} is filled by inserting, not from a file.")
    if len(delimiter.encode("utf-8", "surrogateescape")) != 1:
        raise invalid(f"delimiter must be one byte, received {delimiter!r}.")
    path = listed(filename)[0].decode("utf-8", "surrogateescape")
    columns = [(key_index, table.key_dtype), (value_index, table.value_dtype)]
    table.initialize(_pairs_in_file(path, columns, vocab_size, delimiter.encode("utf-8", "surrogateescape"), offset))


def _pairs_in_file(
    path: str, columns: list[tuple[int, DType]], vocab_size: int, delimiter: bytes, offset: int
) -> Iterator[tuple[Any, ...]]:
    for index, dtype in columns:
        if index == LINE_NUMBER and dtype not in (dt.int64, dt.int32):
            raise invalid(f"The line number is an integer, but the table wants {dtype.name}.")
        if index == WHOLE_LINE and dtype not in (dt.string, dt.int64, dt.int32):
            raise invalid(f"A whole line is a string or an integer, but the table wants {dtype.name}.")
    widest = max(index for index, _ in columns)
    number = 0
    with GFile(path, "rb") as file:
        while number != vocab_size:
            line = file.readline()
            if not line:
                break
            line = line.removesuffix(b"\n").replace(b"\r", b"")
            if not line:
                raise invalid(f"Invalid content in {path}: empty line found at position {number + 1}.")
            parts = line.split(delimiter) if widest >= 0 else []
            if len(parts) <= widest:
                raise invalid(
                    f"Invalid number of columns in {path} line {number} ({line[:80]!r}) : expected at least "
                    f"{widest + 1} got {len(parts)}"
                )
            yield tuple(_cell(index, dtype, line, parts, number + offset, path) for index, dtype in columns)
            number += 1
    if not number:
        raise OutOfRangeError(f"{path} is empty: there is nothing to fill the table with.")
    if vocab_size >= 0 and number < vocab_size:
        raise invalid(f"Invalid vocab_size in {path}: expected {vocab_size} but got {number}")


def _cell(index: int, dtype: DType, line: bytes, parts: list[bytes], number: int, path: str) -> Any:
    if index == LINE_NUMBER:
        return number
    text = line if index == WHOLE_LINE else parts[index]
    if dtype is dt.string:
        return text
    value = parse_number(text, dtype)
    if value is None:
        raise InvalidArgumentError(f"{path}: Field {text[:80]!r} is not a valid {dtype.name}.")
    return np.array(value, dtype.as_numpy_dtype).tolist()
