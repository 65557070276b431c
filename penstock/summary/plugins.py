"""Summaries that TensorBoard's plugins show: numbers, histograms, pictures, sounds, texts. All are tensors."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.plugins.audio.plugin_data_pb2 import AudioPluginData

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.array.creation import fill, zeros
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.passthrough import stop_gradient
from penstock.ops.array.reshaping import reshape, shape, size
from penstock.ops.array.selection import one_hot, where_v2
from penstock.ops.array.spacing import linspace
from penstock.ops.control.folds import map_fn
from penstock.ops.image.codecs import encode_png
from penstock.ops.image.color import convert_image_dtype
from penstock.ops.io.summary_media import encode_wav
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, logical_or
from penstock.ops.math.histogram import histogram_fixed_width
from penstock.ops.math.reduce import reduce_max, reduce_min
from penstock.ops.string.forms import as_string
from penstock.summary.recording import summary_scope, write

_BUCKETS = 30


def _metadata(plugin: str, description: str | None, content: bytes = b"") -> SummaryMetadata:
    metadata = SummaryMetadata(summary_description=description or "")
    metadata.plugin_data.plugin_name = plugin
    metadata.plugin_data.content = content
    return metadata


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Tensor:
    """Writes a number.

    >>> tf.summary.scalar("loss", loss, step=10)
    """
    with summary_scope(name, "scalar_summary") as (tag, _):
        value = convert_to_tensor(data)
        value.shape.assert_has_rank(0)
        return write(tag, cast(value, dt.float32), step, _metadata("scalars", description))


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: str | None = None
) -> Tensor:
    """Writes how values are distributed, as `buckets` (30) buckets of equal width.

    >>> tf.summary.histogram("weights", w, step=10)
    """
    with summary_scope(name, "histogram_summary") as (tag, _):
        return write(
            tag,
            lambda: _bucketed(stop_gradient(convert_to_tensor(data)), _BUCKETS if buckets is None else buckets),
            step,
            _metadata("histograms", description),
        )


def _bucketed(data: Tensor, count: int) -> Tensor:
    """Rows with the left edge, the right edge and the number of values of each bucket."""
    if count <= 0:
        return zeros([0, 3], dt.float64)
    flat = cast(reshape(data, [-1]), dt.float64)
    is_empty = equal(size(flat), 0)
    nothing = zeros([], dt.float64)
    low: Any = where_v2(is_empty, nothing, reduce_min(flat))
    high = where_v2(is_empty, nothing, reduce_max(flat))
    is_single = equal(low, high)
    # Values that are all the same are in the last bucket, which like all others has no width.
    spread = histogram_fixed_width(flat, stack([low, where_v2(is_single, low + 1.0, high)]), count)
    last = one_hot(count - 1, count, dtype=dt.float64) * cast(size(flat), dt.float64)
    counts = where_v2(logical_or(is_empty, is_single), last, cast(spread, dt.float64))
    edges: Any = linspace(low, high, count + 1)
    return stack([edges[:-1], concat([edges[1:-1], reshape(high, [1])], 0), counts], axis=1)


def image(name: str, data: Any, step: Any = None, max_outputs: int = 3, description: str | None = None) -> Tensor:
    """Writes pictures, at most `max_outputs` of a batch; numbers with a point are from 0 to 1.

    >>> tf.summary.image("samples", batch, step=10)
    """
    with summary_scope(name, "image_summary") as (tag, _):
        return write(
            tag, lambda: _encoded(convert_to_tensor(data), max_outputs), step, _metadata("images", description)
        )


def _encoded(data: Tensor, max_outputs: int) -> Tensor:
    data.shape.assert_has_rank(4)
    pixels: Any = convert_image_dtype(data, dt.uint8, saturate=True)
    sizes: Any = shape(pixels)
    files = map_fn(encode_png, pixels[:max_outputs], dtype=dt.string)
    return concat([stack([as_string(sizes[2]), as_string(sizes[1])]), files], 0)


def audio(
    name: str,
    data: Any,
    sample_rate: Any,
    step: Any = None,
    max_outputs: int = 3,
    encoding: str | None = None,
    description: str | None = None,
) -> Tensor:
    """Writes sounds of shape [clips, length, channels], at most `max_outputs`, as WAV; numbers are from -1 to 1.

    >>> tf.summary.audio("speech", clips, sample_rate=16000, step=10)
    """
    if encoding not in (None, "wav"):
        raise ValueError(f"tf.summary.audio: the only encoding is 'wav', received {encoding!r}.")
    with summary_scope(name, "audio_summary") as (tag, _):
        metadata = _metadata("audio", description, AudioPluginData(encoding=AudioPluginData.WAV).SerializeToString())
        return write(tag, lambda: _clips(convert_to_tensor(data), sample_rate, max_outputs), step, metadata)


def _clips(data: Any, sample_rate: Any, max_outputs: int) -> Tensor:
    """Rows with a WAV file and an empty label."""
    data.shape.assert_has_rank(3)
    files = map_fn(lambda clip: encode_wav(clip, sample_rate), data[:max_outputs], dtype=dt.string)
    return stack([files, fill(shape(files), "")], axis=1)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> Tensor:
    """Writes texts, which may be Markdown: a string, or a tensor of strings.

    >>> tf.summary.text("note", "**started**", step=0)
    """
    with summary_scope(name, "text_summary") as (tag, _):
        return write(tag, convert_to_tensor(data, dtype=dt.string), step, _metadata("text", description))
