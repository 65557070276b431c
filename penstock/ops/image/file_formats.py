"""Converts image files to arrays and back. Bad files raise ValueError before anything large is allocated."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from penstock.ops.image import png

# libpng's weights of red, green and blue in gray, in units of 2**-15, for TensorFlow's 0.299 and 0.587.
_GRAY = np.array([9797, 19234, 3737], np.int64)

_SIGNATURES = ((b"\xff\xd8\xff", "JPEG"), (b"\x89PN", "PNG"), (b"GIF8", "GIF"), (b"BM", "BMP"))


def format_of(data: bytes) -> str:
    """`"JPEG"`, `"PNG"`, `"GIF"` or `"BMP"`, by the first bytes.

    >>> format_of(b"GIF89a")
    'GIF'
    """
    if not data:
        raise ValueError("Input is empty.")
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    raise ValueError("Unknown image file format. One of JPEG, PNG, GIF, BMP required.")


def opened(data: bytes, kind: str) -> Any:
    """The file opened by Pillow; no pixel is read yet."""
    from PIL import Image, UnidentifiedImageError  # start-up

    try:
        image = Image.open(io.BytesIO(data), formats=[kind])
    except UnidentifiedImageError as error:
        raise ValueError(f"Invalid {kind} data, size {len(data)}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"Invalid {kind} data, size {len(data)}: too many pixels") from error
    except (OSError, SyntaxError, EOFError, ArithmeticError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"Invalid {kind} data, size {len(data)}: {error}") from error
    if image.width * image.height > png.MAX_PIXELS:
        raise ValueError(f"Invalid {kind} data, size {len(data)}: {image.width} x {image.height} pixels are too many")
    return image


def _loaded(image: Any, kind: str, size: int, mode: str | None = None) -> np.ndarray:
    """The pixels, [height, width, channels]."""
    try:
        pixels = np.asarray(image if mode is None or image.mode == mode else image.convert(mode))
    except (OSError, SyntaxError, EOFError, ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"Invalid {kind} data, size {size}: {error}") from error
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _with_channels(channels: int, allowed: tuple[int, ...], kind: str) -> None:
    if channels not in allowed:
        raise ValueError(f"`channels` must be one of {list(allowed)} for a {kind} file, received {channels}")


def read_jpeg(
    data: bytes,
    channels: int = 0,
    ratio: int = 1,
    crop: tuple[int, int, int, int] | None = None,
    recover_truncated: bool = False,
) -> np.ndarray:
    """The pixels of a JPEG file, at a fraction of its size (1 / ratio); `crop` is y, x, height, width."""
    _with_channels(channels, (0, 1, 3), "JPEG")
    image = opened(data, "JPEG")
    # With an end mark, libjpeg fills the missing part with gray.
    if recover_truncated and not data.rstrip(b"\0").endswith(b"\xff\xd9"):
        image = opened(data + b"\xff\xd9", "JPEG")
    count = channels or len(image.getbands())
    if crop is not None:
        y, x, rows, columns = crop
        width, height = -(-image.width // ratio), -(-image.height // ratio)
        if y < 0 or x < 0 or rows <= 0 or columns <= 0 or y + rows > height or x + columns > width:
            raise ValueError(f"Invalid JPEG data or crop window: {list(crop)} of an image of {height} x {width} pixels")
    # libjpeg itself skips the colours and pixels that are not wanted.
    small = (max(1, image.width // ratio), max(1, image.height // ratio))
    image.draft("L" if count == 1 else None, small if ratio > 1 else None)
    pixels = _loaded(image, "JPEG", len(data), "L" if count == 1 else "RGB")
    return pixels if crop is None else pixels[y : y + rows, x : x + columns]


def jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Height, width and channels of a JPEG file. Only its header is read."""
    image = opened(data, "JPEG")
    return image.height, image.width, len(image.getbands())


def _alpha(channels: int) -> bool:
    return channels % 2 == 0


def read_png(data: bytes, channels: int = 0, wide: bool = False) -> np.ndarray:
    """The pixels of a PNG file, as uint16 if `wide`, else uint8."""
    _with_channels(channels, (0, 1, 3, 4), "PNG")
    try:
        depth = png.header_of(data)[2]
    except ValueError as error:
        raise ValueError(f"Invalid PNG data, size {len(data)}: {error}") from error
    pixels = _png_16(data, channels) if depth == 16 else _png_8(data, channels)
    pixels = _recolored(pixels, channels or pixels.shape[2])
    if pixels.dtype == np.uint16:
        return pixels if wide else (pixels >> 8).astype(np.uint8)
    return pixels.astype(np.uint16) * np.uint16(257) if wide else pixels


def _png_8(data: bytes, channels: int) -> np.ndarray:
    image = opened(data, "PNG")
    key = "transparency" in image.info
    wanted = {"1": "L", "P": "RGBA" if key else "RGB"}.get(image.mode, image.mode)
    if key and channels and _alpha(channels) and wanted in ("L", "RGB"):
        wanted = "RGBA"
    return _loaded(image, "PNG", len(data), wanted)


def _png_16(data: bytes, channels: int) -> np.ndarray:
    try:
        pixels, key = png.read_16_bit(data)
    except ValueError as error:
        raise ValueError(f"Invalid PNG data, size {len(data)}: {error}") from error
    if key is not None and channels and _alpha(channels):
        opaque = (pixels != np.array(key, np.uint16)).any(2, keepdims=True)
        pixels = np.concatenate([pixels, opaque.astype(np.uint16) * np.uint16(65535)], 2)
    return pixels


def _recolored(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Pixels of 1 to 4 channels with another number of channels; with an even number the last one is opacity."""
    count = pixels.shape[2]
    if count == channels:
        return pixels
    colors = pixels[..., : count - 1] if _alpha(count) else pixels
    if channels <= 2 and colors.shape[2] == 3:
        half = 2**14 if pixels.dtype == np.uint16 else 0
        colors = ((colors @ _GRAY + half) >> 15).astype(pixels.dtype)[..., None]
    elif channels > 2 and colors.shape[2] == 1:
        colors = np.repeat(colors, 3, 2)
    if not _alpha(channels):
        return colors
    largest = np.iinfo(pixels.dtype).max
    opacity = pixels[..., -1:] if _alpha(count) else np.full_like(pixels[..., :1], largest)
    return np.concatenate([colors, opacity], 2)


def read_gif(data: bytes, first_only: bool = False) -> np.ndarray:
    """The frames of a GIF file, [frames, height, width, 3]."""
    image = opened(data, "GIF")
    frames: list[np.ndarray] = []
    while True:
        pixels = _loaded(image, "GIF", len(data), "RGBA")
        # Pixels that no frame has painted are black.
        frames.append(np.where(pixels[..., 3:] == 0, np.uint8(0), pixels[..., :3]))
        if first_only:
            break
        if (len(frames) + 1) * image.width * image.height > png.MAX_PIXELS:
            raise ValueError(f"Invalid GIF data, size {len(data)}: too many frames")
        try:
            image.seek(len(frames))
        except EOFError:
            break
        except (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"Invalid GIF data, size {len(data)}: {error}") from error
    return np.stack(frames)


def read_bmp(data: bytes, channels: int = 0) -> np.ndarray:
    """The pixels of a BMP file of 8, 24 or 32 bits per pixel; a palette is ignored."""
    if len(data) < 32:
        raise ValueError(f"Incomplete bmp content, requires at least 32 bytes for the header, got {len(data)} bytes")
    start, width, height = (int.from_bytes(data[i : i + 4], "little", signed=True) for i in (10, 18, 22))
    bits = int.from_bytes(data[28:30], "little")
    count = bits // 8
    _with_channels(channels, (0, 3, 4), "BMP")
    if count not in (1, 3, 4):
        raise ValueError(f"Number of channels inherent in the image must be 1, 3 or 4, was {count}")
    if width <= 0 or height == 0 or start < 0:
        raise ValueError(f"Width must be positive and height nonzero, received {width} and {height}")
    line = (count * width + 3) // 4 * 4
    needed = start + line * abs(height)
    if len(data) < needed:
        raise ValueError(f"Incomplete bmp content, requires at least {needed} bytes, got {len(data)} bytes")
    lines = np.frombuffer(data, np.uint8, line * abs(height), start).reshape(abs(height), line)
    pixels = lines[:, : width * count].reshape(abs(height), width, count)
    if height > 0:
        pixels = pixels[::-1]
    # Blue comes first.
    order = [0] if count == 1 else [2, 1, 0, 3][:count]
    return _recolored(np.ascontiguousarray(pixels[..., order]), channels or count)


def write_jpeg(
    image: np.ndarray,
    quality: int = 95,
    progressive: bool = False,
    optimize: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    density: tuple[int, int] = (300, 300),
    xmp_metadata: bytes = b"",
) -> bytes:
    """An image of one or three channels of uint8 as a JPEG file."""
    from PIL import Image  # start-up

    stream = io.BytesIO()
    options: dict[str, Any] = {"xmp": xmp_metadata} if xmp_metadata else {}
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(
        stream,
        "JPEG",
        quality=quality,
        progressive=progressive,
        optimize=optimize,
        subsampling=2 if chroma_downsampling else 0,
        dpi=density,
        **options,
    )
    data = bytearray(stream.getvalue())
    if density_unit == "cm" and data[6:10] == b"JFIF":
        data[13] = 2
    return bytes(data)
