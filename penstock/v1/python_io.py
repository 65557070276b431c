"""TFRecord files, read and written by Python."""

from penstock.face.missing import guard as _guard
from penstock.ops.io.readers import TFRecordCompressionType, TFRecordOptions, TFRecordWriter, tf_record_iterator

__getattr__ = _guard(__name__)
