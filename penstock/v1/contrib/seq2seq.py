"""Sequence to sequence models: `tf.contrib.seq2seq`."""

from penstock.contrib.seq2seq.attention import (
    AttentionMechanism,
    BahdanauAttention,
    LuongAttention,
    hardmax,
    safe_cumprod,
)
from penstock.contrib.seq2seq.attention_wrapper import AttentionWrapper, AttentionWrapperState
from penstock.contrib.seq2seq.beam_search import (
    BeamSearchDecoder,
    BeamSearchDecoderOutput,
    BeamSearchDecoderState,
    FinalBeamSearchDecoderOutput,
    gather_tree,
    tile_batch,
)
from penstock.contrib.seq2seq.decoder import BasicDecoder, BasicDecoderOutput, Decoder, dynamic_decode
from penstock.contrib.seq2seq.helper import (
    CustomHelper,
    GreedyEmbeddingHelper,
    Helper,
    InferenceHelper,
    SampleEmbeddingHelper,
    ScheduledEmbeddingTrainingHelper,
    ScheduledOutputTrainingHelper,
    TrainingHelper,
)
from penstock.contrib.seq2seq.loss import sequence_loss
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
