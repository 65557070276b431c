"""Checkpoints, examples, clusters, learning rates."""

from tensorboard.compat.proto.cluster_pb2 import ClusterDef, JobDef

from penstock.face.missing import guard as _guard
from penstock.master.cluster import ClusterSpec
from penstock.ops.io.example_proto import (
    BytesList,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
)
from penstock.train.checkpoint_manager import CheckpointManager
from penstock.train.checkpoint_state import get_checkpoint_state, latest_checkpoint
from penstock.train.checkpoint_utils import list_variables, load_checkpoint, load_variable
from penstock.train.checkpoint_writing import CheckpointOptions
from penstock.train.coordinator import Coordinator
from penstock.train.evaluation import checkpoints_iterator
from penstock.train.object_checkpoint import Checkpoint
from penstock.variables.moving_averages import ExponentialMovingAverage

__getattr__ = _guard(__name__)
