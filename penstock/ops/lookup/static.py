"""Lookup tables that do not change, and their initializers: `tf.lookup`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import add_to_collection, init_scope, name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.lookup import table_ops as ops
from penstock.ops.lookup.table_ops import LINE_NUMBER, WHOLE_LINE


class TextFileIndex:
    """Special columns for `TextFileInitializer`: the whole line, and its number."""

    WHOLE_LINE = WHOLE_LINE
    LINE_NUMBER = LINE_NUMBER


# Tables


class HasKeyAndValueTypes:
    """Base class of tables and of what fills them: keys are of one type and values of another."""

    def __init__(self, key_dtype: DTypeLike, value_dtype: DTypeLike) -> None:
        self._key_dtype, self._value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)

    @property
    def key_dtype(self) -> DType:
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        return self._value_dtype


class LookupInterface(HasKeyAndValueTypes):
    """Base class of tables."""

    @property
    def name(self) -> str:
        """The name of the table."""
        raise NotImplementedError

    def size(self, name: str | None = None) -> Tensor:
        """The number of entries: an int64 scalar."""
        raise NotImplementedError

    def lookup(self, keys: TensorLike, name: str | None = None) -> Any:
        """The values of `keys`."""
        raise NotImplementedError

    def __getitem__(self, keys: Any) -> Any:
        return self.lookup(keys)

    def _keys(self, keys: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        """Keys as a dense tensor, and a function that gives values the form of the keys, which may be sparse."""
        rebuilt: Callable[[Tensor], Any]
        if isinstance(keys, SparseTensor):
            dense, rebuilt = keys.values, lambda v: SparseTensor(keys.indices, v, keys.dense_shape)
        elif isinstance(keys, Ragged):
            dense, rebuilt = keys.flat_values, keys.with_flat_values
        else:
            wanted = None if isinstance(keys, Tensor) else self._key_dtype
            dense, rebuilt = convert_to_tensor(keys, dtype=wanted, name="keys"), lambda v: v
        self._require("keys", dense, self._key_dtype)
        return dense, rebuilt

    def _require(self, what: str, tensor: Tensor, dtype: DType) -> None:
        if tensor.dtype.base_dtype != dtype:
            raise TypeError(f"Dtype of argument `{what}` must be {dtype}, received: {tensor.dtype.base_dtype}")


class TableInitializerBase(HasKeyAndValueTypes):
    """Base class of objects that fill a static table."""

    @property
    def _shared_name(self) -> str:
        """A name that tables with the same contents share; random if the contents are unknown."""
        return f"hash_table_{uuid.uuid4()}"

    def initialize(self, table: InitializableLookupTableBase) -> Operation:
        """The operation that fills `table`."""
        raise NotImplementedError

    def _check(self, table: LookupInterface) -> None:
        wanted, found = (self.key_dtype, self.value_dtype), (table.key_dtype, table.value_dtype)
        if wanted != found:
            raise TypeError(f"The initializer is for a table of {wanted}, the table holds {found}.")

    @staticmethod
    def _noted(filled: Operation) -> Operation:
        """Notes the operation for `tables_initializer`. With eager execution it has run."""
        if not filled.graph.is_eager:
            add_to_collection(GraphKeys.TABLE_INITIALIZERS, filled)
        return filled


class KeyValueTensorInitializer(TableInitializerBase):
    """Fills a table from two tensors: `tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1])`."""

    def __init__(
        self,
        keys: TensorLike,
        values: TensorLike,
        key_dtype: DTypeLike | None = None,
        value_dtype: DTypeLike | None = None,
        name: str | None = None,
    ) -> None:
        with init_scope():
            self._keys = convert_to_tensor(keys, dtype=key_dtype, name="keys")
            self._values = convert_to_tensor(values, dtype=value_dtype, name="values")
        self._name = name or "key_value_init"
        super().__init__(self._keys.dtype.base_dtype, self._values.dtype.base_dtype)

    def initialize(self, table: InitializableLookupTableBase) -> Operation:
        self._check(table)
        rows, values = self._keys.shape.with_rank_at_least(1), self._values.shape.with_rank_at_least(1)
        if not rows[:1].is_compatible_with(values[:1]):
            raise ValueError(f"Dimensions must be equal, but are {rows[0]} and {values[0]}, of keys and values.")
        with name_scope(self._name, values=(table.resource_handle, self._keys, self._values)):
            filled: Operation = ops.lookup_table_import_v2(table.resource_handle, self._keys, self._values)
        return self._noted(filled)


class TextFileInitializer(TableInitializerBase):
    """Fills a table from the lines of a text file: key and value are columns, whole lines, or line numbers.

    >>> index = tf.lookup.TextFileIndex
    >>> tf.lookup.TextFileInitializer("vocab.txt", tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    """

    def __init__(
        self,
        filename: TensorLike,
        key_dtype: DTypeLike,
        key_index: int,
        value_dtype: DTypeLike,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        if isinstance(filename, (str, bytes)) and not filename:
            raise ValueError("TextFileInitializer: filename must not be empty.")
        for which, index, dtype in (("key", key_index, self.key_dtype), ("value", value_index, self.value_dtype)):
            if index < WHOLE_LINE:
                raise ValueError(f"TextFileInitializer: {which}_index must be a column, received {index}.")
            if index == LINE_NUMBER and dtype != dt.int64:
                raise ValueError(f"TextFileInitializer: a line number is int64, received {which}_dtype {dtype}.")
            if index == WHOLE_LINE and not (dtype.is_integer or dtype == dt.string):
                raise ValueError(f"TextFileInitializer: a whole line cannot be a {which} of {dtype}.")
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"TextFileInitializer: vocab_size must be positive, received {vocab_size}.")
        self._given = filename
        self._key_index, self._value_index = key_index, value_index
        self._vocab_size, self._delimiter, self._offset = vocab_size, delimiter, value_index_offset
        self._name = name or "text_file_init"
        with init_scope():
            self._filename = convert_to_tensor(filename, dt.string, name="asset_path")
        add_to_collection(GraphKeys.ASSET_FILEPATHS, self._filename)

    @property
    def _shared_name(self) -> str:
        file = self._given.decode() if isinstance(self._given, bytes) else self._given
        vocab = f"_{self._vocab_size}" if self._vocab_size else ""
        offset = f"_{self._offset}" if self._offset else ""
        return f"hash_table_{file}{vocab}_{self._key_index}_{self._value_index}{offset}"

    def initialize(self, table: InitializableLookupTableBase) -> Operation:
        self._check(table)
        with name_scope(self._name, "text_file_init", (table.resource_handle,)):
            filled: Operation = ops.initialize_table_from_text_file_v2(
                table.resource_handle,
                self._filename,
                key_index=self._key_index,
                value_index=self._value_index,
                vocab_size=self._vocab_size or -1,
                delimiter=self._delimiter,
                offset=self._offset,
            )
        return self._noted(filled)


class TextFileStringTableInitializer(TextFileInitializer):
    """Fills a table from line numbers to the strings of a file."""

    def __init__(
        self,
        filename: TensorLike,
        key_column_index: int = LINE_NUMBER,
        value_column_index: int = WHOLE_LINE,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = "text_file_string_table_init",
    ) -> None:
        super().__init__(
            filename, dt.int64, key_column_index, dt.string, value_column_index, vocab_size, delimiter, name
        )


class TextFileIdTableInitializer(TextFileInitializer):
    """Fills a table from the strings of a file to line numbers."""

    def __init__(
        self,
        filename: TensorLike,
        key_column_index: int = WHOLE_LINE,
        value_column_index: int = LINE_NUMBER,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = "text_file_id_table_init",
        key_dtype: DTypeLike = dt.string,
    ) -> None:
        super().__init__(
            filename, key_dtype, key_column_index, dt.int64, value_column_index, vocab_size, delimiter, name
        )


class InitializableLookupTableBase(LookupInterface):
    """A table that its initializer fills once."""

    def __init__(self, default_value: TensorLike, initializer: TableInitializerBase) -> None:
        super().__init__(initializer.key_dtype, initializer.value_dtype)
        self._default_value = convert_to_tensor(default_value, dtype=self._value_dtype)
        self._default_value.shape.assert_has_rank(0)
        self._initializer = initializer
        self._resource_handle = self._create_resource()
        self._init_op = initializer.initialize(self)

    def _create_resource(self) -> Tensor:
        raise NotImplementedError

    @property
    def resource_handle(self) -> Tensor:
        """The table itself, as a tensor."""
        return self._resource_handle

    @property
    def table_ref(self) -> Tensor:
        return self._resource_handle

    @property
    def default_value(self) -> Tensor:
        """The value of keys that are not in the table."""
        return self._default_value

    @property
    def initializer(self) -> Operation:
        """The operation that fills the table; `tf.tables_initializer()` runs those of all tables."""
        return self._init_op

    @property
    def init(self) -> Operation:
        return self._init_op

    def size(self, name: str | None = None) -> Tensor:
        with name_scope(name, f"{self.name}_Size", [self._resource_handle]):
            count: Tensor = ops.lookup_table_size_v2(self._resource_handle)
            return count

    def lookup(self, keys: TensorLike, name: str | None = None) -> Any:
        """The values of `keys`, a tensor or SparseTensor: `table.lookup(["a", "b"])`."""
        dense, rebuilt = self._keys(keys)
        with name_scope(name, f"{self.name}_Lookup", (self._resource_handle, dense, self._default_value)):
            values = ops.lookup_table_find_v2(self._resource_handle, dense, self._default_value)
        values.set_shape(dense.shape)
        return rebuilt(values)


class StaticHashTable(InitializableLookupTableBase):
    """A table that does not change: `tf.lookup.StaticHashTable(initializer, default_value=-1)`."""

    def __init__(
        self,
        initializer: TableInitializerBase,
        default_value: TensorLike,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        self._shared_name = shared_name or initializer._shared_name
        self._name = name or "hash_table"
        super().__init__(default_value, initializer)
        self._value_shape = self._default_value.shape

    def _create_resource(self) -> Tensor:
        handle: Tensor = ops.hash_table_v2(
            shared_name=self._shared_name, key_dtype=self._key_dtype, value_dtype=self._value_dtype, name=self._name
        )
        self._name = handle.op.name.split("/")[-1]
        return handle

    @property
    def name(self) -> str:
        return self._name

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys and all values."""
        with name_scope(name, f"{self.name}_Export", [self._resource_handle]):
            keys, values = ops.lookup_table_export_v2(
                self._resource_handle, Tkeys=self._key_dtype, Tvalues=self._value_dtype
            )
        return keys, values


HashTable = StaticHashTable
