"""Random numbers."""

from penstock.face.missing import guard as _guard
from penstock.graph.scopes import get_seed, set_random_seed
from penstock.ops.random.gamma_poisson import random_gamma as gamma
from penstock.ops.random.gamma_poisson import random_poisson as poisson
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

__getattr__ = _guard(__name__)
