"""Lookup tables that steps can change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.checkpoint.saveable_object import SaveableObject, SaveSpec
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, name_scope
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.lookup import table_ops as ops
from penstock.ops.lookup.static import LookupInterface


class MutableHashTable(LookupInterface):
    """A table that steps can change: `table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)`."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
        shared_name: str | None = None,
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        self._default_value = convert_to_tensor(default_value, dtype=self._value_dtype)
        self._resource_handle = self._create_resource(name, shared_name or "", checkpoint and shared_name is None)
        self._name = self._resource_handle.op.name.split("/")[-1]
        if checkpoint and not get_default_graph().is_eager:  # there it would live as long as the process
            get_default_graph().add_to_collection(GraphKeys.SAVEABLE_OBJECTS, _TableSaveable(self))

    def _create_resource(self, name: str, shared_name: str, sharing: bool) -> Tensor:
        types = {"key_dtype": self._key_dtype, "value_dtype": self._value_dtype}
        shape = self._default_value.shape
        handle: Tensor
        if shape.rank == 0:
            handle = ops.mutable_hash_table_v2(
                shared_name=shared_name, use_node_name_sharing=sharing, name=name, **types
            )
        else:
            handle = ops.mutable_hash_table_of_tensors_v2(
                shared_name=shared_name, use_node_name_sharing=sharing, value_shape=shape, name=name, **types
            )
        return handle

    @property
    def name(self) -> str:
        return self._name

    @property
    def resource_handle(self) -> Tensor:
        """The table itself, as a tensor."""
        return self._resource_handle

    @property
    def default_value(self) -> Tensor:
        """The value of keys that are not in the table."""
        return self._default_value

    def size(self, name: str | None = None) -> Tensor:
        handle = self._resource_handle
        with name_scope(name, f"{self.name}_Size", [handle]), colocate_with(handle):
            count: Tensor = ops.lookup_table_size_v2(handle)
            return count

    def lookup(self, keys: TensorLike, name: str | None = None, dynamic_default_values: TensorLike = None) -> Any:
        """The values of `keys`; `dynamic_default_values` has a value for each missing key."""
        handle, default = self._resource_handle, self._default_value
        with name_scope(name, f"{self.name}_lookup_table_find", (handle, keys, default)):
            if not isinstance(keys, SparseTensor):
                keys = convert_to_tensor(keys, dtype=self._key_dtype, name="keys")
            dense, rebuilt = self._keys(keys)
            with colocate_with(handle):
                other = default if dynamic_default_values is None else dynamic_default_values
                values = ops.lookup_table_find_v2(handle, dense, other, Tout=self._value_dtype)
        return rebuilt(values)

    def insert(self, keys: TensorLike, values: TensorLike, name: str | None = None) -> Operation:
        """An operation that sets the values of keys: `table.insert(["a"], [1])`."""
        handle = self._resource_handle
        with name_scope(name, f"{self.name}_lookup_table_insert", [handle, keys, values]):
            keys = convert_to_tensor(keys, self._key_dtype, name="keys")
            values = convert_to_tensor(values, self._value_dtype, name="values")
            with colocate_with(handle):
                done: Operation = ops.lookup_table_insert_v2(handle, keys, values)
        return done

    def remove(self, keys: TensorLike, name: str | None = None) -> Operation:
        """An operation that removes keys from the table."""
        handle = self._resource_handle
        if isinstance(keys, Tensor):
            self._require("keys", keys, self._key_dtype)
        with name_scope(name, f"{self.name}_lookup_table_remove", (handle, keys)):
            done: Operation = ops.lookup_table_remove_v2(handle, keys, Tin=self._key_dtype)
        return done

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys and all values."""
        handle = self._resource_handle
        with name_scope(name, f"{self.name}_lookup_table_export_values", [handle]), colocate_with(handle):
            keys, values = ops.lookup_table_export_v2(handle, Tkeys=self._key_dtype, Tvalues=self._value_dtype)
        return keys, values

    # Object checkpoints know a table by these.

    def _saved_state(self) -> dict[str, Any]:
        keys, values = self.export()
        return {"table-keys": keys, "table-values": values}

    def _restore_state(self, state: dict[str, Any]) -> None:
        ops.lookup_table_import_v2(self._resource_handle, state["table-keys"], state["table-values"])


class _TableSaveable(SaveableObject):
    """The form in which a Saver saves a table: two tensors, its keys and its values."""

    def __init__(self, table: MutableHashTable) -> None:
        name = table.resource_handle.op.name
        parts = zip(table.export(), ("keys", "values"), strict=True)
        super().__init__(table, [SaveSpec(tensor, "", f"{name}-{part}") for tensor, part in parts], name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Sequence[Any] | None) -> Operation:
        handle = self.op.resource_handle
        with name_scope(f"{self.name}_table_restore"), colocate_with(handle):
            done: Operation = ops.lookup_table_import_v2(handle, *restored_tensors)
        return done


class DenseHashTable(MutableHashTable):
    """A MutableHashTable that cannot hold `empty_key` and `deleted_key`.

    >>> tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, -1, empty_key=-1, deleted_key=-2)
    """

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: Any,
        deleted_key: Any,
        initial_num_buckets: int | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
        shared_name: str | None = None,
    ) -> None:
        key, value = as_dtype(key_dtype), as_dtype(value_dtype)
        default_value = convert_to_tensor(default_value, dtype=value, name="default_value")
        self._empty_key = convert_to_tensor(empty_key, dtype=key, name="empty_key")
        self._deleted_key = convert_to_tensor(deleted_key, dtype=key, name="deleted_key")
        self._buckets = {} if initial_num_buckets is None else {"initial_num_buckets": initial_num_buckets}
        super().__init__(key, value, default_value, name, checkpoint, shared_name)

    def _create_resource(self, name: str, shared_name: str, sharing: bool) -> Tensor:
        handle: Tensor = ops.mutable_dense_hash_table_v2(
            self._empty_key,
            self._deleted_key,
            shared_name=shared_name,
            use_node_name_sharing=sharing,
            value_dtype=self._value_dtype,
            value_shape=self._default_value.shape,
            name=name,
            **self._buckets,
        )
        return handle
