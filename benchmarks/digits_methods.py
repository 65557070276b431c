"""The training methods that `distributed_optimizers.py` compares, one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import optax

import penstock
import penstock.v1 as tf

opt = tf.contrib.opt

BIASES = ["bias"]  # parts of the names of variables that LARS and LAMB do not scale
LARGE = 16  # how many times the usual batch a large batch is


@dataclass(frozen=True)
class Place:
    """A worker's place in the cluster and in its program."""

    index: int
    workers: int
    device: str
    steps: int  # how many each worker makes
    global_step: Any
    getter: Any = None

    @property
    def is_chief(self) -> bool:
        return self.index == 0


def no_hooks(rule: Any, at: Place) -> list[Any]:
    """The hooks of a method that needs none."""
    return []


@dataclass(frozen=True)
class Method:
    """How a method's optimizer is made, the custom getter for its variables, and the hooks of its sessions.

    If steps are `shared`, workers stop by the global step, since a fast one makes more of them than a slow one. A
    method that is `longer` makes so many times the steps of the others.
    """

    make: Callable[[Place], Any]
    getter: Callable[[str], Any] | None = None
    hooks: Callable[[Any, Place], list[Any]] = field(default=no_hooks)
    shared: bool = False
    longer: int = 1


def sgd(rate: float = 0.3) -> Any:
    return tf.train.GradientDescentOptimizer(rate)


def momentum(rate: float = 0.03) -> Any:
    return tf.train.MomentumOptimizer(rate, 0.9)


def model_average(interval: int) -> Method:
    return Method(
        lambda at: opt.ModelAverageOptimizer(momentum(), at.workers, at.is_chief, at.getter, interval),
        getter=opt.ModelAverageCustomGetter,
        hooks=lambda rule, at: [rule.make_session_run_hook()],
    )


def elastic_average(period: int) -> Method:
    # By default the center moves more slowly, for trainings that are longer than this one.
    return Method(
        lambda at: opt.ElasticAverageOptimizer(momentum(), at.workers, at.getter, period, 0.9 / at.workers, rho=0.0),
        getter=opt.ElasticAverageCustomGetter,
        hooks=lambda rule, at: [rule.make_session_run_hook(at.is_chief, at.index)],
    )


def decayed(rate: float, at: Place, batch: int = 1) -> Any:
    """A learning rate that falls to zero: the steps of LARS and LAMB do not become shorter when gradients do."""
    return tf.train.polynomial_decay(rate, at.global_step, at.workers * at.steps // batch, 0.0, power=2.0)


def lars(at: Place, rate: float, batch: int = 1) -> Any:
    return opt.LARSOptimizer(decayed(rate, at, batch), eeta=0.1, skip_list=BIASES)


def large(rule: Any, at: Place) -> Any:
    """`rule` on batches of several steps, which are summed on the worker."""
    return tf.train.GradientAccumulationOptimizer(rule, LARGE, worker_device=at.device)


def clipped(at: Place) -> Any:
    """Momentum, with the columns of each weight matrix held to a norm."""
    kernels = {v: [0] for v in tf.trainable_variables() if "kernel" in v.name}
    return opt.VariableClippingOptimizer(momentum(), kernels, max_norm=3.0, colocate_clip_ops_with_vars=True)


# Methods that differ in what workers send, when they wait, and whose state they train from.
DISTRIBUTED = {
    "async SGD": Method(lambda at: sgd()),
    "async momentum": Method(lambda at: momentum()),
    "async Adam": Method(lambda at: tf.train.AdamOptimizer(0.002)),
    "SyncReplicas": Method(
        lambda at: tf.train.SyncReplicasOptimizer(momentum(), at.workers),
        hooks=lambda rule, at: [rule.make_session_run_hook(at.is_chief)],
        shared=True,
    ),
    "ModelAverage, interval 20": model_average(20),
    "ModelAverage, interval 25": model_average(25),
    "ElasticAverage, period 10": elastic_average(10),
    "ElasticAverage, period 25": elastic_average(25),
    "AGN, period 10": Method(
        lambda at: opt.AGNOptimizer(momentum(0.1), at.workers, at.getter, communication_period=10),
        getter=opt.AGNCustomGetter,
        hooks=lambda rule, at: [rule.make_session_run_hook(at.is_chief, at.index)],
    ),
    "DropStale, staleness 2": Method(lambda at: opt.DropStaleGradientOptimizer(momentum(), staleness=2)),
    "BoundedStaleness, s = 1": Method(
        lambda at: opt.BoundedStalenessOptimizer(momentum(), 1, at.workers, at.index),
        hooks=lambda rule, at: [rule.make_session_run_hook()],
    ),
    "Softsync, n = 1": Method(
        lambda at: opt.SoftsyncOptimizer(momentum(), n=1, total_num_replicas=at.workers),
        hooks=lambda rule, at: [rule.make_session_run_hook()],
    ),
    "DGC, 99.9% sparse": Method(lambda at: tf.train.DeepGradientCompressionOptimizer(sgd(0.03), momentum=0.9)),
    "OneBit": Method(lambda at: tf.train.OneBitOptimizer(momentum())),
    "bfloat16 gradients": Method(lambda at: tf.train.WireFormatOptimizer(momentum(), tf.bfloat16)),
    "K-FAC": Method(lambda at: opt.KFACOptimizer(0.1, damping=0.03, momentum=0.0, norm_constraint=0.01)),
    "LARS": Method(lambda at: lars(at, 0.03), longer=3),
    "LARS, 16x batch": Method(lambda at: large(lars(at, 0.1, LARGE), at), longer=3),
    "LAMB, 16x batch": Method(
        lambda at: large(opt.LAMBOptimizer(decayed(0.02, at, LARGE), skip_list=BIASES), at), longer=3
    ),
}

# Rules for an update, here all asynchronous and per step.
RULES = {
    "AdaMax": Method(lambda at: opt.AdaMaxOptimizer(0.002)),
    "AdamW": Method(lambda at: opt.AdamWOptimizer(1e-4, 0.002)),
    "AddSign": Method(lambda at: opt.AddSignOptimizer(0.01, sign_decay_fn=opt.get_cosine_decay_fn(2 * at.steps))),
    "AMSGrad": Method(lambda at: opt.AMSGradOptimizer(0.002)),
    "GGT": Method(lambda at: opt.GGTOptimizer(0.01)),
    "LazyAdam": Method(lambda at: opt.LazyAdamOptimizer(0.002)),
    "MomentumW": Method(lambda at: opt.MomentumWOptimizer(1e-4, 0.03, 0.9)),
    "MovingAverage": Method(lambda at: opt.MovingAverageOptimizer(momentum(), 0.99)),
    "Nadam": Method(lambda at: opt.NadamOptimizer(0.002)),
    "Optax's lion": Method(lambda at: penstock.from_optax(optax.lion(5e-4))),
    "PowerSign": Method(lambda at: opt.PowerSignOptimizer(0.01, sign_decay_fn=opt.get_linear_decay_fn(2 * at.steps))),
    "RegAdagrad": Method(lambda at: opt.RegAdagradOptimizer(0.05)),
    "Shampoo": Method(lambda at: opt.ShampooOptimizer(at.global_step, learning_rate=0.01, svd_interval=20)),
    "VariableClipping": Method(clipped),
}

METHODS = {**DISTRIBUTED, **RULES}
