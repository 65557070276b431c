"""Parts of many strings: a row of a ragged tensor for each string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.ops.array.reshaping import reshape
from penstock.ops.ragged.ragged_tensor import RaggedTensor

Parts = Callable[[Tensor], Sequence[Tensor]]


def of_each(input: Any, parts: Parts) -> list[Any]:
    """The parts of each string: vectors for one string, ragged tensors for more.

    `parts` takes a vector of strings, and gives the splits of rows and then the values, of one kind or several.
    """
    strings = tensor_or_ragged(input, dtype=dt.string)
    if isinstance(strings, RaggedTensor):
        return [strings.with_flat_values(found) for found in of_each(strings.flat_values, parts)]
    rank = strings.shape.rank
    if rank is None:
        raise ValueError("The rank of strings that are taken apart must be known.")
    if rank > 1:
        return of_each(RaggedTensor.from_tensor(strings, ragged_rank=rank - 1), parts)
    splits, *values = parts(reshape(strings, [1]) if rank == 0 else strings)
    return values if rank == 0 else [RaggedTensor(each, splits) for each in values]
