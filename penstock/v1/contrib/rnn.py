"""Recurrent networks: `tf.contrib.rnn`."""

from penstock.contrib.rnn import (
    AttentionCellWrapper,
    EmbeddingWrapper,
    HighwayWrapper,
    InputProjectionWrapper,
    OutputProjectionWrapper,
    stack_bidirectional_dynamic_rnn,
    stack_bidirectional_rnn,
)
from penstock.face.missing import guard as _guard
from penstock.rnn.base import LayerRNNCell, RNNCell
from penstock.rnn.block_cells import (
    FusedRNNCell,
    FusedRNNCellAdaptor,
    GRUBlockCell,
    GRUBlockCellV2,
    LayerNormBasicLSTMCell,
    LSTMBlockCell,
    LSTMBlockFusedCell,
    TimeReversedFusedRNN,
)
from penstock.rnn.cells import BasicLSTMCell, BasicRNNCell, GRUCell, LSTMCell, LSTMStateTuple
from penstock.rnn.dynamic import transpose_batch_time
from penstock.rnn.static import static_bidirectional_rnn, static_rnn, static_state_saving_rnn
from penstock.rnn.wrappers import DeviceWrapper, DropoutWrapper, MultiRNNCell, ResidualWrapper

__getattr__ = _guard(__name__)
