"""Ops that split strings at delimiters and into bytes, and that make n-grams."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import require_rank
from penstock.kernel.types import INDEX64
from penstock.ops.array.creation import constant
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import expand_dims, reshape, shape
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.string.forms import invalid, listed, texts


def sparse_rows(rows: Sequence[Sequence[bytes]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists of different lengths as the three parts of a SparseTensor: [row, place in it] per value."""
    sizes = [len(row) for row in rows]
    indices = np.empty((sum(sizes), 2), np.int64)
    indices[:, 0] = np.repeat(np.arange(len(rows)), sizes)
    indices[:, 1] = np.concatenate([np.arange(n) for n in sizes]) if sizes else ()
    values = texts([text for row in rows for text in row])
    return indices, values, np.array([len(rows), max(sizes, default=0)], np.int64)


def _sparse_shapes(op: Operation) -> list[TensorShape]:
    require_rank(op.input_list[0].shape, 1)
    require_rank(op.input_list[1].shape, 0)
    return [TensorShape.of((None, 2)), TensorShape.of((None,)), TensorShape.of((2,))]


def _checked(strings: Any, separator: Any) -> tuple[list[bytes], bytes]:
    if np.ndim(strings) != 1:
        raise invalid(f"The strings to split must be a vector, received shape {np.shape(strings)}.")
    if np.ndim(separator) != 0:
        raise invalid(f"The delimiter must be a scalar, received shape {np.shape(separator)}.")
    return listed(strings), listed(separator)[0]


@op(
    "StringSplit",
    "string, string -> indices: int64, values: string, shape: int64",
    host=True,
    no_gradient=True,
    shape=_sparse_shapes,
)
def string_split_op(input: Any, delimiter: Any, *, skip_empty: bool = True) -> Any:
    strings, delimiters = _checked(input, delimiter)
    return sparse_rows([_at_any(text, delimiters, skip_empty) for text in strings])


def _at_any(text: bytes, delimiters: bytes, skip_empty: bool) -> list[bytes]:
    if not text:
        return []
    if not delimiters:
        return [text[i : i + 1] for i in range(len(text))]
    if len(delimiters) > 1:
        # Each byte of the delimiter is a delimiter.
        text = text.translate(bytes(delimiters[0] if byte in delimiters else byte for byte in range(256)))
    parts = text.split(delimiters[:1])
    return [part for part in parts if part] if skip_empty else parts


@op(
    "StringSplitV2",
    "string, string -> indices: int64, values: string, shape: int64",
    host=True,
    no_gradient=True,
    shape=_sparse_shapes,
)
def string_split_v2_op(input: Any, sep: Any, *, maxsplit: int = -1) -> Any:
    strings, separator = _checked(input, sep)
    limit = max(maxsplit, -1)
    if not separator:
        return sparse_rows([text.split(None, limit) for text in strings])
    return sparse_rows([text.split(separator, limit) for text in strings])


def string_split(
    source: TensorLike,
    sep: TensorLike = None,
    skip_empty: bool = True,
    delimiter: TensorLike = None,
    result_type: str = "SparseTensor",
    name: str | None = None,
) -> SparseTensor:
    """The parts of strings between delimiters, as a SparseTensor of one row per string.

    Every byte of the delimiter splits; the empty delimiter splits into bytes.

    >>> tf.string_split(["a b", "c"]).values  # ["a", "b", "c"]
    """
    _require_sparse("string_split", result_type)
    delimiter = delimiter if sep is None else sep
    with name_scope(name, "StringSplit", [source]):
        delimiter = convert_to_tensor(" " if delimiter is None else delimiter, dtype=dt.string)
        source = convert_to_tensor(source, dtype=dt.string)
        return _sparse(string_split_op(source, delimiter, skip_empty=skip_empty))


def split(
    input: TensorLike = None,
    sep: TensorLike = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: TensorLike = None,
    name: str | None = None,
) -> SparseTensor:
    """The parts of strings between separators, as `str.split` finds them; one more dimension than `input`.

    >>> tf.strings.split(["a, b", "c"], sep=", ").values  # ["a", "b", "c"]
    """
    _require_sparse("strings.split", result_type)
    with name_scope(name, "StringSplit", [input, source]):
        strings = convert_to_tensor(source if input is None else input, dtype=dt.string, name="input")
        rank = strings.shape.rank
        if rank == 0:
            strings = expand_dims(strings, 0)
        separator = convert_to_tensor("" if sep is None else sep, dtype=dt.string)
        if rank in (None, 0, 1):
            return _sparse(string_split_v2_op(strings, separator, maxsplit=maxsplit))
        parts = _sparse(string_split_v2_op(reshape(strings, [-1]), separator, maxsplit=maxsplit))
        # The row is an index into the flattened strings; it becomes one number per dimension.
        outer = shape(strings, out_type=dt.int64)
        places = unravel_rows(parts.indices, outer)
        return SparseTensor(places, parts.values, concat([outer, slice_of(parts.dense_shape, [1], [1])], axis=0))


@op(
    "UnravelRows",
    "int64, int64 -> output: int64",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None, None))],
)
def unravel_rows(indices: Any, dims: Any) -> Any:
    """Indices [row, place] whose row, in a flattened tensor, becomes one number per dimension."""
    places = np.unravel_index(indices[:, 0], tuple(int(d) for d in dims))
    return np.stack([*places, indices[:, 1]], axis=1).astype(np.int64)


def _sparse(parts: Any) -> SparseTensor:
    indices, values, dense_shape = parts
    indices.set_shape([None, 2])
    values.set_shape([None])
    dense_shape.set_shape([2])
    return SparseTensor(indices, values, dense_shape)


def _require_sparse(function: str, result_type: str) -> None:
    if result_type != "SparseTensor":
        raise NotImplementedError(
            f"tf.{function}: result_type must be 'SparseTensor', received {result_type!r}. tf.strings.split of the 2.x "
            "API gives a RaggedTensor; tf.RaggedTensor.from_sparse makes one."
        )


# N-grams


@op(
    "StringNGrams",
    "string, Tsplits -> ngrams: string, ngrams_splits: Tsplits",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,)), op.input_list[1].shape],
    Tsplits=INDEX64,
)
def string_n_grams(
    data: Any,
    data_splits: Any,
    *,
    separator: str,
    ngram_widths: list[int],
    left_pad: str,
    right_pad: str,
    pad_width: int,
    preserve_short_sequences: bool,
) -> Any:
    strings, splits = listed(data), np.asarray(data_splits).tolist()
    if splits and (splits[0] != 0 or splits[-1] != len(strings) or sorted(splits) != splits):
        raise invalid(f"StringNGrams: splits must rise from 0 to {len(strings)}, received {splits[:8]}.")
    if any(width < 1 for width in ngram_widths):
        raise invalid(f"StringNGrams: widths must be positive, received {ngram_widths}.")
    glue, left, right = (text.encode("utf-8", "surrogateescape") for text in (separator, left_pad, right_pad))
    found: list[bytes] = []
    ends = splits[:1]
    for start, end in itertools.pairwise(splits):
        row, before = strings[start:end], len(found)
        for width in ngram_widths:
            pad = width - 1 if pad_width < 0 else min(pad_width, width - 1)
            padded = [left] * pad + row + [right] * pad
            found += [glue.join(padded[i : i + width]) for i in range(len(padded) - width + 1)]
        if preserve_short_sequences and len(found) == before and row:
            # A row that is too short for any width becomes one n-gram.
            width = min(ngram_widths)
            pad = width - 1 if pad_width < 0 else min(pad_width, width - 1)
            found.append(glue.join([left] * pad + row + [right] * pad))
        ends.append(len(found))
    return texts(found), np.array(ends, np.asarray(data_splits).dtype)


def ngrams(
    data: TensorLike,
    ngram_width: Any,
    separator: str = " ",
    pad_values: Any = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Tensor:
    """Runs of `ngram_width` neighbours in a vector of strings, joined: `tf.strings.ngrams(["a", "b", "c"], 2)`."""
    with name_scope(name, "StringNGrams", [data]):
        strings = convert_to_tensor(data, dtype=dt.string, name="data")
        if strings.shape.rank != 1:
            raise NotImplementedError(
                f"ngrams: data must be a vector, received shape {strings.shape}: for more the result would be ragged."
            )
        count = constant_value(shape(strings, out_type=dt.int64))
        splits = constant(np.array([0, int(count[0])]), dt.int64) if count is not None else _whole(strings)
        return ngrams_of_rows(
            strings, splits, ngram_width, separator, pad_values, padding_width, preserve_short_sequences
        )[0]


def ngrams_of_rows(
    strings: Tensor,
    splits: Tensor,
    ngram_width: Any,
    separator: str,
    pad_values: Any,
    padding_width: int | None,
    preserve_short_sequences: bool,
) -> tuple[Tensor, Tensor]:
    """The n-grams of each row of strings, and the splits of their rows."""
    if padding_width is not None and pad_values is None:
        raise ValueError("ngrams: padding_width needs pad_values.")
    left, right = (pad_values, pad_values) if isinstance(pad_values, (str, bytes)) else pad_values or ("", "")
    found, ends = string_n_grams(
        strings,
        splits,
        separator=separator,
        ngram_widths=[ngram_width] if isinstance(ngram_width, int) else list(ngram_width),
        left_pad=left,
        right_pad=right,
        pad_width=(-1 if padding_width is None else padding_width) if pad_values is not None else 0,
        preserve_short_sequences=preserve_short_sequences,
    )
    return found, ends


def _whole(strings: Tensor) -> Tensor:
    return concat([constant([0], dt.int64), shape(strings, out_type=dt.int64)], axis=0)
