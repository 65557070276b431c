"""Names of `tf.distribute` that TensorFlow calls experimental."""

from penstock.distribute.input import ValueContext
from penstock.distribute.parameter_server import ParameterServerStrategyV2 as ParameterServerStrategy
from penstock.distribute.recovery import PSRecovery
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
