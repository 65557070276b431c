"""The CIFAR-10 model: inputs through queues, two convolutions, losses in a collection.

    images, labels = cifar10_model.distorted_inputs("/data/cifar-10-batches-bin", batch_size=128)
    logits = cifar10_model.inference(images)
    loss = cifar10_model.loss(logits, labels)

The files are CIFAR-10's binary version: records of one byte of label and 3,072 bytes of image, channel by channel.
Without a data directory, `write_synthetic_data` makes such files with images of coloured bars, which a network can
learn to tell apart.
"""

import os

import numpy as np

import penstock.v1 as tf

IMAGE_SIZE = 24
CLASSES = 10
RECORD_SIDE = 32
RECORD_BYTES = 1 + 3 * RECORD_SIDE**2
EXAMPLES_PER_EPOCH = 50_000
EPOCHS_PER_DECAY = 350.0
DECAY_FACTOR = 0.1
LEARNING_RATE = 0.1
AVERAGE_DECAY = 0.9999


def write_synthetic_data(folder, files=2, examples=200, seed=0):
    """Writes files in CIFAR-10's format: a bar across a noisy image, placed and coloured by its class."""
    random = np.random.RandomState(seed)
    os.makedirs(folder, exist_ok=True)
    for number in range(1, files + 1):
        labels = random.randint(0, CLASSES, examples)
        images = random.randint(0, 100, (examples, 3, RECORD_SIDE, RECORD_SIDE))
        for image, label in zip(images, labels, strict=True):
            image[label % 3, 6 + 2 * label : 9 + 2 * label] += 150
        records = np.concatenate([labels[:, None], images.reshape(examples, -1)], axis=1).astype(np.uint8)
        records.tofile(os.path.join(folder, f"data_batch_{number}.bin"))


def read_example(filenames):
    """One example of the files in the queue `filenames`: an image of 32 by 32 by 3 in 0..255, and its class."""
    _, record = tf.FixedLengthRecordReader(record_bytes=RECORD_BYTES).read(filenames)
    record = tf.decode_raw(record, tf.uint8)
    label = tf.cast(record[0], tf.int32)
    by_channel = tf.reshape(tf.strided_slice(record, [1], [RECORD_BYTES]), [3, RECORD_SIDE, RECORD_SIDE])
    return tf.cast(tf.transpose(by_channel, [1, 2, 0]), tf.float32), label


def distorted_inputs(folder, batch_size, min_after_dequeue=1000, seed=None):
    """Shuffled batches of images cropped, flipped, brightened and contrasted at random, and their classes."""
    files = sorted(tf.gfile.Glob(os.path.join(folder, "data_batch_*.bin")))
    if not files:
        raise ValueError(f"No data_batch_*.bin in '{folder}'. It must hold CIFAR-10's binary files.")
    with tf.name_scope("data_augmentation"):
        image, label = read_example(tf.train.string_input_producer(files, seed=seed))
        image = tf.random_crop(image, [IMAGE_SIZE, IMAGE_SIZE, 3], seed=seed)
        image = tf.image.random_flip_left_right(image, seed=seed)
        image = tf.image.random_brightness(image, max_delta=63, seed=seed)
        image = tf.image.random_contrast(image, lower=0.2, upper=1.8, seed=seed)
        image = tf.image.per_image_standardization(image)
    images, labels = tf.train.shuffle_batch(
        [image, label],
        batch_size,
        capacity=min_after_dequeue + 3 * batch_size,
        min_after_dequeue=min_after_dequeue,
        num_threads=2,
        seed=seed,
    )
    tf.summary.image("images", images)
    return images, labels


def _weights(name, shape, stddev, decay=0.0):
    """A variable on the CPU, shared by all towers; its decay goes to the collection of losses."""
    with tf.device("/cpu:0"):
        weights = tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=stddev))
    if decay:
        tf.add_to_collection("losses", tf.multiply(tf.nn.l2_loss(weights), decay, name="weight_decay"))
    return weights


def _biases(size, value):
    with tf.device("/cpu:0"):
        return tf.get_variable("biases", [size], initializer=tf.constant_initializer(value))


def _convolution(inputs, filters, bias):
    kernel = _weights("weights", [5, 5, int(inputs.shape[3]), filters], stddev=5e-2)
    outputs = tf.nn.conv2d(inputs, kernel, [1, 1, 1, 1], padding="SAME")
    return tf.nn.relu(tf.nn.bias_add(outputs, _biases(filters, bias)))


def _pool(inputs, name):
    return tf.nn.max_pool(inputs, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME", name=name)


def _normalize(inputs, name):
    return tf.nn.lrn(inputs, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75, name=name)


def _dense(inputs, units):
    weights = _weights("weights", [int(inputs.shape[1]), units], stddev=0.04, decay=0.004)
    return tf.nn.relu(tf.matmul(inputs, weights) + _biases(units, 0.1))


def inference(images):
    """The logits of ten classes: two convolutions, two dense layers, a linear one."""
    with tf.variable_scope("conv1"):
        net = _convolution(images, 64, bias=0.0)
    net = _normalize(_pool(net, "pool1"), "norm1")
    with tf.variable_scope("conv2"):
        net = _convolution(net, 64, bias=0.1)
    net = _pool(_normalize(net, "norm2"), "pool2")
    side = int(net.shape[1])
    net = tf.reshape(net, [-1, side * side * 64])
    with tf.variable_scope("local3"):
        net = _dense(net, 384)
    with tf.variable_scope("local4"):
        net = _dense(net, 192)
    with tf.variable_scope("softmax_linear"):
        weights = _weights("weights", [192, CLASSES], stddev=1 / 192.0)
        return tf.add(tf.matmul(net, weights), _biases(CLASSES, 0.0), name="logits")


def loss(logits, labels, scope=None):
    """The mean cross-entropy plus the weight decay of variables under `scope`; both are in the collection."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.cast(labels, tf.int64), logits=logits)
    tf.add_to_collection("losses", tf.reduce_mean(cross_entropy, name="cross_entropy"))
    return tf.add_n(tf.get_collection("losses", scope), name="total_loss")
