"""Files, records, parsing, serialised tensors."""

from penstock.face.missing import guard as _guard
from penstock.ops.image.codecs import (
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
from penstock.ops.io.decoding import decode_compressed, decode_json_example, parse_tensor, serialize_tensor
from penstock.ops.io.files import matching_files, read_file, write_file
from penstock.ops.io.parse_features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    parse_sequence_example,
    parse_single_sequence_example,
)
from penstock.ops.io.readers import TFRecordOptions, TFRecordWriter
from penstock.ops.io.v2 import decode_csv, decode_raw, parse_example, parse_single_example
from penstock.ops.sparse.serialize import deserialize_many_sparse
from penstock.ops.sparse.v2 import serialize_many_sparse, serialize_sparse
from penstock.ops.string.forms import decode_base64, encode_base64
from penstock.train.input_producers import match_filenames_once
from penstock.train.meta_graph import write_graph

__getattr__ = _guard(__name__)
