"""`tf.data`: input pipelines."""

from penstock.data.dataset import Dataset, make_initializable_iterator, make_one_shot_iterator
from penstock.data.iterator import Iterator
from penstock.data.iterator import get_legacy_output_classes as get_output_classes
from penstock.data.iterator import get_legacy_output_shapes as get_output_shapes
from penstock.data.iterator import get_legacy_output_types as get_output_types
from penstock.data.options import Options
from penstock.data.readers import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.train.shards import Shards

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
