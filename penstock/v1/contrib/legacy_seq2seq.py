"""Sequence to sequence models over lists of time steps: `tf.contrib.legacy_seq2seq`."""

from penstock.contrib.legacy_seq2seq import basic_rnn_seq2seq, rnn_decoder, sequence_loss, sequence_loss_by_example
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
