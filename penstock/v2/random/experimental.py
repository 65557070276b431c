"""The older names of `tf.random`'s generators and seeds."""

from penstock.face.missing import guard as _guard
from penstock.ops.random.algorithms import Algorithm
from penstock.ops.random.seed_tools import fold_in as stateless_fold_in
from penstock.ops.random.seed_tools import split as stateless_split
from penstock.ops.random.seed_tools import stateless_shuffle
from penstock.variables.random_generator import Generator, create_rng_state, get_global_generator, set_global_generator

__getattr__ = _guard(__name__)
