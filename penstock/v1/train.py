"""Optimizers and the global step."""

from penstock.face.missing import guard as _guard
from penstock.optim.adadelta import AdadeltaOptimizer
from penstock.optim.adagrad import AdagradOptimizer
from penstock.optim.adagrad_da import AdagradDAOptimizer
from penstock.optim.adam import AdamOptimizer
from penstock.optim.ftrl import FtrlOptimizer
from penstock.optim.gradient_descent import GradientDescentOptimizer
from penstock.optim.momentum import MomentumOptimizer
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
from penstock.train.coordinator import Coordinator, LooperThread
from penstock.train.queue_runner import QueueRunner, add_queue_runner, start_queue_runners
from penstock.variables.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)
from penstock.variables.moving_averages import ExponentialMovingAverage

__getattr__ = _guard(__name__)
