"""Probability distributions."""

from penstock.contrib.distributions.base import (
    FULLY_REPARAMETERIZED,
    NOT_REPARAMETERIZED,
    Distribution,
    RegisterKL,
    ReparameterizationType,
    kl_divergence,
)
from penstock.contrib.distributions.bernoulli import Bernoulli
from penstock.contrib.distributions.beta import Beta
from penstock.contrib.distributions.categorical import Categorical
from penstock.contrib.distributions.dirichlet import Dirichlet, DirichletMultinomial, Multinomial
from penstock.contrib.distributions.gamma import Exponential, Gamma
from penstock.contrib.distributions.laplace import Laplace
from penstock.contrib.distributions.normal import Normal
from penstock.contrib.distributions.student_t import StudentT
from penstock.contrib.distributions.uniform import Uniform
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
