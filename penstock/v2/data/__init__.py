"""Input pipelines."""

from penstock.data.dataset import Dataset
from penstock.data.elements import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from penstock.data.inputs import AUTOTUNE
from penstock.data.options import Options, ThreadingOptions
from penstock.data.readers import FixedLengthRecordDataset, TextLineDataset, TFRecordDataset
from penstock.data.structure import DatasetSpec
from penstock.eager.iterators import OwnedIterator as Iterator
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
