"""The first names of `tf.data` and of functions that are now in `tf.data.experimental`."""

from penstock.data.csv import CsvDataset, make_batched_features_dataset, make_csv_dataset
from penstock.data.dataset import Dataset
from penstock.data.elements import get_single_element
from penstock.data.inputs import AUTOTUNE
from penstock.data.iterator import Iterator
from penstock.data.readers import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.data.transformations import (
    Counter,
    RandomDataset,
    assert_element_shape,
    batch_and_drop_remainder,
    bucket_by_sequence_length,
    choose_from_datasets,
    copy_to_device,
    enumerate_dataset,
    group_by_window,
    ignore_errors,
    map_and_batch,
    padded_batch_and_drop_remainder,
    parallel_interleave,
    prefetch_to_device,
    sample_from_datasets,
    scan,
    shuffle_and_repeat,
    unbatch,
    unique,
)
from penstock.data.transformations import parallel_interleave as sloppy_interleave
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
