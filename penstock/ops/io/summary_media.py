"""Summaries of images, sounds, texts and whole tensors."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from tensorboard.compat.proto import summary_pb2

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Tensor
from penstock.graph.tensor_proto import tensor_proto
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.io.summary import summary_scope

_RED = np.array([255, 0, 0, 255], np.uint8)
_SMALL = 1e-6  # a picture whose values are all below this is black
_PIXELS = Types(dt.uint8, dt.float32, dt.float16, dt.float64, default=dt.float32)


def _text(tag: Any) -> str:
    return str(np.asarray(tag, object).reshape(-1)[0].decode())


def _serialized(summary: Any) -> np.ndarray:
    return np.array(summary.SerializeToString(), object)


@op("ImageSummary", "string, T -> summary: string", host=True, no_gradient=True, shape=shapes.scalar, T=_PIXELS)
def image_summary(tag: Any, tensor: Any, *, max_images: int = 3, bad_color: np.ndarray = _RED) -> Any:
    if np.ndim(tag) != 0:
        raise InvalidArgumentError(f"The tag must be a scalar, received shape {np.shape(tag)}.")
    if tensor.ndim != 4 or tensor.shape[3] not in (1, 3, 4):
        raise InvalidArgumentError(f"Tensor must be 4-D with last dim 1, 3, or 4, not {list(tensor.shape)}")
    summary = summary_pb2.Summary()
    shown = min(max_images, len(tensor))
    for i in range(shown):
        name = f"{_text(tag)}/image/{i}" if max_images > 1 else f"{_text(tag)}/image"
        pixels = tensor[i] if tensor.dtype == np.uint8 else _as_bytes(tensor[i], bad_color)
        height, width, depth = pixels.shape
        image = summary.value.add(tag=name).image
        image.height, image.width, image.colorspace = height, width, depth
        image.encoded_image_string = _png(pixels)
    return _serialized(summary)


def _as_bytes(image: np.ndarray, bad_color: np.ndarray) -> np.ndarray:
    """Pixels scaled to bytes: from 0 where none is negative, around 128 otherwise; those not finite in `bad_color`."""
    finite = np.isfinite(image).all(axis=-1)
    good = image[finite].astype(np.float32)
    low, high = (float(good.min()), float(good.max())) if good.size else (0.0, 0.0)
    if low < 0:
        largest, middle, room = max(-low, high), 128.0, 127.0
    else:
        largest, middle, room = high, 0.0, 255.0
    scale = np.float32(0.0 if largest < _SMALL else room / largest)
    pixels = np.empty(image.shape, np.uint8)
    pixels[finite] = (good * scale + np.float32(middle)).astype(np.uint8)
    pixels[~finite] = np.resize(bad_color, image.shape[-1])
    return pixels


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image  # start-up

    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


@op("AudioSummaryV2", "string, float32, float32 -> summary: string", host=True, no_gradient=True, shape=shapes.scalar)
def audio_summary_v2(tag: Any, tensor: Any, sample_rate: Any, *, max_outputs: int = 3) -> Any:
    if tensor.ndim not in (2, 3):
        raise InvalidArgumentError(f"Tensor must be 3-D or 2-D, got: {list(tensor.shape)}")
    if not float(sample_rate) > 0:
        raise InvalidArgumentError(f"sample_rate must be > 0, received {float(sample_rate)}.")
    clips = tensor if tensor.ndim == 3 else tensor[..., None]
    summary = summary_pb2.Summary()
    for i in range(min(max_outputs, len(clips))):
        name = f"{_text(tag)}/audio/{i}" if max_outputs > 1 else f"{_text(tag)}/audio"
        frames, channels = clips[i].shape
        audio = summary.value.add(tag=name).audio
        audio.sample_rate, audio.num_channels, audio.length_frames = float(sample_rate), channels, frames
        audio.content_type = "audio/wav"
        audio.encoded_audio_string = _wav(clips[i], int(float(sample_rate)))
    return _serialized(summary)


@op("EncodeWav", "float32, int32 -> contents: string", host=True, no_gradient=True, shape=shapes.scalar)
def encode_wav(audio: Any, sample_rate: Any) -> Any:
    if np.ndim(audio) != 2 or not np.shape(audio)[1]:
        raise InvalidArgumentError(f"EncodeWav: audio must be 2-D, [length, channels], received {np.shape(audio)}.")
    if int(sample_rate) <= 0:
        raise InvalidArgumentError(f"EncodeWav: sample_rate must be > 0, received {int(sample_rate)}.")
    return np.array(_wav(np.asarray(audio), int(sample_rate)), object)


def _wav(clip: np.ndarray, rate: int) -> bytes:
    samples = np.clip(np.round(clip * 32767.0), -32768, 32767).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(clip.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


@op("TensorSummaryV2", "string, T, string -> summary: string", host=True, no_gradient=True, shape=shapes.scalar)
def tensor_summary_v2(tag: Any, tensor: Any, serialized_summary_metadata: Any, *, T: DType) -> Any:
    summary = summary_pb2.Summary()
    value = summary.value.add(tag=_text(tag))
    value.tensor.CopyFrom(tensor_proto(tensor, T))
    metadata = np.asarray(serialized_summary_metadata, object).reshape(-1)[0]
    value.metadata.CopyFrom(summary_pb2.SummaryMetadata.FromString(metadata))
    return _serialized(summary)


def image(
    name: str, tensor: TensorLike, max_outputs: int = 3, collections: Any = None, family: str | None = None
) -> Tensor:
    """A summary of up to `max_outputs` images of a batch [batch, height, width, channels].

    >>> tf.summary.image("input", images)
    """
    with summary_scope(name, "image", family, collections, [tensor]) as scope:
        return scope.add(image_summary(scope.tag("tag"), tensor, max_images=max_outputs, name=scope.name))


def audio(
    name: str,
    tensor: TensorLike,
    sample_rate: TensorLike,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Tensor:
    """A summary of up to `max_outputs` sounds of a batch [batch, frames, channels] or [batch, frames].

    >>> tf.summary.audio("speech", clips, sample_rate=16000)
    """
    with summary_scope(name, "audio", family, collections, [tensor]) as scope:
        rate = convert_to_tensor(sample_rate, dtype=dt.float32, name="sample_rate")
        return scope.add(audio_summary_v2(scope.tag("tag"), tensor, rate, max_outputs=max_outputs, name=scope.name))


def tensor_summary(
    name: str,
    tensor: TensorLike,
    summary_description: str | None = None,
    collections: Any = None,
    summary_metadata: Any = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """A summary of a whole tensor, for a plugin of TensorBoard that the metadata names."""
    metadata = summary_pb2.SummaryMetadata()
    if summary_metadata is not None:
        metadata.CopyFrom(summary_metadata)
    if display_name is not None:
        metadata.display_name = display_name
    if summary_description is not None:
        metadata.summary_description = summary_description
    with summary_scope(name, "TensorSummary", family, collections, [tensor]) as scope:
        return scope.add(tensor_summary_v2(scope.tag("tag"), tensor, metadata.SerializeToString(), name=scope.name))


def text(name: str, tensor: TensorLike, collections: Any = None) -> Tensor:
    """A summary of strings, shown as Markdown.

    >>> tf.summary.text("note", tf.constant("it **works**"))
    """
    tensor = convert_to_tensor(tensor)
    if tensor.dtype.base_dtype is not dt.string:
        raise ValueError(f"Expected tensor {tensor.name} to have dtype string, got {tensor.dtype.name}")
    metadata = summary_pb2.SummaryMetadata()
    metadata.plugin_data.plugin_name = "text"
    return tensor_summary(name, tensor, collections=collections, summary_metadata=metadata)
