"""Optimizers and the global step."""

from tensorboard.compat.proto.cluster_pb2 import ClusterDef, JobDef
from tensorboard.compat.proto.saver_pb2 import SaverDef

from penstock.checkpoint.messages import CheckpointState
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
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
from penstock.optim.accumulation import GradientAccumulationOptimizer
from penstock.optim.adadelta import AdadeltaOptimizer
from penstock.optim.adagrad import AdagradOptimizer
from penstock.optim.adagrad_da import AdagradDAOptimizer
from penstock.optim.adam import AdamOptimizer
from penstock.optim.deep_compression import DeepGradientCompressionOptimizer
from penstock.optim.ftrl import FtrlOptimizer
from penstock.optim.gradient_descent import GradientDescentOptimizer
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.one_bit import OneBitOptimizer
from penstock.optim.optimizer import Optimizer
from penstock.optim.proximal import ProximalAdagradOptimizer, ProximalGradientDescentOptimizer
from penstock.optim.rmsprop import RMSPropOptimizer
from penstock.optim.schedules import (
    cosine_decay,
    cosine_decay_restarts,
    exponential_decay,
    inverse_time_decay,
    linear_cosine_decay,
    natural_exp_decay,
    noisy_linear_cosine_decay,
    piecewise_constant,
    polynomial_decay,
)
from penstock.optim.wire_format import WireFormatOptimizer
from penstock.summary.writer import FileWriter as SummaryWriter
from penstock.summary.writer import FileWriterCache as SummaryWriterCache
from penstock.summary.writer import summary_iterator
from penstock.train import queue_runner
from penstock.train.basic_loops import basic_train_loop
from penstock.train.bounded_staleness import BoundedStalenessOptimizer
from penstock.train.checkpoint_state import (
    checkpoint_exists,
    generate_checkpoint_state_proto,
    get_checkpoint_mtimes,
    get_checkpoint_state,
    latest_checkpoint,
    remove_checkpoint,
    update_checkpoint_state,
)
from penstock.train.checkpoint_utils import (
    CheckpointReader,
    NewCheckpointReader,
    init_from_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
    warm_start,
)
from penstock.train.coordinator import Coordinator, LooperThread
from penstock.train.device_setter import replica_device_setter
from penstock.train.evaluation import checkpoints_iterator
from penstock.train.hook_timing import SecondOrStepTimer
from penstock.train.hooks import (
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    StopAtStepHook,
)
from penstock.train.input_batches import (
    batch,
    batch_join,
    maybe_batch,
    maybe_batch_join,
    maybe_shuffle_batch,
    maybe_shuffle_batch_join,
    shuffle_batch,
    shuffle_batch_join,
)
from penstock.train.input_producers import (
    input_producer,
    limit_epochs,
    match_filenames_once,
    range_input_producer,
    slice_input_producer,
    string_input_producer,
)
from penstock.train.meta_graph import export_meta_graph, write_graph
from penstock.train.monitored_session import MonitoredSession, MonitoredTrainingSession, SingularMonitoredSession
from penstock.train.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from penstock.train.saver import Saver, import_meta_graph
from penstock.train.scaffold import Scaffold
from penstock.train.session_creators import ChiefSessionCreator, SessionCreator, WorkerSessionCreator
from penstock.train.session_manager import SessionManager
from penstock.train.session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues
from penstock.train.softsync import SoftsyncOptimizer
from penstock.train.supervisor import Supervisor
from penstock.train.sync_replicas import SyncReplicasOptimizer
from penstock.train.writing_hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    ProfilerHook,
    StepCounterHook,
    SummarySaverHook,
)
from penstock.variables.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from penstock.variables.moving_averages import ExponentialMovingAverage

__getattr__ = _guard(__name__, more="penstock.v1._servers")
__dir__ = _listing(__name__, more="penstock.v1._servers")
