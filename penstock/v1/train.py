"""Optimizers and the global step."""

from penstock.face.missing import guard as _guard
from penstock.optim.adam import AdamOptimizer
from penstock.optim.gradient_descent import GradientDescentOptimizer
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.optimizer import Optimizer
from penstock.variables.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)

__getattr__ = _guard(__name__)
