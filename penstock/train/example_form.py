"""ExampleForm: turns examples into tensors for a queue, and batches from it back into the form of the examples."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.sparse.serialize import deserialize_many_sparse, serialize_many_sparse, serialize_sparse


class ExampleForm:
    """The form in which the tensors of an example are given: a list, a dict or one tensor, sparse or dense.

    The queue holds a sparse tensor as three strings.
    """

    def __init__(self, given: Any, enqueue_many: bool) -> None:
        self.keys = sorted(given) if isinstance(given, dict) else None
        self.is_one = not isinstance(given, (dict, list, tuple))
        self.enqueue_many = enqueue_many
        self.sparse = self.kinds(given)

    def kinds(self, given: Any) -> list[tuple[Any, Any] | None]:
        """Type and rank of each sparse tensor, None for each dense one."""
        return [
            (item.dtype, item.dense_shape.shape[0]) if isinstance(item, SparseTensor) else None
            for item in self.items(given)
        ]

    def items(self, given: Any) -> list[Any]:
        """The tensors of an example in order."""
        items = [given[k] for k in self.keys] if self.keys is not None else [given] if self.is_one else list(given)
        if not items:
            raise ValueError("Expected at least one tensor in batch().")
        return items

    def flat(self, given: Any) -> list[Tensor]:
        """The dense tensors that go into the queue."""
        items = self.items(given)
        for one, other in zip(self.kinds(given), self.sparse, strict=False):
            if (one is None) != (other is None) or (one and other and not one[1].is_compatible_with(other[1])):
                raise ValueError(f"Every example must have sparse tensors of one rank at the same places: {items}.")
        serialize = serialize_many_sparse if self.enqueue_many else serialize_sparse
        return [serialize(item) if isinstance(item, SparseTensor) else convert_to_tensor(item) for item in items]

    def rebuilt(self, tensors: Any) -> Any:
        """A batch from the queue, in the form of the examples."""
        items = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
        for i, kind in enumerate(self.sparse):
            if kind is not None:
                dtype, rank = kind
                # Batching single tensors adds one dimension.
                batch_rank = rank if self.enqueue_many else rank + 1
                items[i] = deserialize_many_sparse(items[i], dtype, batch_rank.value)
        if self.keys is not None:
            return dict(zip(self.keys, items, strict=True))
        return items[0] if len(items) == 1 else items  # as in TensorFlow, even if a list of one tensor was given
