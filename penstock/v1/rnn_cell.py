"""Recurrent cells: `tf.nn.rnn_cell`."""

from penstock.face.missing import guard as _guard
from penstock.rnn.base import RNNCell
from penstock.rnn.cells import BasicLSTMCell, BasicRNNCell, GRUCell, LSTMCell, LSTMStateTuple
from penstock.rnn.wrappers import DeviceWrapper, DropoutWrapper, MultiRNNCell, ResidualWrapper

__getattr__ = _guard(__name__)
