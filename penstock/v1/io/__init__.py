"""`tf.io`."""

from penstock.face.missing import guard as _guard
from penstock.ops.decode_csv import decode_csv
from penstock.ops.files import matching_files, read_file, write_file
from penstock.ops.image_codecs import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from penstock.ops.parse_features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from penstock.ops.parsing import (
    decode_compressed,
    decode_json_example,
    decode_raw,
    parse_tensor,
    serialize_tensor,
)
from penstock.ops.queue import PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from penstock.ops.serialize_sparse import deserialize_many_sparse, serialize_many_sparse, serialize_sparse
from penstock.ops.string_forms import decode_base64, encode_base64
from penstock.train.meta_graph import write_graph

__getattr__ = _guard(__name__)
