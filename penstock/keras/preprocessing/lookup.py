"""StringLookup and IntegerLookup: tokens to indices, and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype, float32, int64, string
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.keras.preprocessing.vocabulary import TokenCounts, Vocabulary, as_bytes, batches_of
from penstock.ops.array.creation import fill
from penstock.ops.array.gathering import gather
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import expand_dims, squeeze
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.array.selection import one_hot, where_v2
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, greater, greater_equal, less, logical_and
from penstock.ops.math.reduce import reduce_all, reduce_sum
from penstock.ops.string.forms import string_to_hash_bucket_fast

_MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")


class TensorLayer(keras.layers.Layer):
    """A layer that runs as ops of penstock. Values of Python and NumPy that it is called on become tensors."""

    _penstock_native = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, (Tensor, keras.KerasTensor)):
            inputs = convert_to_tensor(inputs)
        return super().__call__(inputs, *args, **kwargs)


class _Lookup(TensorLayer):
    """The base of both layers. Index 0 is the mask token, if there is one; then come those of unknown tokens."""

    _token_type: Any = string

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: Any = None,
        oov_token: Any = None,
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("dtype", None)
        super().__init__(name=name, **kwargs)
        output_mode = {"binary": "multi_hot", "tf-idf": "tf_idf"}.get(output_mode, output_mode)
        if output_mode not in _MODES:
            raise ValueError(f"{type(self).__name__}: output_mode must be one of {_MODES}, received {output_mode!r}.")
        if sparse:
            raise ValueError(f"{type(self).__name__}: `sparse=True` is not supported: outputs are dense.")
        if invert and output_mode != "int":
            raise ValueError(f"`output_mode` must be `'int'` when `invert` is true. Received: {output_mode}")
        if num_oov_indices < 0 or (invert and num_oov_indices > 1):
            raise ValueError(
                f"`num_oov_indices` must be 0 or more, and at most 1 when `invert` is true, received {num_oov_indices}."
            )
        if max_tokens is not None and max_tokens <= 1:
            raise ValueError(f"If set, `max_tokens` must be greater than 1. Received: max_tokens={max_tokens}")
        self.max_tokens, self.num_oov_indices, self.invert = max_tokens, num_oov_indices, invert
        self.mask_token, self.oov_token = mask_token, oov_token
        self.output_mode, self.pad_to_max_tokens = output_mode, pad_to_max_tokens
        self._given, self._given_weights = vocabulary, idf_weights
        self._has_mask = mask_token is not None and output_mode == "int"  # only there it has an index
        self._start = self._has_mask + num_oov_indices
        self._vocabulary = Vocabulary([], self._start)
        self._weights_of_tokens: np.ndarray | None = None
        self._has_vocabulary = vocabulary is not None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        self.built = True

    # The vocabulary

    def _token(self, value: Any) -> Any:
        raise NotImplementedError

    def _shown(self, token: Any) -> Any:
        raise NotImplementedError

    def _specials(self) -> list[Any]:
        mask = [self._token(self.mask_token)] if self._has_mask else []
        return [*mask, *[self._token(self.oov_token)] * self.num_oov_indices]

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens in the order of their indices."""
        tokens = [self._shown(t) for t in self._vocabulary.tokens]
        return [*map(self._shown, self._specials()), *tokens] if include_special_tokens else tokens

    def vocabulary_size(self) -> int:
        """The number of indices, with those of the mask and of unknown tokens."""
        return self._start + len(self._vocabulary.tokens)

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Sets the tokens: a list or array, with or without the special ones in front, or a file with one a line."""
        if (idf_weights is not None) != (self.output_mode == "tf_idf"):
            raise ValueError("`idf_weights` must be set if `output_mode` is 'tf_idf', and only then.")
        if isinstance(vocabulary, (str, os.PathLike)):
            with open(vocabulary, "rb") as file:
                vocabulary = [line.rstrip(b"\r\n") for line in file]
        tokens = [self._token(v) for v in np.asarray(vocabulary, object).reshape(-1)]
        if not tokens:
            raise ValueError(f"Cannot set an empty vocabulary. Received: vocabulary={vocabulary}")
        specials = self._specials()
        has_specials = bool(specials) and tokens[: len(specials)] == specials
        tokens = tokens[len(specials) :] if has_specials else tokens
        if repeated := sorted({t for t in tokens if tokens.count(t) > 1} if len(set(tokens)) < len(tokens) else ()):
            raise ValueError(
                "The passed vocabulary has at least one repeated term. Please uniquify your dataset. The repeated "
                f"terms are: {repeated}"
            )
        if self.mask_token is not None and self._token(self.mask_token) in tokens:
            raise ValueError(
                f"Found reserved mask token at unexpected location in `vocabulary`. Leave out {self.mask_token!r}, or "
                f"begin with {specials}."
            )
        if self.max_tokens is not None and self._start + len(tokens) > self.max_tokens:
            raise ValueError(
                f"Attempted to set a vocabulary larger than the maximum vocab size. Received vocabulary size is "
                f"{self._start + len(tokens)}; `max_tokens` is {self.max_tokens}."
            )
        self._vocabulary = Vocabulary(tokens, self._start)
        if idf_weights is not None:
            weights = np.asarray(idf_weights, "float32")
            if has_specials:
                weights = weights[self._start :]
            if len(weights) != len(tokens):
                raise ValueError(f"`idf_weights` has {len(weights)} values for {len(tokens)} tokens.")
            self._set_weights_of_tokens(weights)

    def _set_weights_of_tokens(self, weights: np.ndarray) -> None:
        front = np.full([self._start], weights.mean() if len(weights) else 0.0, "float32")
        back = np.zeros([self._depth() - self.vocabulary_size()], "float32")
        self._weights_of_tokens = np.concatenate([front, weights.astype("float32"), back])

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Learns the vocabulary from an array, or from the batches of a dataset."""
        counts = TokenCounts()
        for batch in batches_of(data, steps):
            array = np.asarray(batch)
            rows = array.reshape([-1, array.shape[-1]]) if array.ndim > 1 else array.reshape([1, -1])
            counts.add([[self._token(v) for v in row] for row in rows])
        self.learn(counts)

    def learn(self, counts: TokenCounts) -> None:
        """Takes the most frequent tokens as the vocabulary."""
        if self._has_vocabulary:
            raise ValueError(
                f"Cannot adapt layer '{self.name}' after setting a static vocabulary via `vocabulary` argument or "
                "`set_vocabulary()` method."
            )
        special = [self._token(t) for t in (self.mask_token, self.oov_token) if t is not None]
        limit = None if self.max_tokens is None else self.max_tokens - self._start
        tokens = counts.most_frequent(special, limit)
        self._vocabulary = Vocabulary(tokens, self._start)
        if self.output_mode == "tf_idf":
            documents = np.array([counts.documents[t] for t in tokens], "float32")
            self._set_weights_of_tokens(np.log1p(np.float32(counts.rows) / (1 + documents)))

    # Calls

    def _depth(self) -> int:
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else self.vocabulary_size()

    def call(self, inputs: Any) -> Any:
        tensor = convert_to_tensor(inputs)
        if self.invert:
            return self._inverted(cast(tensor, int64))
        if tensor.dtype.base_dtype != self._token_type:
            tensor = cast(tensor, self._token_type)
        return encoded(self._indices(tensor), self.output_mode, self._depth(), self._weights_of_tokens)

    def _indices(self, tensor: Tensor) -> Tensor:
        oov = int(self._has_mask)
        if self.num_oov_indices <= 1:
            other = fill(shape_of(tensor), np.int64(oov if self.num_oov_indices else -1))
        else:
            other = self._bucket(tensor) + np.int64(oov)
        found = self._vocabulary.indices(tensor, other)
        if self.mask_token is not None:
            mask = convert_to_tensor(self._token(self.mask_token), dtype=self._token_type)
            # Without an index of its own it counts nowhere: no vector has this place.
            place = np.int64(0 if self._has_mask else np.iinfo(np.int64).max)
            found = where_v2(equal(tensor, mask), fill(shape_of(tensor), place), found)
        if not self.num_oov_indices:
            known = Assert(
                reduce_all(greater_equal(found, np.int64(0))),
                ["When `num_oov_indices=0` all inputs should be in vocabulary, found unknown values among:", tensor],
            )
            with control_dependencies([known] if known is not None else []):
                found = identity(found)
        found.set_shape(tensor.shape)
        return found

    def _bucket(self, tensor: Tensor) -> Any:
        raise NotImplementedError

    def _inverted(self, indices: Tensor) -> Tensor:
        tokens = [*self._specials(), *self._vocabulary.tokens]
        oov = self._token(self.oov_token)
        kind = object if self._token_type is string else np.int64
        table = convert_to_tensor(np.array([*tokens, oov], kind))
        known = logical_and(greater_equal(indices, np.int64(0)), less(indices, np.int64(len(tokens))))
        return gather(table, where_v2(known, indices, np.int64(len(tokens))))

    # Keras

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        if self.output_mode == "one_hot":
            return (*(shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape), self._depth())
        return (*shape[:-1], self._depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        kind = self._token_type.name if self.invert else "int64" if self.output_mode != "tf_idf" else "float32"
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), kind)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "invert": self.invert,
            "output_mode": self.output_mode,
            "pad_to_max_tokens": self.pad_to_max_tokens,
            "vocabulary": self.get_vocabulary(include_special_tokens=False) or None,
            "idf_weights": None
            if self._weights_of_tokens is None
            else self._weights_of_tokens[self._start : self.vocabulary_size()].tolist(),
        }


def encoded(indices: Tensor, mode: str, depth: int, weights: np.ndarray | None) -> Tensor:
    """Indices in the form of an output mode: themselves, or vectors of `depth` numbers."""
    if mode == "int":
        return indices
    if mode == "one_hot":
        rank = indices.shape.rank
        if rank is not None and rank > 1 and indices.shape.as_list()[-1] == 1:
            indices = squeeze(indices, axis=-1)
        hot: Tensor = one_hot(indices, depth, dtype=int64)
        return hot
    if indices.shape.rank == 0:
        indices = expand_dims(indices, 0)
    counts: Any = reduce_sum(one_hot(indices, depth, dtype=int64), axis=-2)
    if mode == "multi_hot":
        counts = cast(greater(counts, np.int64(0)), int64)
    elif mode == "tf_idf":
        if weights is None:
            raise ValueError("When `output_mode` is `'tf_idf'`, `idf_weights` must be provided.")
        counts = cast(counts, float32)
        counts = counts * weights
    result: Tensor = counts
    return result


@keras.saving.register_keras_serializable("penstock")
class StringLookup(_Lookup):
    """Maps strings to integers, or back with `invert=True`.

    >>> layer = tf.keras.layers.StringLookup(vocabulary=["a", "b"])
    >>> layer(tf.constant(["b", "z"]))
    <tf.Tensor: shape=(2,), dtype=int64, numpy=array([2, 0])>
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.encoding = encoding
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            name,
            **kwargs,
        )

    def _token(self, value: Any) -> bytes:
        return value.encode(self.encoding) if isinstance(value, str) else as_bytes(value)

    def _shown(self, token: bytes) -> str:
        return token.decode(self.encoding)

    def _bucket(self, tensor: Tensor) -> Any:
        return string_to_hash_bucket_fast(tensor, num_buckets=self.num_oov_indices)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "encoding": self.encoding}


@keras.saving.register_keras_serializable("penstock")
class IntegerLookup(_Lookup):
    """Maps integers of any range to indices, or back with `invert=True`.

    >>> tf.keras.layers.IntegerLookup(vocabulary=[12, 36])(tf.constant([36, 7]))
    <tf.Tensor: shape=(2,), dtype=int64, numpy=array([2, 0])>
    """

    _token_type = int64

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if as_dtype(vocabulary_dtype) != int64:
            raise ValueError(f"IntegerLookup: vocabulary_dtype must be int64, received {vocabulary_dtype}.")
        super().__init__(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            sparse,
            pad_to_max_tokens,
            name,
            **kwargs,
        )

    def _token(self, value: Any) -> int:
        return int(value)

    def _shown(self, token: int) -> int:
        return token

    def _bucket(self, tensor: Any) -> Any:
        return tensor % np.int64(self.num_oov_indices)
