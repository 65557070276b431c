"""Training on several devices and tasks."""

from penstock.distribute.context import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from penstock.distribute.input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    InputOptions,
    InputReplicationMode,
)
from penstock.distribute.mirrored import MirroredStrategy, OneDeviceStrategy
from penstock.distribute.parameter_server import ParameterServerStrategyV2 as ParameterServerStrategy
from penstock.distribute.replicas import ReplicaContext
from penstock.distribute.strategy import Strategy, StrategyExtended
from penstock.distribute.values import DistributedValues, ReduceOp
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing
from penstock.server import Server

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
