"""MNIST files, and the digits that take their place."""

import gzip
import io

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.contrib.mnist_data import DataSet, extract_images, extract_labels, load_mnist, read_data_sets

NAMES = {"train": 30, "t10k": 12}


def idx(magic, values):
    return np.array([magic, *values.shape], ">u4").tobytes() + values.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    random = np.random.RandomState(0)
    for name, count in NAMES.items():
        images, labels = random.randint(0, 256, (count, 28, 28)), np.arange(count) % 10
        # One pair of files compressed, the other not: both are read.
        if name == "train":
            (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(2051, images)))
            (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(2049, labels)))
        else:
            (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(idx(2051, images))
            (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(2049, labels))
    return tmp_path


def test_files_are_read(folder):
    mnist = read_data_sets(str(folder), one_hot=True, validation_size=5)
    assert [part.num_examples for part in mnist] == [25, 5, 12]
    assert mnist.train.images.shape == (25, 784) and mnist.train.images.dtype == np.float32
    assert mnist.train.images.min() >= 0 and mnist.train.images.max() == 1
    assert mnist.validation.labels.argmax(1).tolist() == [0, 1, 2, 3, 4]
    plain = read_data_sets(str(folder), dtype=tf.uint8, reshape=False, validation_size=0)
    assert plain.test.images.shape == (12, 28, 28, 1) and plain.test.images.dtype == np.uint8
    assert plain.test.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_without_files_the_shipped_digits_and_a_warning(tmp_path, caplog):
    mnist = load_mnist(str(tmp_path))
    assert [part.num_examples for part in mnist] == [1350, 150, 297]
    assert mnist.test.images.shape == (297, 784) and mnist.test.labels.max() == 9
    assert "No MNIST files in" in caplog.text and "1,797 digits" in caplog.text


def test_batches_go_through_all_examples_each_epoch():
    data = DataSet(np.arange(10, dtype=np.float32)[:, None], np.arange(10), seed=1)
    seen = np.concatenate([data.next_batch(4)[1] for _ in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist() and data.epochs_completed == 1
    ordered = DataSet(np.zeros((4, 1), np.float32), np.arange(4))
    assert [ordered.next_batch(3, shuffle=False)[1].tolist() for _ in range(2)] == [[0, 1, 2], [3, 0, 1]]
    with pytest.raises(ValueError, match=r"batch_size must be in 1..10, received 11"):
        data.next_batch(11)


def damaged(folder, file, change):
    path = folder / file
    path.write_bytes(change(path.read_bytes()))
    read_data_sets(str(folder), validation_size=0)


@pytest.mark.parametrize(
    ("file", "change", "error", "says"),
    [
        ("t10k-images-idx3-ubyte", lambda b: b[:-5], tf.errors.DataLossError, "cut short: 9403 of 9408 bytes"),
        ("t10k-images-idx3-ubyte", lambda b: b[:6], tf.errors.DataLossError, "damaged"),
        ("t10k-images-idx3-ubyte", lambda b: b[:4] + b"\xff" * 12 + b[16:], tf.errors.DataLossError, "header"),
        ("t10k-labels-idx1-ubyte", lambda b: b"\0\0\0\7" + b[4:], ValueError, "Invalid magic number 7"),
        ("train-images-idx3-ubyte.gz", lambda b: b[: len(b) // 2], tf.errors.DataLossError, "damaged"),
        ("train-labels-idx1-ubyte.gz", lambda b: b"no gzip" + b, tf.errors.DataLossError, "damaged"),
        ("t10k-labels-idx1-ubyte", lambda b: idx(2049, np.zeros(3)), ValueError, "12 images and 3 labels"),
    ],
)
def test_damaged_files_are_named(folder, file, change, error, says):
    with pytest.raises(error, match=says):
        damaged(folder, file, change)


def test_some_files_only(folder):
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match="not t10k-labels-idx1-ubyte"):
        read_data_sets(str(folder))


def test_extraction_from_open_files():
    images = np.ones((2, 28, 28))
    assert extract_images(io.BytesIO(gzip.compress(idx(2051, images)))).shape == (2, 28, 28, 1)
    assert extract_labels(io.BytesIO(gzip.compress(idx(2049, np.array([3])))), one_hot=True).argmax() == 3


def test_the_model_of_the_tutorial_learns():
    from penstock.v1.examples.tutorials.mnist import mnist

    data = read_data_sets("no such folder", seed=0).train
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)
        images, labels = tf.placeholder(tf.float32, [None, mnist.IMAGE_PIXELS]), tf.placeholder(tf.int32, [None])
        logits = mnist.inference(images, 32, 16)
        train = mnist.training(mnist.loss(logits, labels), 0.1)
        correct = mnist.evaluation(logits, labels)
        session.run(tf.global_variables_initializer())
        for _ in range(100):
            batch = data.next_batch(100)
            session.run(train, {images: batch[0], labels: batch[1]})
        assert session.run(correct, {images: data.images[:200], labels: data.labels[:200]}) > 120
        assert [v.op.name for v in tf.trainable_variables()][:2] == ["hidden1/weights", "hidden1/biases"]
        assert session.run(tf.global_variables()[-1]) == 100
