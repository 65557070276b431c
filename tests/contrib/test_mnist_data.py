"""MNIST files, and the digits that replace them."""

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
    assert [len(part) for part in ordered.next_batch(0)] == [0, 0]
    with pytest.raises(ValueError, match=r"batch_size must not be negative, .* received -1 for 10 examples"):
        data.next_batch(-1)
    with pytest.raises(ValueError, match="received 5 for 0 examples"):
        DataSet(np.zeros((0, 1), np.float32), np.zeros(0)).next_batch(5)


def test_a_batch_may_be_larger_than_the_data():
    """As in `mnist.test.next_batch(1000)` if the 297 digits of penstock replace MNIST's 10,000."""
    data = DataSet(np.zeros((4, 1), np.float32), np.arange(4), seed=0)
    labels = data.next_batch(10)[1].tolist()
    assert sorted(labels[:4]) == sorted(labels[4:8]) == [0, 1, 2, 3] and data.epochs_completed == 2
    assert sorted([*labels[8:], *data.next_batch(2)[1]]) == [0, 1, 2, 3] and data.epochs_completed == 2


ARGUMENTS = [
    ({}, (784,), np.float32, (), np.uint8),
    ({"one_hot": True}, (784,), np.float32, (10,), np.float64),
    ({"reshape": False, "dtype": tf.uint8}, (28, 28, 1), np.uint8, (), np.uint8),
    ({"dtype": np.uint8, "one_hot": True, "seed": 3}, (784,), np.uint8, (10,), np.float64),
    ({"source_url": "http://example.org/mnist/", "dtype": tf.float32}, (784,), np.float32, (), np.uint8),
    ({"fake_data": True, "one_hot": True}, (784,), np.float32, (10,), np.float64),
]


@pytest.mark.parametrize("shipped", [False, True], ids=["files", "shipped"])
@pytest.mark.parametrize(("arguments", "image", "image_type", "label", "label_type"), ARGUMENTS)
def test_arguments(request, tmp_path, shipped, arguments, image, image_type, label, label_type):
    source = tmp_path / "none" if shipped else request.getfixturevalue("folder")
    mnist = read_data_sets(str(source), validation_size=5, **arguments)
    for part in mnist:
        images, labels = part.next_batch(5)
        assert part.images.shape == (part.num_examples, *image) and images.shape == (5, *image)
        assert part.labels.shape == (part.num_examples, *label) and labels.shape == (5, *label)
        assert part.images.dtype == images.dtype == image_type and part.labels.dtype == labels.dtype == label_type
        assert images.max() == (1 if image_type == np.float32 else 255)
    sizes = [10000] * 3 if "fake_data" in arguments else [1495, 5, 297] if shipped else [25, 5, 12]
    assert [part.num_examples for part in mnist] == sizes


def test_fake_batches_of_real_data(folder):
    images, labels = read_data_sets(str(folder), one_hot=True, validation_size=0).train.next_batch(3, fake_data=True)
    assert np.shape(images) == (3, 784) and np.all(np.equal(images, 1))
    assert np.argmax(labels, 1).tolist() == [0, 0, 0]


def test_reading_leaves_the_folder_alone(folder):
    """Then all tasks of a cluster may read at once, from a folder that is read-only."""
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    folder.chmod(0o555)
    read_data_sets(folder, validation_size=0)
    folder.chmod(0o755)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    read_data_sets(folder / "none")
    assert not (folder / "none").exists()


@pytest.mark.parametrize("size", [-1, 31])
def test_validation_sizes(folder, size):
    with pytest.raises(ValueError, match=rf"validation_size must be in 0\.\.30, received {size}"):
        read_data_sets(str(folder), validation_size=size)


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
