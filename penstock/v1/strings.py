"""`tf.strings`."""

from penstock.face.missing import guard as _guard
from penstock.ops.string.forms import as_string, lower, substr, upper
from penstock.ops.string.forms import string_length as length
from penstock.ops.string.forms import string_strip as strip
from penstock.ops.string.forms import string_to_hash_bucket as to_hash_bucket
from penstock.ops.string.forms import string_to_hash_bucket_fast as to_hash_bucket_fast
from penstock.ops.string.forms import string_to_hash_bucket_strong as to_hash_bucket_strong
from penstock.ops.string.forms import string_to_number as to_number
from penstock.ops.string.join import reduce_join, unsorted_segment_join
from penstock.ops.string.join import string_format as format
from penstock.ops.string.join import string_join as join
from penstock.ops.string.regex import regex_full_match, regex_replace
from penstock.ops.string.split import ngrams, split
from penstock.ops.string.unicode import (
    unicode_decode,
    unicode_decode_with_offsets,
    unicode_encode,
    unicode_script,
    unicode_split,
    unicode_split_with_offsets,
    unicode_transcode,
)
from penstock.ops.string.v2 import bytes_split

__getattr__ = _guard(__name__)
