"""RaggedTensorValue: the value of a ragged tensor, as sessions give it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


class RaggedTensorValue:
    """Rows `values[row_splits[i]:row_splits[i + 1]]` of arrays; `values` may be a RaggedTensorValue itself.

    >>> tf.ragged.RaggedTensorValue(np.array([1, 2, 3]), np.array([0, 2, 3])).to_list()
    [[1, 2], [3]]
    """

    def __init__(self, values: Any, row_splits: Any) -> None:
        splits = np.asarray(row_splits)
        if splits.ndim != 1 or splits.dtype not in (np.int32, np.int64):
            raise TypeError(f"row_splits must be a vector of int32 or int64, received {row_splits!r:.200}.")
        if not isinstance(values, (np.ndarray, np.generic, RaggedTensorValue)):
            raise TypeError(f"values must be a NumPy array or a RaggedTensorValue, received {values!r:.200}.")
        self.values = values
        self.row_splits = splits

    @classmethod
    def of_parts(cls, flat_values: Any, *nested_row_splits: Any) -> Any:
        """The value with these splits, the outermost first; without any it is the array itself."""
        found = flat_values
        for splits in reversed(nested_row_splits):
            found = cls(found, splits)
        return found

    @property
    def parts(self) -> list[Any]:
        """The arrays that it is made of: the innermost values, and all splits."""
        return [self.flat_values, *self.nested_row_splits]

    @property
    def flat_values(self) -> Any:
        """The innermost values, an array."""
        return self.values.flat_values if isinstance(self.values, RaggedTensorValue) else self.values

    @property
    def nested_row_splits(self) -> tuple[Any, ...]:
        """The splits of all ragged dimensions, the outermost first."""
        inner = self.values.nested_row_splits if isinstance(self.values, RaggedTensorValue) else ()
        return (self.row_splits, *inner)

    @property
    def ragged_rank(self) -> int:
        """The number of dimensions that are split into rows."""
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> Any:
        """The NumPy type of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of rows, None for their lengths, then the shape of a value."""
        return (len(self.row_splits) - 1, None, *self.values.shape[1:])

    def to_list(self) -> list[Any]:
        """The rows as nested lists."""
        values = self.values.to_list() if isinstance(self.values, RaggedTensorValue) else self.values.tolist()
        return [values[a:b] for a, b in itertools.pairwise(self.row_splits.tolist())]

    def __str__(self) -> str:
        return f"<tf.RaggedTensorValue {self.to_list()}>"

    def __repr__(self) -> str:
        return f"tf.RaggedTensorValue(values={self.values!r}, row_splits={self.row_splits!r})"
