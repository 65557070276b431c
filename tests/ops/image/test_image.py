"""Images: tests beyond the recorded calls of TensorFlow. Numbers in the tables are TensorFlow's."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import penstock.v1 as tf
from penstock.ops.image.resize import resize_bicubic_op, resize_bilinear_op, resize_nearest_neighbor_op

RNG = np.random.RandomState(0)
PHOTO = RNG.randint(0, 256, (9, 7, 3)).astype(np.uint8)


def run(fetches: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(fetches, feeds)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


# Files.


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, body: bytes, interlaced: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, interlaced)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_png_comes_back_as_it_was(dtype: Any, channels: int) -> None:
    image = RNG.randint(0, np.iinfo(dtype).max + 1, (13, 6, channels)).astype(dtype)
    image[4:9, :, 0] = np.arange(6)  # some lines are filtered better by differences
    contents = tf.image.encode_png(image)
    values = run([contents, tf.image.decode_png(contents, dtype=tf.as_dtype(dtype))])
    np.testing.assert_array_equal(values[1], image)
    if dtype is np.uint8:
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(values[0]))).reshape(image.shape), image)
    both = run(tf.image.encode_png(np.stack([image, image])))
    assert both.tolist() == [values[0], values[0]]


@pytest.mark.parametrize(
    ("pixel", "channels", "dtype", "wanted"),
    [
        ([214, 137, 118], 1, tf.uint8, [157]),
        ([214, 137, 118], 4, tf.uint16, [54998, 35209, 30326, 65535]),
        ([214, 137, 118], 1, tf.uint16, [40349]),
        ([221, 211], 3, tf.uint8, [221, 221, 221]),
        ([221, 211], 4, tf.uint8, [221, 221, 221, 211]),
        ([9148, 25170, 36316], 0, tf.uint8, [35, 98, 141]),
        ([9148, 25170, 36316], 1, tf.uint16, [21651]),
        ([26503, 922, 36509, 26546], 1, tf.uint16, [12629]),
        ([26503, 922, 36509, 26546], 3, tf.uint8, [103, 3, 142]),
    ],
)
def test_png_in_other_colors(pixel: list[int], channels: int, dtype: tf.DType, wanted: list[int]) -> None:
    image = np.array([[pixel]], np.uint16 if max(pixel) > 255 else np.uint8)
    decoded = run(tf.image.decode_png(tf.image.encode_png(image), channels=channels, dtype=dtype))
    assert decoded.tolist() == [[wanted]]


def test_interlaced_png_of_16_bits() -> None:
    image = RNG.randint(0, 65536, (9, 7, 3)).astype(">u2")
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    body = b"".join(b"\0" + row.tobytes() for x, y, dx, dy in passes for row in image[y::dy, x::dx])
    np.testing.assert_array_equal(run(tf.image.decode_png(png(7, 9, 16, body, 1), dtype=tf.uint16)), image)


def test_palettes_frames_and_bitmaps() -> None:
    photo = Image.fromarray(PHOTO)
    few = photo.quantize(16)
    np.testing.assert_array_equal(run(tf.image.decode_png(saved(few, "PNG"))), np.asarray(few.convert("RGB")))
    np.testing.assert_array_equal(run(tf.image.decode_bmp(saved(photo, "BMP"))), PHOTO)
    np.testing.assert_array_equal(run(tf.image.decode_image(saved(photo, "BMP"), channels=4))[..., :3], PHOTO)
    frames = [Image.new("RGB", (5, 4), color).quantize(4) for color in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    gif = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    decoded = run(tf.image.decode_gif(gif))
    assert decoded.shape == (3, 4, 5, 3)
    assert decoded[:, 0, 0].tolist() == [[200, 0, 0], [0, 200, 0], [0, 0, 200]]
    assert run(tf.image.decode_image(gif, expand_animations=False)).shape == (4, 5, 3)
    assert run(tf.image.decode_gif(saved(photo, "PNG"))).shape == (1, 9, 7, 3)


def test_jpeg() -> None:
    smooth = np.asarray(Image.fromarray(PHOTO).resize((40, 32)))
    contents = run(tf.image.encode_jpeg(smooth, quality=100, chroma_downsampling=False))
    whole = run(tf.image.decode_jpeg(contents))
    assert np.abs(whole.astype(int) - smooth).max() < 8
    np.testing.assert_array_equal(run(tf.image.decode_and_crop_jpeg(contents, [3, 5, 8, 9])), whole[3:11, 5:14])
    assert run(tf.image.decode_jpeg(contents, ratio=4)).shape == (8, 10, 3)
    assert run(tf.image.decode_jpeg(contents, channels=1)).shape == (32, 40, 1)
    assert run(tf.image.extract_jpeg_shape(contents)).tolist() == [32, 40, 3]
    assert run([tf.image.is_jpeg(contents), tf.image.is_jpeg(b"GIF89a")]) == [True, False]
    assert run(tf.image.decode_image(contents, dtype=tf.uint16)).max() == int(whole.max()) * 256
    assert run(tf.io.decode_image(contents, dtype=tf.float32)).max() <= 1
    assert run(tf.image.random_jpeg_quality(smooth.astype(np.float32) / 255, 40, 60)).shape == smooth.shape
    cut = contents[: len(contents) // 2]
    recovered = tf.image.decode_jpeg(cut, try_recover_truncated=True, acceptable_fraction=0.2)
    assert run(recovered).shape == whole.shape


JPEG = saved(Image.fromarray(PHOTO), "JPEG")
PNG = saved(Image.fromarray(PHOTO), "PNG")
DEEP = png(2, 1, 16, b"\0" + bytes(12))
BLACK = np.zeros((3, 3, 3), np.uint8)


def large_jpeg() -> bytes:
    """A file of a few hundred bytes that claims to have 65000 x 65000 pixels."""
    data = bytearray(JPEG)
    at = data.find(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", 65000, 65000)
    return bytes(data)


LARGE_GIF = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\xf0\0\0" + bytes(6) + b"," + bytes(4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tf.image.decode_jpeg(b""), "DecodeJpeg: Input is empty"),
        (lambda: tf.image.decode_jpeg(b"hello"), "Unknown image file format"),
        (lambda: tf.image.decode_image(b"hello"), "DecodeImage: Unknown image file format"),
        (lambda: tf.image.decode_jpeg(JPEG[:400]), "Invalid JPEG data, size 400"),
        (lambda: tf.image.decode_jpeg(JPEG, ratio=3), "ratio must be 1, 2, 4, or 8, got 3"),
        (lambda: tf.image.decode_jpeg(JPEG, dct_method="FAST"), "dct_method must be one of"),
        (lambda: tf.image.decode_jpeg(JPEG, channels=4), "`channels` must be one of"),
        (lambda: tf.image.decode_and_crop_jpeg(JPEG, [0, 0, 50, 50]), "crop window"),
        (lambda: tf.image.decode_and_crop_jpeg(PNG, [0, 0, 5, 5]), "wrong op"),
        (lambda: tf.image.extract_jpeg_shape(b"hello"), "ExtractJpegShape: Invalid JPEG data"),
        (lambda: tf.image.decode_png(PNG[:40]), "DecodePng: Invalid PNG data, size 40"),
        (lambda: tf.image.decode_png(PNG[:-40]), "Invalid PNG data"),
        (lambda: tf.image.decode_png(PNG, channels=2), "`channels` must be 0, 1, 3 or 4"),
        (lambda: tf.image.decode_png(DEEP[:-20]), "Invalid PNG data"),
        (lambda: tf.image.decode_png(DEEP[:45] + b"?" + DEEP[46:]), "is damaged"),
        (lambda: tf.image.decode_png(png(2, 2, 16, b"\0" * 5)), "bytes of pixels, must be 26"),
        (lambda: tf.image.decode_png(png(1, 1, 16, b"\7" + bytes(6))), "filter 7 does not exist"),
        (lambda: tf.image.decode_bmp(b"BM"), "Incomplete bmp content"),
        (lambda: tf.image.decode_bmp(saved(Image.fromarray(PHOTO), "BMP")[:-9]), "Incomplete bmp content"),
        (lambda: tf.image.decode_bmp(PNG), "wrong op"),
        (lambda: tf.image.decode_gif(b"GIF89a"), "DecodeGif: Invalid GIF data"),
        # Small files of huge images.
        (lambda: tf.image.decode_png(png(60000, 60000, 8, bytes(10**6))), "pixels are more than"),
        (lambda: tf.image.decode_png(png(9000, 9000, 16, bytes(10**4))), "cannot hold 9000 x 9000 pixels"),
        (lambda: tf.image.decode_jpeg(large_jpeg()), "too many pixels"),
        (lambda: tf.image.decode_gif(LARGE_GIF + struct.pack("<HH", 65535, 65535)), "Invalid GIF data"),
        (lambda: tf.image.encode_png(BLACK[:, :, :0]), "channels"),
        (lambda: tf.image.encode_png(BLACK[:0]), "must not be empty"),
        (lambda: tf.image.encode_png(BLACK, compression=10), "compression should be in"),
        (lambda: tf.image.encode_jpeg(BLACK, quality=101), "quality must be in"),
        (lambda: tf.image.encode_jpeg(BLACK, format="grayscale"), "expects 1 channels"),
    ],
)
def test_bad_files(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(build())


# Boxes.

BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [1, 100, 0, 101]],
    np.float32,
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3], np.float32)


@pytest.mark.parametrize(
    ("options", "indices", "scores"),
    [
        ({}, [3, 0, 5], [0.95, 0.9, 0.3]),
        ({"iou_threshold": 0.9}, [3, 0, 1, 2, 4, 5], [0.95, 0.9, 0.75, 0.6, 0.5, 0.3]),
        ({"score_threshold": 0.55}, [3, 0], [0.95, 0.9]),
        ({"soft_nms_sigma": 0.5}, [3, 0, 1, 5, 4, 2], [0.95, 0.9, 0.384, 0.3, 0.256, 0.19697]),
        ({"soft_nms_sigma": 0.5, "score_threshold": 0.4}, [3, 0], [0.95, 0.9]),
    ],
)
def test_non_max_suppression(options: dict[str, float], indices: list[int], scores: list[float]) -> None:
    found, kept = run(tf.image.non_max_suppression_with_scores(BOXES, SCORES, 6, **options))
    assert found.tolist() == indices
    np.testing.assert_allclose(kept, scores, rtol=1e-3)


def test_padded_suppression() -> None:
    padded = tf.image.non_max_suppression_padded(BOXES, SCORES, 5, pad_to_max_output_size=True)
    assert padded.selected_indices.shape.as_list() == [5]
    assert [v.tolist() for v in run(padded)] == [[3, 0, 5, 0, 0], 3]
    assert run(tf.image.non_max_suppression(BOXES[:0], SCORES[:0], 3)).tolist() == []
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"iou_threshold must be in \[0, 1\]"):
        run(tf.image.non_max_suppression(BOXES, SCORES, 3, iou_threshold=1.5))


def test_crop_of_a_box_outside_the_batch() -> None:
    indices = tf.placeholder(tf.int32, [1])
    crops = tf.image.crop_and_resize(np.ones((2, 4, 4, 1), np.float32), [[0.0, 0.0, 1.0, 1.0]], indices, [2, 2])
    assert run(crops, {indices: [1]}).sum() == 4
    with pytest.raises(tf.errors.OpError, match="box_index has values outside"):
        run(crops, {indices: [2]})


def test_sampled_boxes_cover_an_object() -> None:
    sampled = tf.image.sample_distorted_bounding_box(
        [40, 60, 3], [[[0.2, 0.3, 0.7, 0.8]]], seed=1, min_object_covered=0.6, area_range=[0.2, 0.8]
    )
    assert [t.shape.as_list() for t in sampled] == [[3], [3], [1, 1, 4]]
    with tf.Session() as session:
        for _ in range(20):
            begin, size, box = session.run(sampled)
            assert begin[2] == 0 and size[2] == -1
            np.testing.assert_allclose(box[0, 0] * [40, 60, 40, 60], [*begin[:2], *(begin + size)[:2]], rtol=1e-5)
            rows = min(28, begin[0] + size[0]) - max(8, begin[0])
            columns = min(48, begin[1] + size[1]) - max(18, begin[1])
            assert rows * columns >= 0.6 * 20 * 30
            assert 0.2 <= size[0] * size[1] / 2400 <= 0.8
    with pytest.raises(tf.errors.InvalidArgumentError, match="No bounding boxes provided"):
        run(tf.image.sample_distorted_bounding_box([4, 4, 3], np.zeros((1, 0, 4), np.float32)))


def test_glimpse_beyond_the_image_is_noise() -> None:
    image = np.arange(1.0, 49.0, dtype=np.float32).reshape(1, 6, 8, 1)
    glimpse = run(tf.image.extract_glimpse(image, [4, 4], [[-1.0, -1.0]]))[0, :, :, 0]
    np.testing.assert_array_equal(glimpse[2:, 2:], [[1, 2], [9, 10]])
    assert glimpse.min() >= 1 and glimpse.max() <= 48
    assert len(set(glimpse[:2].reshape(-1))) == 8


# Sizes and ranks that are known only when the graph runs.


def test_unknown_ranks() -> None:
    image = tf.placeholder(tf.float32)
    flipped, cropped = tf.image.flip_up_down(image), tf.image.crop_to_bounding_box(image, 1, 0, 2, 2)
    one, batch = RNG.rand(3, 4, 2).astype(np.float32), RNG.rand(2, 3, 4, 2).astype(np.float32)
    np.testing.assert_array_equal(run(flipped, {image: one}), one[::-1])
    np.testing.assert_array_equal(run(flipped, {image: batch}), batch[:, ::-1])
    np.testing.assert_array_equal(run(cropped, {image: one}), one[1:3, :2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="height must be >= target"):
        run(cropped, {image: one[:2]})


@pytest.mark.parametrize("tier", ["", "exact"])
@pytest.mark.parametrize("method", ["bilinear", "nearest", "bicubic"])
def test_gradient_of_an_unknown_size(method: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    image, size = tf.placeholder(tf.float32, [1, None, None, 1]), tf.placeholder(tf.int32, [2])
    resized = tf.image.resize_images(image, size, method)
    (gradient,) = tf.gradients(resized, image)
    for shape in ((4, 5), (2, 3)):
        feeds = {image: np.ones((1, *shape, 1), np.float32), size: [7, 6]}
        values = run([resized, gradient], feeds)
        assert values[0].shape == (1, 7, 6, 1)
        # Each pixel of the result is a mean: the weights of all add up to the number of pixels.
        np.testing.assert_allclose(values[1].sum(), 42, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="output dimensions must be positive"):
        run(resized, {image: np.ones((1, 2, 2, 1), np.float32), size: [0, 6]})


def test_infinite_pixels_stay_where_they_are() -> None:
    image = np.ones((1, 4, 4, 1), np.float32)
    image[0, 0, 0, 0] = np.inf
    small = run(tf.image.resize_area(image, [2, 2]))[0, :, :, 0]
    np.testing.assert_array_equal(small, [[np.inf, 1], [1, 1]])


def test_random_adjustments_follow_their_seed() -> None:
    image = RNG.rand(4, 4, 3).astype(np.float32)
    adjusted = [
        tf.image.random_brightness(image, 0.3, seed=1),
        tf.image.random_contrast(image, 0.3, 0.6, seed=1),
        tf.image.random_hue(image, 0.3, seed=1),
        tf.image.random_saturation(image, 0.3, 0.6, seed=1),
    ]
    first, second = run(adjusted), run(adjusted)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.abs(a - image).max() > 1e-3
    flips = run(tf.image.random_flip_left_right(np.stack([image] * 64), seed=2))
    kept = [np.array_equal(flip, image) for flip in flips]
    assert 8 < sum(kept) < 56
    assert all(k or np.array_equal(flip, image[:, ::-1]) for k, flip in zip(kept, flips, strict=True))


@pytest.mark.parametrize("kernel", [resize_bilinear_op, resize_nearest_neighbor_op, resize_bicubic_op])
@pytest.mark.parametrize("options", [{}, {"align_corners": True}, {"half_pixel_centers": True}])
def test_resizing_in_numpy_is_that_of_compiled_code(kernel: Any, options: dict[str, bool]) -> None:
    for images in (PHOTO[None], PHOTO[None][:0], RNG.uniform(-1, 1, (2, 5, 8, 1)).astype(np.float32)):
        for size in ([4, 11], [9, 7], [1, 1]):
            before = images.copy()
            in_numpy = kernel.kernel(images, np.array(size, np.int32), **options)
            compiled = kernel.kernel(jnp.asarray(images), np.array(size, np.int32), **options)
            assert isinstance(in_numpy, np.ndarray) and in_numpy.dtype == compiled.dtype
            np.testing.assert_allclose(in_numpy, compiled, rtol=1e-6, atol=1e-6)
            assert (images == before).all()
