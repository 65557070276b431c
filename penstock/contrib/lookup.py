"""`tf.contrib.lookup`: the tables of `tf.lookup` under their older names, and tables made in one call."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.lookup import mutable, vocabulary
from penstock.ops.lookup.static import (
    HashTable,
    InitializableLookupTableBase,
    KeyValueTensorInitializer,
    LookupInterface,
    TableInitializerBase,
    TextFileIdTableInitializer,
    TextFileIndex,
    TextFileInitializer,
    TextFileStringTableInitializer,
)
from penstock.ops.lookup.vocabulary import (
    FastHashSpec,
    HasherSpec,
    IdTableWithHashBuckets,
    StrongHashSpec,
    index_table_from_file,
    index_to_string_table_from_file,
)

__all__ = [
    "FastHashSpec",
    "HashTable",
    "HasherSpec",
    "IdTableWithHashBuckets",
    "InitializableLookupTableBase",
    "KeyValueTensorInitializer",
    "LookupInterface",
    "MutableDenseHashTable",
    "MutableHashTable",
    "StrongHashSpec",
    "TableInitializerBase",
    "TextFileIdTableInitializer",
    "TextFileIndex",
    "TextFileInitializer",
    "TextFileStringTableInitializer",
    "index_table_from_file",
    "index_table_from_tensor",
    "index_to_string",
    "index_to_string_table_from_file",
    "index_to_string_table_from_tensor",
    "string_to_index",
    "string_to_index_table_from_file",
    "string_to_index_table_from_tensor",
]


class MutableHashTable(mutable.MutableHashTable):
    """A table that steps change: `tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1)`."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint, shared_name)


class MutableDenseHashTable(mutable.DenseHashTable):
    """A MutableHashTable that cannot hold `empty_key` and `deleted_key`."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: Any,
        deleted_key: Any,
        initial_num_buckets: int | None = None,
        shared_name: str | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
    ) -> None:
        super().__init__(
            key_dtype,
            value_dtype,
            default_value,
            empty_key,
            deleted_key,
            initial_num_buckets,
            name,
            checkpoint,
            shared_name,
        )


def index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    dtype: DTypeLike = dt.string,
    name: str | None = None,
) -> LookupInterface:
    """Maps the elements of a vector to their indices: `tf.contrib.lookup.index_table_from_tensor(["a", "b"])`."""
    return vocabulary.index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, dtype, name)


def index_to_string_table_from_tensor(
    mapping: Any, default_value: TensorLike = "UNK", name: str | None = None
) -> HashTable:
    """Maps indices to the elements of a vector: `tf.contrib.lookup.index_to_string_table_from_tensor(["a", "b"])`."""
    return vocabulary.index_to_string_table_from_tensor(mapping, default_value, name)


def string_to_index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    name: str | None = None,
) -> LookupInterface:
    """The old name of `index_table_from_file`."""
    return index_table_from_file(
        vocabulary_file, num_oov_buckets, vocab_size, default_value, hasher_spec, dt.string, name
    )


def string_to_index_table_from_tensor(
    mapping: Any,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    name: str | None = None,
) -> LookupInterface:
    """The old name of `index_table_from_tensor`."""
    return index_table_from_tensor(mapping, num_oov_buckets, default_value, hasher_spec, dt.string, name)


def string_to_index(tensor: TensorLike, mapping: Any, default_value: int = -1, name: str | None = None) -> Any:
    """The indices of strings in `mapping`: `tf.contrib.lookup.string_to_index(["b"], ["a", "b"])`."""
    return index_table_from_tensor(mapping, default_value=default_value, name=name).lookup(tensor)


def index_to_string(
    tensor: TensorLike, mapping: Any, default_value: TensorLike = "UNK", name: str | None = None
) -> Any:
    """The strings of `mapping` at some indices: `tf.contrib.lookup.index_to_string([1], ["a", "b"])`."""
    return index_to_string_table_from_tensor(mapping, default_value, name).lookup(tensor)
