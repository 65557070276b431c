"""Vocabularies: tables between strings and numbers, with buckets for unknown keys."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import size
from penstock.ops.array.selection import where_v2
from penstock.ops.control.grouping import no_op
from penstock.ops.lookup.static import (
    KeyValueTensorInitializer,
    LookupInterface,
    StaticHashTable,
    TableInitializerBase,
    TextFileIdTableInitializer,
    TextFileStringTableInitializer,
)
from penstock.ops.lookup.table_ops import LINE_NUMBER, WHOLE_LINE
from penstock.ops.math.arithmetic import add
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import not_equal
from penstock.ops.string.forms import as_string, string_to_hash_bucket_fast, string_to_hash_bucket_strong


class HasherSpec(NamedTuple):
    """Names the hash that gives a key its bucket."""

    hasher: str
    key: Any


FastHashSpec = HasherSpec("fasthash", None)


class StrongHashSpec(HasherSpec):
    """A keyed hash, for keys from untrusted sources: `StrongHashSpec([17, 42])`."""

    __slots__ = ()

    def __new__(cls, key: Any) -> StrongHashSpec:
        if len(key) != 2 or not all(isinstance(k, int) for k in key):
            raise ValueError(f"StrongHashSpec: key must be two integers, received {key!r}.")
        return super().__new__(cls, "stronghash", key)


class IdTableWithHashBuckets(LookupInterface):
    """A table that hashes missing keys to `num_oov_buckets` numbers after its own."""

    def __init__(
        self,
        table: LookupInterface | None,
        num_oov_buckets: int,
        hasher_spec: HasherSpec = FastHashSpec,
        name: str | None = None,
        key_dtype: DTypeLike | None = None,
    ) -> None:
        key_dtype = as_dtype(key_dtype or (table.key_dtype if table else dt.string))
        if table is None and num_oov_buckets <= 0:
            raise ValueError(f"num_oov_buckets must be positive where there is no table, received {num_oov_buckets}.")
        if not (key_dtype.is_integer or key_dtype == dt.string):
            raise TypeError(f"Invalid `key_dtype`, expected integer or string, received {key_dtype}.")
        if table is not None and table.key_dtype.is_integer != key_dtype.is_integer:
            raise TypeError(f"Invalid `key_dtype` {key_dtype} for a table with keys of {table.key_dtype}.")
        super().__init__(key_dtype, dt.int64)
        self._table, self._num_oov_buckets, self._hasher_spec = table, num_oov_buckets, hasher_spec
        self._name = name.split("/")[-1] if name else table.name if table else "hash_bucket"

    @property
    def name(self) -> str:
        return self._name

    @property
    def resource_handle(self) -> Tensor | None:
        return None if self._table is None else getattr(self._table, "resource_handle", None)

    @property
    def initializer(self) -> Operation:
        """The operation that fills the table."""
        found: Operation = no_op() if self._table is None else self._table.initializer  # type: ignore[attr-defined]
        return found

    @property
    def init(self) -> Operation:
        return self.initializer

    def size(self, name: str | None = None) -> Tensor:
        with name_scope(name, f"{self.name}_Size"):
            known = convert_to_tensor(0, dtype=dt.int64) if self._table is None else self._table.size()
            return add(known, self._num_oov_buckets, name="add")

    def lookup(self, keys: TensorLike, name: str | None = None) -> Any:
        """The numbers of `keys`, or of their buckets."""
        dense, rebuilt = self._keys(keys)
        table = self._table
        if table is not None and table.key_dtype == dt.int64 and dense.dtype.base_dtype != dt.int64:
            dense = cast(dense, dt.int64)
        if self._num_oov_buckets == 0:
            assert table is not None
            return rebuilt(table.lookup(dense, name=name))
        with name_scope(name, f"{self.name}_Lookup"):
            text = dense if dense.dtype.base_dtype == dt.string else as_string(dense)
            spec = self._hasher_spec
            buckets: Tensor = (
                string_to_hash_bucket_strong(text, self._num_oov_buckets, spec.key, name="hash_bucket")
                if spec.hasher == "stronghash"
                else string_to_hash_bucket_fast(text, self._num_oov_buckets, name="hash_bucket")
            )
            if table is None:
                return rebuilt(buckets)
            known = table.lookup(dense)
            outside = add(buckets, table.size(), name="Add")
            found = not_equal(known, table.default_value)  # type: ignore[attr-defined]
            return rebuilt(where_v2(found, known, outside))


class StaticVocabularyTable(IdTableWithHashBuckets):
    """From strings or integers to numbers: those of the vocabulary, then `num_oov_buckets` for all others.

    >>> tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets=5).lookup(["a", "unknown"])
    """

    def __init__(
        self,
        initializer: TableInitializerBase | None,
        num_oov_buckets: int,
        lookup_key_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        if num_oov_buckets <= 0:
            raise ValueError(f"num_oov_buckets must be positive, received {num_oov_buckets}.")
        key_dtype = lookup_key_dtype or (initializer.key_dtype if initializer else dt.string)
        if initializer is not None:
            if initializer.value_dtype != dt.int64:
                raise TypeError(f"Invalid `value_dtype`, expected {dt.int64} but got {initializer.value_dtype}.")
            table = StaticHashTable(initializer, default_value=-1)
            super().__init__(table, num_oov_buckets, name=name, key_dtype=key_dtype)
        else:
            super().__init__(None, num_oov_buckets, name=name or "hash_bucket", key_dtype=key_dtype)


# Vocabularies


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    key_dtype: DTypeLike = dt.string,
    name: str | None = None,
    key_column_index: int = WHOLE_LINE,
    value_column_index: int = LINE_NUMBER,
    delimiter: str = "\t",
) -> LookupInterface:
    """From the lines of a file to their numbers: `tf.contrib.lookup.index_table_from_file("vocab.txt")`.

    A string that is not in the file gets `default_value`, or one of `num_oov_buckets` numbers after the last.
    """
    if vocabulary_file is None or (isinstance(vocabulary_file, (str, bytes)) and not vocabulary_file):
        raise ValueError(f"vocabulary_file must be given, received {vocabulary_file!r}.")
    _check_buckets(num_oov_buckets)
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size must be positive, received {vocab_size}.")
    key_dtype = _index_key(key_dtype)
    with name_scope(name, "string_to_index"):
        with name_scope(None, "hash_table"):
            initializer = TextFileIdTableInitializer(
                vocabulary_file,
                key_column_index,
                value_column_index,
                vocab_size,
                delimiter,
                "table_init",
                key_dtype=dt.int64 if key_dtype.is_integer else key_dtype,
            )
            table = StaticHashTable(initializer, default_value)
        return _with_buckets(table, num_oov_buckets, hasher_spec, key_dtype)


def index_table_from_tensor(
    vocabulary_list: Any = None,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    dtype: Any = dt.string,
    name: str | None = None,
    mapping: Any = None,
) -> LookupInterface:
    """From the elements of a vector to their numbers: `tf.contrib.lookup.index_table_from_tensor(["a", "b"])`."""
    vocabulary_list = mapping if vocabulary_list is None else vocabulary_list
    if vocabulary_list is None:
        raise ValueError("vocabulary_list must be given.")
    _check_buckets(num_oov_buckets)
    dtype = _index_key(dtype)
    with name_scope(name, "string_to_index"):
        keys = convert_to_tensor(vocabulary_list)
        if keys.dtype.is_integer != dtype.is_integer:
            raise ValueError(f"Expected {dtype}, got {keys.dtype}.")
        if not (dtype.is_integer or keys.dtype.base_dtype == dtype):
            raise ValueError(f"Expected {dtype}, got {keys.dtype}.")
        values = cast(range_of(size(keys)), dt.int64)
        with name_scope(None, "hash_table"):
            if keys.dtype.is_integer and keys.dtype.base_dtype != dt.int64:
                keys = cast(keys, dt.int64)
            initializer = KeyValueTensorInitializer(keys, values, keys.dtype.base_dtype, dt.int64, "table_init")
            table = StaticHashTable(initializer, default_value)
        return _with_buckets(table, num_oov_buckets, hasher_spec, dtype)


def _with_buckets(table: StaticHashTable, count: int, spec: HasherSpec, key_dtype: DType) -> LookupInterface:
    if not count:
        return table
    return IdTableWithHashBuckets(table, count, spec, key_dtype=key_dtype)


def _check_buckets(count: int) -> None:
    if count < 0:
        raise ValueError(f"num_oov_buckets must be greater or equal than 0, received {count}.")


def _index_key(dtype: Any) -> DType:
    found = as_dtype(dtype)
    if not (found.is_integer or found == dt.string):
        raise TypeError(f"Only integer and string keys are supported, received {found}.")
    return found


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: TensorLike = "UNK",
    name: str | None = None,
    key_column_index: int = LINE_NUMBER,
    value_column_index: int = WHOLE_LINE,
    delimiter: str = "\t",
) -> StaticHashTable:
    """From line numbers of a file to the lines: `tf.contrib.lookup.index_to_string_table_from_file("vocab.txt")`."""
    if isinstance(vocabulary_file, (str, bytes)) and not vocabulary_file:
        raise ValueError("vocabulary_file must be given.")
    if vocab_size is not None and vocab_size < 1:
        raise ValueError(f"vocab_size must be positive, received {vocab_size}.")
    with name_scope(name, "index_to_string"):
        initializer = TextFileStringTableInitializer(
            vocabulary_file, key_column_index, value_column_index, vocab_size, delimiter, "table_init"
        )
        return StaticHashTable(initializer, default_value)


def index_to_string_table_from_tensor(
    vocabulary_list: Any = None, default_value: Any = "UNK", name: str | None = None, mapping: Any = None
) -> StaticHashTable:
    """From numbers to the elements of a vector: `tf.contrib.lookup.index_to_string_table_from_tensor(["a", "b"])`."""
    vocabulary_list = mapping if vocabulary_list is None else vocabulary_list
    if vocabulary_list is None:
        raise ValueError("vocabulary_list must be given.")
    with name_scope(name, "index_to_string"):
        strings = convert_to_tensor(vocabulary_list, dt.string)
        keys = cast(range_of(size(strings)), dt.int64)
        initializer = KeyValueTensorInitializer(keys, strings, dt.int64, dt.string, "table_init")
        return StaticHashTable(initializer, default_value)
