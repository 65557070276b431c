"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from collections.abc import Sequence
from typing import Any

from penstock.graph.adapted import adapted
from penstock.graph.operation import Tensor
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.ops.ragged import row_ops
from penstock.ops.ragged.ragged_tensor import RaggedTensor
from penstock.ops.string import forms, join
from penstock.ops.string import split as splitting
from penstock.ops.string.each import of_each

length = adapted(forms.string_length, "input, unit='BYTE', name=None")
reduce_join = adapted(join.reduce_join, "inputs, axis=None, keepdims=False, separator='', name=None")
substr = adapted(forms.substr, "input, pos, len, unit='BYTE', name=None")
to_hash_bucket = adapted(forms.string_to_hash_bucket, "input, num_buckets, name=None")
to_number = adapted(forms.string_to_number, "input, out_type='float32', name=None")


def split(input: TensorLike, sep: TensorLike = None, maxsplit: int = -1, name: str | None = None) -> Any:
    """The parts of strings between separators: a vector for one string, a ragged tensor for more.

    >>> tf.strings.split(["a b", "c"])
    <tf.RaggedTensor [[b'a', b'b'], [b'c']]>
    """
    return of_each(input, lambda strings: _rows(splitting.split(strings, sep, maxsplit, name=name)))[0]


def bytes_split(input: TensorLike, name: str | None = None) -> Any:
    """The bytes of strings: `tf.strings.bytes_split("ab")  # ["a", "b"]`."""

    def parts(strings: Tensor) -> Sequence[Tensor]:
        return _rows(SparseTensor(*splitting.string_split_op(strings, "", skip_empty=False)))

    return of_each(input, parts)[0]


def _rows(sparse: SparseTensor) -> Sequence[Tensor]:
    indices: Any = sparse.indices
    dims: Any = sparse.dense_shape
    return [row_ops.splits_of_row_ids(indices[:, 0], dims[0]), sparse.values]


def ngrams(
    data: TensorLike,
    ngram_width: Any,
    separator: str = " ",
    pad_values: Any = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Any:
    """Runs of `ngram_width` neighbours, joined, of a vector of strings or of each row of a ragged tensor."""
    if not isinstance(data, RaggedTensor):
        options = separator, pad_values, padding_width, preserve_short_sequences, name
        return splitting.ngrams(data, ngram_width, *options)
    found, splits = splitting.ngrams_of_rows(
        data.flat_values,
        data.nested_row_splits[-1],
        ngram_width,
        separator,
        pad_values,
        padding_width,
        preserve_short_sequences,
    )
    return data.with_parts([found, *data.nested_row_splits[:-1], splits])
