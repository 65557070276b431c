"""Ops that read and write image files: PNG, JPEG, GIF, BMP. They run on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.ops.image import file_formats, png
from penstock.ops.image.color import convert_image_dtype
from penstock.ops.math import compare
from penstock.ops.random import stateful as random
from penstock.ops.string import forms as string_forms

_UINT8, _INT32 = dt.uint8, dt.int32
_PNG_TYPES = Types(dt.uint8, dt.uint16, default=dt.uint8)


# Common parts of the decoders.


def _file(contents: Any, op_name: str) -> bytes:
    if np.ndim(contents) != 0:
        raise _invalid(op_name, f"`contents` must be scalar but got shape {list(np.shape(contents))}")
    data: bytes = np.asarray(contents, object).item()
    return data


def _invalid(op_name: str, reason: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{op_name}: {reason}")


def _decoded(
    contents: Any,
    op_name: str,
    channels: int,
    dtype: DType = _UINT8,
    animations: bool = False,
    jpeg: dict[str, Any] | None = None,
) -> np.ndarray:
    """The image in a file of any format; GIF files have a dimension of frames if `animations`."""
    data = _file(contents, op_name)
    try:
        if channels not in (0, 1, 3, 4):
            raise ValueError(f"`channels` must be 0, 1, 3 or 4 but got {channels}")
        kind = file_formats.format_of(data)
        if kind == "PNG":
            pixels = file_formats.read_png(data, channels, wide=dtype is not _UINT8)
        elif kind == "JPEG":
            pixels = file_formats.read_jpeg(data, channels, **(jpeg or {}))
        elif kind == "GIF":
            if channels not in (0, 3):
                raise ValueError(f"channels must be 0 or 3 for a GIF file, got {channels}")
            pixels = _gif(data, animations)
        else:
            pixels = file_formats.read_bmp(data, channels)
    except ValueError as error:
        raise _invalid(op_name, error) from error
    return _retyped(pixels, dtype)


def _gif(data: bytes, animations: bool) -> np.ndarray:
    frames = file_formats.read_gif(data)
    if animations:
        return frames
    if len(frames) > 1:
        raise ValueError(
            f"Got {len(frames)} frames, but animated gifs can only be decoded by tf.io.decode_gif or tf.io.decode_image"
        )
    only: np.ndarray = frames[0]
    return only


def _retyped(pixels: np.ndarray, dtype: DType) -> np.ndarray:
    wanted = dtype.as_numpy_dtype
    if pixels.dtype == wanted:
        return np.ascontiguousarray(pixels)
    if dtype is dt.float32:
        pixels = pixels.astype(np.float32) * np.float32(1 / np.iinfo(pixels.dtype).max)
    else:
        pixels = pixels.astype(wanted) * wanted(256)
    return pixels


def _only(contents: Any, op_name: str, *kinds: str) -> None:
    """Raises an error for files of other formats than `kinds`: those have other ops."""
    try:
        kind = file_formats.format_of(_file(contents, op_name))
    except ValueError as error:
        raise _invalid(op_name, error) from error
    if kind not in kinds:
        raise _invalid(
            op_name,
            f"Trying to decode {kind} format using a wrong op. Use `decode_{kind.lower()}` or `decode_image` instead.",
        )


def _image_shape(*leading: int | None) -> Callable[[Operation], list[TensorShape]]:
    def rule(op: Operation) -> list[TensorShape]:
        shapes.require_rank(op.input_list[0].shape, 0)
        channels = op.attrs.get("channels", 3)
        if channels < 0:
            raise ValueError(f"channels must be non-negative, got {channels}")
        return [TensorShape.of((*leading, channels or None))]

    return rule


def _jpeg_options(
    op_name: str, ratio: int, try_recover_truncated: bool, acceptable_fraction: float, dct_method: str
) -> dict[str, Any]:
    if ratio not in (1, 2, 4, 8):
        raise _invalid(op_name, f"ratio must be 1, 2, 4, or 8, got {ratio}")
    if dct_method not in ("", "INTEGER_FAST", "INTEGER_ACCURATE"):
        raise _invalid(op_name, f"dct_method must be one of '', 'INTEGER_FAST', 'INTEGER_ACCURATE', got '{dct_method}'")
    # Pillow does not tell how many lines a truncated file has, so any number is accepted, or only all of them.
    return {"ratio": ratio, "recover_truncated": try_recover_truncated and acceptable_fraction < 1}


# Decoders. Pillow always decodes JPEG files accurately and upscales the colours smoothly, for all values of the attrs.


@op(
    "DecodePng", "string -> image: dtype", host=True, no_gradient=True, shape=_image_shape(None, None), dtype=_PNG_TYPES
)
def decode_png(contents: Any, *, channels: int = 0, dtype: DType = _UINT8) -> np.ndarray:
    """The pixels of a PNG file, [height, width, channels]; 0 channels means as many as the file has."""
    _only(contents, "DecodePng", "PNG", "JPEG", "GIF")
    return _decoded(contents, "DecodePng", channels, dtype)


@op("DecodeJpeg", "string -> image: uint8", host=True, no_gradient=True, shape=_image_shape(None, None))
def decode_jpeg(
    contents: Any,
    *,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
) -> np.ndarray:
    """The pixels of a JPEG file, [height, width, channels], at 1 / ratio of its size."""
    options = _jpeg_options("DecodeJpeg", ratio, try_recover_truncated, acceptable_fraction, dct_method)
    _only(contents, "DecodeJpeg", "PNG", "JPEG", "GIF")
    return _decoded(contents, "DecodeJpeg", channels, jpeg=options)


def _window_shape(op: Operation) -> list[TensorShape]:
    (shape,) = _image_shape(None, None)(op)
    window = shapes.require_rank(op.input_list[1].shape, 1).as_list()[0]
    if window not in (None, 4):
        raise ValueError(f"Dimension must be 4 but is {window}")
    _, _, height, width = shapes.require_rank(constant_value_as_shape(op.input_list[1]), 4).as_list()
    return [TensorShape.of((height, width, shape.as_list()[2]))]


@op("DecodeAndCropJpeg", "string, int32 -> image: uint8", host=True, no_gradient=True, shape=_window_shape)
def decode_and_crop_jpeg(
    contents: Any,
    crop_window: Any,
    *,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
) -> np.ndarray:
    """The part of a JPEG file in the window [y, x, height, width]."""
    name = "DecodeAndCropJpeg"
    options = _jpeg_options(name, ratio, try_recover_truncated, acceptable_fraction, dct_method)
    _only(contents, name, "JPEG")
    if np.shape(crop_window) != (4,):
        raise _invalid(name, f"crop_window must have four elements, received shape {list(np.shape(crop_window))}")
    return _decoded(contents, name, channels, jpeg={**options, "crop": tuple(int(v) for v in crop_window)})


@op("DecodeBmp", "string -> image: uint8", host=True, no_gradient=True, shape=_image_shape(None, None))
def decode_bmp(contents: Any, *, channels: int = 0) -> np.ndarray:
    """The pixels of a BMP file, [height, width, channels]."""
    _only(contents, "DecodeBmp", "BMP")
    return _decoded(contents, "DecodeBmp", channels)


@op("DecodeGif", "string -> image: uint8", host=True, no_gradient=True, shape=_image_shape(None, None, None))
def decode_gif(contents: Any) -> np.ndarray:
    """The frames of a GIF file, [frames, height, width, 3]."""
    _only(contents, "DecodeGif", "PNG", "JPEG", "GIF")
    pixels = _decoded(contents, "DecodeGif", 3, animations=True)
    return pixels if pixels.ndim == 4 else pixels[None]


@op(
    "DecodeImage",
    "string -> image: dtype",
    host=True,
    no_gradient=True,
    shape=shapes.unknown,
    dtype=Types(dt.uint8, dt.uint16, dt.float32, default=dt.uint8),
)
def decode_image_op(
    contents: Any, *, channels: int = 0, dtype: DType = _UINT8, expand_animations: bool = True
) -> np.ndarray:
    data = _file(contents, "DecodeImage")
    if not expand_animations and data.startswith(b"GIF8"):
        try:
            return _retyped(file_formats.read_gif(data, first_only=True)[0], dtype)
        except ValueError as error:
            raise _invalid("DecodeImage", error) from error
    return _decoded(contents, "DecodeImage", channels, dtype, animations=True)


@op(
    "ExtractJpegShape",
    "string -> image_shape: output_type",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((3,))],
    output_type=Types(dt.int32, dt.int64, default=dt.int32),
)
def extract_jpeg_shape(contents: Any, *, output_type: DType = _INT32) -> np.ndarray:
    """Height, width and channels of a JPEG file."""
    try:
        shape = file_formats.jpeg_shape(_file(contents, "ExtractJpegShape"))
    except ValueError as error:
        raise _invalid("ExtractJpegShape", error) from error
    return np.array(shape, output_type.as_numpy_dtype)


def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: DTypeLike = _UINT8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The pixels of an image file of any format; GIF files have a dimension of frames in front.

    >>> tf.image.decode_image(tf.read_file("photo.jpg"), channels=3)
    """
    with name_scope(name, "decode_image"):
        wanted = as_dtype(dtype).base_dtype
        decoded = wanted if wanted in (dt.float32, dt.uint8, dt.uint16) else dt.uint16
        image: Tensor = decode_image_op(
            contents, channels=channels or 0, expand_animations=expand_animations, dtype=decoded
        )
        if decoded != wanted:
            image = convert_image_dtype(image, wanted)
        if not expand_animations:
            image.set_shape([None, None, channels or None])
        return image


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """True if the contents of a file look like JPEG.

    >>> tf.image.is_jpeg(tf.read_file("photo.jpg"))
    """
    with name_scope(name, "is_jpeg"):
        start = string_forms.substr(contents, 0, 3)
        found: Tensor = compare.equal(start, b"\xff\xd8\xff", name=name)
        return found


# Encoders.


def _file_shape(op: Operation) -> list[TensorShape]:
    shape = op.input_list[0].shape
    if shape.rank is not None and shape.rank < 3:
        raise ValueError(f"Shape must be at least rank 3 but is rank {shape.rank}")
    return [TensorShape.of(None) if shape.rank is None else shape[:-3]]


def _require_image(image: np.ndarray, op_name: str, channels: tuple[int, ...]) -> None:
    if image.ndim < 3:
        raise _invalid(op_name, f"image must be 3-dimensional, received shape {list(image.shape)}")
    if image.shape[-1] not in channels:
        listed = " or ".join(map(str, channels))
        raise _invalid(op_name, f"image must have {listed} channels, received shape {list(image.shape)}")
    if 0 in image.shape[-3:]:
        raise _invalid(op_name, f"image must not be empty, received shape {list(image.shape)}")


@op("EncodePng", "T -> contents: string", host=True, no_gradient=True, shape=_file_shape, T=_PNG_TYPES)
def encode_png_op(image: np.ndarray, *, compression: int = -1) -> np.ndarray:
    if not -1 <= compression <= 9:
        raise _invalid("EncodePng", f"compression should be in [-1,9], got {compression}")
    _require_image(image, "EncodePng", (1, 2, 3, 4))
    files = [png.write(one, compression) for one in image.reshape(-1, *image.shape[-3:])]
    return string_forms.texts(files, image.shape[:-3])


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """An image of uint8 or uint16 as a PNG file; `compression` is 0 (fast) to 9 (small), -1 for in between.

    >>> tf.image.encode_png(image)
    """
    contents: Tensor = encode_png_op(convert_to_tensor(image), compression=compression, name=name)
    return contents


def _jpeg_file_shape(op: Operation) -> list[TensorShape]:
    shapes.require_rank(op.input_list[0].shape, 3)
    if "format" in op.attrs:
        string_forms.require_one_of(op, "format", ("", "grayscale", "rgb"))
        string_forms.require_one_of(op, "density_unit", ("in", "cm"))
    return [TensorShape.of(())]


def _jpeg(image: np.ndarray, op_name: str, quality: int, **options: Any) -> np.ndarray:
    if not 0 <= quality <= 100:
        raise _invalid(op_name, f"quality must be in [0,100], got {quality}")
    if image.ndim != 3:
        raise _invalid(op_name, f"image must be 3-dimensional, received shape {list(image.shape)}")
    _require_image(image, op_name, (1, 3))
    if max(image.shape[:2]) > 65500:
        raise _invalid(op_name, f"image is too large for JPEG: {image.shape[0]} x {image.shape[1]} pixels")
    return string_forms.texts([file_formats.write_jpeg(image, quality, **options)], ())


@op("EncodeJpeg", "uint8 -> contents: string", host=True, no_gradient=True, shape=_jpeg_file_shape)
def encode_jpeg(
    image: np.ndarray,
    *,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
) -> np.ndarray:
    """An image of one or three channels of uint8 as a JPEG file."""
    expected = {"grayscale": 1, "rgb": 3}.get(format)
    if expected is not None and image.ndim == 3 and image.shape[2] != expected:
        raise _invalid("EncodeJpeg", f"format {format} expects {expected} channels, received shape {list(image.shape)}")
    metadata = xmp_metadata.encode() if isinstance(xmp_metadata, str) else xmp_metadata
    return _jpeg(
        image,
        "EncodeJpeg",
        quality,
        progressive=progressive,
        optimize=optimize_size,
        chroma_downsampling=chroma_downsampling,
        density_unit=density_unit,
        density=(x_density, y_density),
        xmp_metadata=metadata,
    )


@op(
    "EncodeJpegVariableQuality", "uint8, int32 -> contents: string", host=True, no_gradient=True, shape=_jpeg_file_shape
)
def encode_jpeg_variable_quality(images: np.ndarray, quality: Any) -> np.ndarray:
    if np.ndim(quality) != 0:
        raise _invalid("EncodeJpegVariableQuality", f"quality must be scalar: {list(np.shape(quality))}")
    return _jpeg(images, "EncodeJpegVariableQuality", int(quality))


def adjust_jpeg_quality(
    image: TensorLike, jpeg_quality: TensorLike, dct_method: str = "", name: str | None = None
) -> Tensor:
    """The image after it is written as JPEG of that quality and read again.

    >>> tf.image.adjust_jpeg_quality(image, 75)
    """
    with name_scope(name, "adjust_jpeg_quality", [image]):
        image = convert_to_tensor(image, name="image")
        given, channels = image.dtype, image.shape.as_list()[-1]
        image = convert_image_dtype(image, dt.uint8, saturate=True)
        if not isinstance(jpeg_quality, Tensor):
            jpeg_quality = convert_to_tensor(jpeg_quality, dtype=dt.int32)
        contents = encode_jpeg_variable_quality(image, jpeg_quality)
        image = decode_jpeg(contents, channels=channels or 0, dct_method=dct_method)
        return convert_image_dtype(image, given, saturate=True)


def random_jpeg_quality(
    image: TensorLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """`adjust_jpeg_quality` with a random quality in [min_jpeg_quality, max_jpeg_quality).

    >>> tf.image.random_jpeg_quality(image, 75, 95)
    """
    if not (0 <= min_jpeg_quality <= 100 and 0 <= max_jpeg_quality <= 100):
        raise ValueError(
            f"jpeg encoding range must be between 0 and 100, received {min_jpeg_quality} and {max_jpeg_quality}."
        )
    if min_jpeg_quality >= max_jpeg_quality:
        raise ValueError(
            "`min_jpeg_quality` must be less than `max_jpeg_quality`, received "
            f"{min_jpeg_quality} and {max_jpeg_quality}."
        )
    quality = random.random_uniform([], min_jpeg_quality, max_jpeg_quality, seed=seed, dtype=dt.int32)
    return adjust_jpeg_quality(image, quality)
