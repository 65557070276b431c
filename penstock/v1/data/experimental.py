"""`tf.data.experimental`."""

from penstock.data.csv import CsvDataset, make_batched_features_dataset, make_csv_dataset, parse_example_dataset
from penstock.data.elements import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    TFRecordWriter,
    cardinality,
    from_variant,
    get_single_element,
    get_structure,
    to_variant,
)
from penstock.data.inputs import AUTOTUNE
from penstock.data.optional import Optional, get_next_as_optional
from penstock.data.options import DistributeOptions, OptimizationOptions, StatsOptions, ThreadingOptions
from penstock.data.transformations import (
    Counter,
    RandomDataset,
    assert_cardinality,
    bucket_by_sequence_length,
    choose_from_datasets,
    copy_to_device,
    dense_to_sparse_batch,
    enumerate_dataset,
    group_by_window,
    ignore_errors,
    map_and_batch,
    map_and_batch_with_legacy_function,
    parallel_interleave,
    prefetch_to_device,
    rejection_resample,
    sample_from_datasets,
    scan,
    shuffle_and_repeat,
    take_while,
    unbatch,
    unique,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
