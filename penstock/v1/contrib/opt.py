"""Optimizers of `tf.contrib.opt`."""

from penstock.face.missing import guard as _guard
from penstock.optim.adam_gs import AdamGSOptimizer, LazyAdamGSOptimizer
from penstock.optim.adamax import AdaMaxOptimizer
from penstock.optim.amsgrad import AMSGradOptimizer
from penstock.optim.drop_stale import DropStaleGradientOptimizer
from penstock.optim.external import ExternalOptimizerInterface, ScipyOptimizerInterface
from penstock.optim.ggt import GGTOptimizer
from penstock.optim.kfac import KFACOptimizer
from penstock.optim.kfac_layers import LayerCollection
from penstock.optim.lamb import LAMBOptimizer
from penstock.optim.lars import LARSOptimizer
from penstock.optim.lazy_adam import LazyAdamOptimizer
from penstock.optim.multitask import MultitaskOptimizerWrapper, clip_gradients_by_global_norm
from penstock.optim.nadam import NadamOptimizer
from penstock.optim.reg_adagrad import RegAdagradOptimizer
from penstock.optim.shampoo import ShampooOptimizer
from penstock.optim.sign import AddSignOptimizer, PowerSignOptimizer
from penstock.optim.sign_decay import get_cosine_decay_fn, get_linear_decay_fn, get_restart_decay_fn
from penstock.optim.variable_clipping import VariableClippingOptimizer
from penstock.optim.weight_decay import (
    AdamWOptimizer,
    DecoupledWeightDecayExtension,
    MomentumWOptimizer,
    extend_with_decoupled_weight_decay,
)
from penstock.train.accumulated_gradients import AGNCustomGetter, AGNOptimizer
from penstock.train.bounded_staleness import BoundedStalenessOptimizer
from penstock.train.elastic_average import ElasticAverageCustomGetter, ElasticAverageOptimizer
from penstock.train.model_average import ModelAverageCustomGetter, ModelAverageOptimizer
from penstock.train.moving_average_optimizer import MovingAverageOptimizer
from penstock.train.softsync import SoftsyncOptimizer

__getattr__ = _guard(__name__)
