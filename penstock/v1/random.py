"""Random numbers."""

from penstock.face.missing import guard as _guard
from penstock.graph.scopes import get_seed, set_random_seed
from penstock.ops.random.algorithms import Algorithm
from penstock.ops.random.gamma_poisson import random_gamma as gamma
from penstock.ops.random.gamma_poisson import random_poisson as poisson
from penstock.ops.random.seed_tools import fold_in, split
from penstock.ops.random.stateful import categorical, multinomial, truncated_normal
from penstock.ops.random.stateful import random_normal as normal
from penstock.ops.random.stateful import random_shuffle as shuffle
from penstock.ops.random.stateful import random_uniform as uniform
from penstock.ops.random.stateless import (
    stateless_binomial,
    stateless_categorical,
    stateless_gamma,
    stateless_multinomial,
    stateless_normal,
    stateless_poisson,
    stateless_truncated_normal,
    stateless_uniform,
)
from penstock.variables.random_generator import Generator, create_rng_state, get_global_generator, set_global_generator

__getattr__ = _guard(__name__)
