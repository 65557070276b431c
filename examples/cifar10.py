"""The CIFAR-10 model under the names that TensorFlow's tutorial programs import: `import cifar10`.

A program such as the tutorial's cifar10_multi_gpu_train.py runs unmodified with it:

    PYTHONPATH=examples penstock run cifar10_multi_gpu_train.py --num_gpus=2 --data_dir=/data/cifar-10-batches-bin

Nothing is downloaded: if --data_dir does not exist, synthetic images are written there.
"""

import cifar10_model

import penstock.v1 as tf

tf.flags.DEFINE_integer("batch_size", 128, "How many images make a batch.", lower_bound=1)
tf.flags.DEFINE_string("data_dir", "/tmp/cifar10_data", "CIFAR-10's binary files.")
tf.flags.DEFINE_integer("min_after_dequeue", 1000, "How many images are shuffled at least.", lower_bound=0)
FLAGS = tf.flags.FLAGS

TOWER_NAME = "tower"
IMAGE_SIZE = cifar10_model.IMAGE_SIZE
NUM_CLASSES = cifar10_model.CLASSES
NUM_EXAMPLES_PER_EPOCH_FOR_TRAIN = cifar10_model.EXAMPLES_PER_EPOCH
NUM_EPOCHS_PER_DECAY = cifar10_model.EPOCHS_PER_DECAY
LEARNING_RATE_DECAY_FACTOR = cifar10_model.DECAY_FACTOR
INITIAL_LEARNING_RATE = cifar10_model.LEARNING_RATE
MOVING_AVERAGE_DECAY = cifar10_model.AVERAGE_DECAY

inference = cifar10_model.inference
loss = cifar10_model.loss


def maybe_download_and_extract():
    """Writes synthetic files to --data_dir if there are none."""
    if not tf.gfile.Exists(FLAGS.data_dir):
        tf.logging.warning("'%s' does not exist: writing synthetic images there.", FLAGS.data_dir)
        cifar10_model.write_synthetic_data(FLAGS.data_dir)


def distorted_inputs():
    """Batches of --batch_size randomly distorted images from --data_dir, and their classes."""
    return cifar10_model.distorted_inputs(FLAGS.data_dir, FLAGS.batch_size, FLAGS.min_after_dequeue)
