"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.io import decode_csv as csv
from penstock.ops.io import decoding, parse_features

decode_csv = adapted(
    csv.decode_csv,
    "records, record_defaults, field_delim=',', use_quote_delim=True, na_value='', select_cols=None, name=None",
)
decode_raw = adapted(
    decoding.decode_raw, "input_bytes, out_type, little_endian=True, fixed_length: _ = None, name=None"
)
parse_example = adapted(parse_features.parse_example, "serialized, features, example_names=None, name=None")
parse_single_example = adapted(
    parse_features.parse_single_example, "serialized, features, example_names=None, name=None"
)
