"""TextVectorization: texts to the indices or counts of their words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import int64, string
from penstock.graph.operation import Tensor
from penstock.graph.sparse_tensor import SparseTensor
from penstock.keras.preprocessing.lookup import StringLookup, TensorLayer, encoded
from penstock.keras.preprocessing.vocabulary import TokenCounts, batches_of
from penstock.ops.array.gathering import gather
from penstock.ops.array.joining import stack
from penstock.ops.array.padding import pad
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import expand_dims, size, squeeze
from penstock.ops.array.sorting import searchsorted
from penstock.ops.math.arithmetic import maximum
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_max
from penstock.ops.sparse.dense import sparse_to_dense
from penstock.ops.string.forms import lower
from penstock.ops.string.regex import regex_replace
from penstock.ops.string.split import split as split_strings
from penstock.ops.string.split import string_n_grams

_PUNCTUATION = r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']'
_BETWEEN = "\x1f"  # a control character that separates units, put between the characters of a text


class _Rows:
    """Tokens of texts: all of them, and where those of each text begin and end."""

    def __init__(self, tokens: Tensor, splits: Tensor) -> None:
        self.tokens, self.splits = tokens, splits

    @classmethod
    def of(cls, sparse: SparseTensor) -> _Rows:
        """The rows of a sparse matrix whose values are tokens."""
        rows: Any = sparse.indices
        shape: Any = sparse.dense_shape
        ends = range_of(shape[0] + 1)
        return cls(sparse.values, cast(searchsorted(rows[:, 0], ends), int64))

    def dense(self, values: Tensor, width: int | None, fill: Any) -> Tensor:
        """One value per token as a matrix with a row per text, filled up, and cut at `width`."""
        splits: Any = self.splits
        place: Any = range_of(size(values, out_type=int64))
        row: Any = cast(searchsorted(splits, place, side="right"), int64)
        row = row - np.int64(1)
        column = place - gather(splits, row)
        lengths = splits[1:] - splits[:-1]
        widest = maximum(reduce_max(pad(lengths, [[0, 1]])), np.int64(width or 0))
        matrix: Any = sparse_to_dense(
            stack([row, column], axis=1), stack([size(lengths, out_type=int64), widest]), values, fill
        )
        cut: Tensor = matrix if width is None else matrix[:, :width]
        return cut


@keras.saving.register_keras_serializable("penstock")
class TextVectorization(TensorLayer):
    """Splits texts into words, and gives their indices, or the counts of all words.

    >>> layer = tf.keras.layers.TextVectorization(vocabulary=["a", "cat"], output_sequence_length=3)
    >>> layer(tf.constant(["A cat!"]))
    <tf.Tensor: shape=(1, 3), dtype=int64, numpy=array([[2, 3, 0]])>
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: Any = "lower_and_strip_punctuation",
        split: Any = "whitespace",
        ngrams: Any = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Any = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("dtype", None)
        super().__init__(name=name, **kwargs)
        if ragged:
            raise ValueError("TextVectorization: `ragged=True` is not supported: outputs are dense.")
        if standardize not in (None, "lower_and_strip_punctuation", "lower", "strip_punctuation") and not callable(
            standardize
        ):
            raise ValueError(f"TextVectorization: unknown value for `standardize`: {standardize!r}.")
        if split not in (None, "whitespace", "character") and not callable(split):
            raise ValueError(f"TextVectorization: unknown value for `split`: {split!r}.")
        if output_mode != "int" and output_sequence_length is not None:
            raise ValueError("`output_sequence_length` must not be set if `output_mode` is not 'int'.")
        self._standardize, self._split, self._ngrams = standardize, split, ngrams
        self._widths = tuple(range(1, ngrams + 1)) if isinstance(ngrams, int) else ngrams
        self._length = output_sequence_length
        self._lookup = StringLookup(
            max_tokens=max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            sparse=sparse,
            pad_to_max_tokens=pad_to_max_tokens,
            encoding=encoding,
        )
        self.built = True

    # The vocabulary

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """The words in the order of their indices."""
        return self._lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """The number of indices, with those of padding and unknown words."""
        return self._lookup.vocabulary_size()

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Sets the words: a list or array, or a file with one a line."""
        self._lookup.set_vocabulary(vocabulary, idf_weights)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learns the words of an array of texts, or of the batches of a dataset."""
        counts = TokenCounts()
        for batch in batches_of(data, steps):
            rows = self._rows(convert_to_tensor(np.asarray(batch, object)))
            tokens, ends = np.asarray(rows.tokens).tolist(), np.asarray(rows.splits).tolist()
            counts.add(tokens[a:b] for a, b in itertools.pairwise(ends))
        self._lookup.learn(counts)

    # Calls

    def _rows(self, texts: Any) -> _Rows:
        if callable(self._standardize):
            texts = self._standardize(texts)
        elif self._standardize is not None:
            texts = lower(texts) if "lower" in self._standardize else texts
            texts = regex_replace(texts, _PUNCTUATION, "") if "punctuation" in self._standardize else texts
        rank = texts.shape.rank
        if self._split is None:
            raise ValueError("TextVectorization: split=None is for tokens, which StringLookup takes.")
        if rank == 0:
            texts = expand_dims(texts, 0)
        elif rank is not None and rank > 1:
            if texts.shape.as_list()[-1] != 1:
                raise ValueError(
                    "When using `TextVectorization` to tokenize strings, the input rank must be 1 or the last shape "
                    f"dimension must be 1. Received: inputs.shape={texts.shape} with rank={rank}"
                )
            texts = squeeze(texts, axis=-1)
        if self._split == "whitespace":
            parts = split_strings(texts)
        elif self._split == "character":
            marked = regex_replace(texts, "(?s)(.)", rf"\1{_BETWEEN}")
            parts = split_strings(regex_replace(marked, f"{_BETWEEN}$", ""), sep=_BETWEEN)
        else:
            parts = self._split(texts)
            if not isinstance(parts, SparseTensor):
                raise TypeError(f"TextVectorization: `split` must return a SparseTensor of tokens, got {parts!r}.")
        rows = _Rows.of(parts)
        if self._widths is None:
            return rows
        tokens, splits = string_n_grams(
            rows.tokens,
            rows.splits,
            separator=" ",
            ngram_widths=list(self._widths),
            left_pad="",
            right_pad="",
            pad_width=0,
            preserve_short_sequences=False,
        )
        return _Rows(tokens, splits)

    def call(self, inputs: Any) -> Any:
        texts = convert_to_tensor(inputs, dtype=string)
        rows = self._rows(texts)
        lookup, mode = self._lookup, self._lookup.output_mode
        indices = lookup._indices(rows.tokens)
        found: Any = rows.dense(indices, self._length, np.int64(0 if mode == "int" else -1))
        known = texts.shape.as_list()[:1] if texts.shape.rank else [1]
        found.set_shape([*known, self._length])
        if mode != "int":
            found = encoded(found, mode, lookup._depth(), lookup._weights_of_tokens)
        return squeeze(found, axis=0) if texts.shape.rank == 0 else found

    # Keras

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        if self._lookup.output_mode == "int":
            return (input_shape[0], self._length)
        return (input_shape[0], self._lookup._depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        kind = "float32" if self._lookup.output_mode == "tf_idf" else "int64"
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), kind)

    def get_config(self) -> dict[str, Any]:
        config = self._lookup.get_config()
        shared = ("max_tokens", "output_mode", "pad_to_max_tokens", "vocabulary", "idf_weights", "encoding")
        return {
            **super().get_config(),
            **{name: config[name] for name in shared},
            "standardize": self._standardize,
            "split": self._split,
            "ngrams": self._ngrams,
            "output_sequence_length": self._length,
        }
