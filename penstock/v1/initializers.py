"""Initializers of variables."""

from penstock.face.missing import guard as _guard
from penstock.variables.initialize import global_variables_initializer as global_variables
from penstock.variables.initialize import local_variables_initializer as local_variables
from penstock.variables.initialize import tables_initializer
from penstock.variables.initialize import variables_initializer as variables
from penstock.variables.initializers import constant_initializer as constant
from penstock.variables.initializers import glorot_normal_initializer as glorot_normal
from penstock.variables.initializers import glorot_uniform_initializer as glorot_uniform
from penstock.variables.initializers import he_normal, he_uniform, lecun_normal, lecun_uniform
from penstock.variables.initializers import identity_initializer as identity
from penstock.variables.initializers import ones_initializer as ones
from penstock.variables.initializers import orthogonal_initializer as orthogonal
from penstock.variables.initializers import random_normal_initializer as random_normal
from penstock.variables.initializers import random_uniform_initializer as random_uniform
from penstock.variables.initializers import truncated_normal_initializer as truncated_normal
from penstock.variables.initializers import uniform_unit_scaling_initializer as uniform_unit_scaling
from penstock.variables.initializers import variance_scaling_initializer as variance_scaling
from penstock.variables.initializers import zeros_initializer as zeros

__getattr__ = _guard(__name__)
