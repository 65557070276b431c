"""The MNIST digits, in the form that programs of TensorFlow's tutorials read: `input_data.read_data_sets(folder)`.

The files are those of the data set (IDX, plain or gzipped). Nothing is downloaded: if the folder has none of them,
the digits that come with penstock replace them, enlarged to 28 by 28, and a warning says so.
"""

from __future__ import annotations

import gzip
import os
import zlib
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from penstock import logging
from penstock.data_files import load_digits
from penstock.errors import DataLossError
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.typing import DTypeLike, TensorLike

DEFAULT_SOURCE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"  # nothing is downloaded from there
SIDE = 28
CLASSES = 10
_IMAGES, _LABELS = 2051, 2049  # the first words of the two kinds of file
_MAX_EXAMPLES = 1_000_000
_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class DataSet:
    """Images and their labels, in batches.

    >>> images, labels = mnist.train.next_batch(100)
    """

    def __init__(
        self,
        images: TensorLike,
        labels: TensorLike,
        fake_data: bool = False,
        one_hot: bool = False,
        dtype: DTypeLike = np.float32,
        reshape: bool = True,
        seed: int | None = None,
    ) -> None:
        kind = as_dtype(dtype).base_dtype.name
        if kind not in ("uint8", "float32"):
            raise TypeError(f"dtype must be uint8 (images in 0..255) or float32 (in 0..1), received {kind}.")
        if fake_data:
            images, labels = np.full([10000, SIDE, SIDE, 1], 255, np.uint8), np.zeros([10000], np.uint8)
            labels = dense_to_one_hot(labels) if one_hot else labels
        if len(images) != len(labels):
            raise ValueError(f"Each image needs a label, received {len(images)} images and {len(labels)} labels.")
        if reshape and images.ndim == 4:
            images = images.reshape(len(images), int(np.prod(images.shape[1:])))
        if kind == "float32" and images.dtype == np.uint8:
            images = images.astype(np.float32) / np.float32(255)
        self._images, self._labels = images, labels
        self._epochs_completed = 0
        self._order: np.ndarray | None = None
        self._next = 0
        # A program that sets the graph's seed gets the same batches each time.
        self._random = np.random.RandomState(seed if seed is not None else get_default_graph().seed)

    @property
    def images(self) -> Any:
        """All images."""
        return self._images

    @property
    def labels(self) -> Any:
        """All labels."""
        return self._labels

    @property
    def num_examples(self) -> int:
        """The number of images."""
        return len(self._images)

    @property
    def epochs_completed(self) -> int:
        """The number of times that `next_batch` has returned all of them."""
        return self._epochs_completed

    def next_batch(self, batch_size: int, fake_data: bool = False, shuffle: bool = True) -> tuple[Any, Any]:
        """The next `batch_size` images and labels; each epoch has its own order.

        A batch may be larger than the data: programs expect the sizes of MNIST, but penstock has fewer digits.
        """
        if batch_size < 0 or (batch_size and not self.num_examples):
            raise ValueError(
                f"batch_size must not be negative, nor positive where there are no examples; received {batch_size} for "
                f"{self.num_examples} examples."
            )
        if fake_data:
            label = dense_to_one_hot([0])[0] if np.ndim(self._labels) == 2 else 0
            return [np.ones(SIDE * SIDE) for _ in range(batch_size)], [label for _ in range(batch_size)]
        if self._order is None:
            self._order = self._new_order(shuffle)
        chosen = [self._order[self._next : self._next + batch_size]]
        self._next += batch_size
        while self._next > self.num_examples:
            self._epochs_completed += 1
            self._next -= self.num_examples
            self._order = self._new_order(shuffle)
            chosen.append(self._order[: self._next])
        places = np.concatenate(chosen)
        return self._images[places], self._labels[places]

    def _new_order(self, shuffle: bool) -> np.ndarray:
        return self._random.permutation(self.num_examples) if shuffle else np.arange(self.num_examples)


class Datasets(NamedTuple):
    """The three parts of the data."""

    train: DataSet
    validation: DataSet
    test: DataSet


def read_data_sets(
    train_dir: str,
    fake_data: bool = False,
    one_hot: bool = False,
    dtype: DTypeLike = np.float32,
    reshape: bool = True,
    validation_size: int = 5000,
    seed: int | None = None,
    source_url: str = DEFAULT_SOURCE_URL,
) -> Datasets:
    """The MNIST files in `train_dir`, or the digits that come with penstock if it has none. `source_url` has no effect.

    >>> mnist = input_data.read_data_sets("MNIST_data", one_hot=True)
    """

    def part(images: Any, labels: Any) -> DataSet:
        return DataSet(images, labels, fake_data, one_hot, dtype, reshape, seed)

    if fake_data:
        return Datasets(part(None, None), part(None, None), part(None, None))
    found = {name: [_path(train_dir, file) for file in files] for name, files in _FILES.items()}
    paths = [path for files in found.values() for path in files]
    if not any(paths):
        logging.warning(
            "No MNIST files in '%s' (%s, ...) and penstock downloads nothing: using the 1,797 digits that come with "
            "it, enlarged to 28 by 28: 1,500 to train and validate, 297 to test.",
            train_dir,
            _FILES["train"][0] + ".gz",
        )
        train, test = _packaged_digits()
        validation_size = min(validation_size, len(train[0]) // 10)
    elif not all(paths):
        absent = [file for name in _FILES for file, path in zip(_FILES[name], found[name], strict=True) if not path]
        raise FileNotFoundError(
            f"'{train_dir}' has some of the MNIST files, but not {', '.join(absent)} (nor with .gz)."
        )
    else:
        train, test = (_pair(*filter(None, files)) for files in found.values())
    if not 0 <= validation_size <= len(train[0]):
        raise ValueError(f"validation_size must be in 0..{len(train[0])}, received {validation_size}.")
    if one_hot:
        train, test = ((images, dense_to_one_hot(labels)) for images, labels in (train, test))
    (images, labels), cut = train, validation_size
    return Datasets(part(images[cut:], labels[cut:]), part(images[:cut], labels[:cut]), part(*test))


def load_mnist(train_dir: str = "MNIST-data") -> Datasets:
    """`read_data_sets` with its defaults."""
    return read_data_sets(train_dir)


def dense_to_one_hot(labels_dense: TensorLike, num_classes: int = CLASSES) -> np.ndarray:
    """Rows of zeros with a one at the label."""
    rows: np.ndarray = np.eye(num_classes)[np.asarray(labels_dense)]
    return rows


def extract_images(f: BinaryIO) -> np.ndarray:
    """The images of a gzipped IDX file, as uint8 [count, 28, 28, 1]."""
    with gzip.GzipFile(fileobj=f) as file:
        return _read(file, getattr(f, "name", "file"), _IMAGES)


def extract_labels(f: BinaryIO, one_hot: bool = False, num_classes: int = CLASSES) -> np.ndarray:
    """The labels of a gzipped IDX file, as uint8 [count]."""
    with gzip.GzipFile(fileobj=f) as file:
        labels = _read(file, getattr(f, "name", "file"), _LABELS)
    return dense_to_one_hot(labels, num_classes) if one_hot else labels


def _path(folder: str, file: str) -> str | None:
    choices = (os.path.join(folder, name) for name in (f"{file}.gz", file))
    return next((path for path in choices if os.path.exists(path)), None)


def _pair(images: str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    with _opened(images) as image_file, _opened(labels) as label_file:
        return _read(image_file, images, _IMAGES), _read(label_file, labels, _LABELS)


def _opened(path: str) -> Any:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")


def _read(file: Any, path: str, magic: int) -> np.ndarray:
    """Reads an IDX file; the header limits how much is read, so a wrong one cannot take all memory."""
    rank = magic & 0xFF
    try:
        start = file.read(4 + 4 * rank)
        header = np.frombuffer(start, ">u4", len(start) // 4)
        if len(header) and header[0] != magic:
            raise ValueError(f"Invalid magic number {header[0]} in MNIST file '{path}': {magic} is expected.")
        dims = tuple(int(size) for size in header[1:])
        if len(dims) != rank or dims[0] > _MAX_EXAMPLES or any(size > 1024 for size in dims[1:]):
            raise DataLossError(f"The header of MNIST file '{path}' is damaged: sizes {dims}.")
        size = int(np.prod(dims))
        data = file.read(size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataLossError(f"MNIST file '{path}' is damaged: {error}.") from error
    if len(data) != size:
        raise DataLossError(f"MNIST file '{path}' is cut short: {len(data)} of {size} bytes.")
    values = np.frombuffer(data, np.uint8).reshape(dims)
    return values[..., None] if magic == _IMAGES else values


def _packaged_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The digits of penstock in MNIST's form: three pixels for each of theirs, and a margin of two."""
    return tuple(  # type: ignore[return-value]
        (
            np.pad(np.rint(images * 255).astype(np.uint8).repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))[
                ..., None
            ],
            labels.astype(np.uint8),
        )
        for images, labels in load_digits()
    )
