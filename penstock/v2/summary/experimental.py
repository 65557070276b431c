"""Names of `tf.summary.experimental`."""

from penstock.face.missing import guard as _guard
from penstock.summary.recording import get_step, set_step, summary_scope, write_raw_pb

__getattr__ = _guard(__name__)
