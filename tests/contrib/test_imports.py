"""Programs import tf.contrib and TensorFlow's internal layers in several forms; each form works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.compat import alias

PROGRAMS = [
    "import tensorflow.contrib.slim as slim; slim.conv2d, slim.layers.conv2d, slim.losses.softmax_cross_entropy",
    "import tensorflow as tf; slim = tf.contrib.slim; slim.arg_scope, slim.learning.create_train_op, slim.utils",
    "from tensorflow.contrib import slim, layers, framework, rnn; slim.repeat, layers.flatten, framework.arg_scope",
    "from tensorflow.contrib.layers import xavier_initializer, l2_regularizer, batch_norm",
    "from tensorflow.contrib.framework import add_arg_scope, arg_scope, get_or_create_global_step",
    "from tensorflow.contrib.framework.python.ops import arg_scope, add_arg_scope, variables",
    "from tensorflow.contrib.layers.python.layers import initializers, layers, utils; initializers.xavier_initializer",
    "from tensorflow.contrib.slim.python.slim import learning; learning.train",
    "from tensorflow.contrib.training import HParams",
    "from tensorflow.contrib.training.python.training.hparam import HParams",
    "import tensorflow.contrib.distributions as ds; ds.Normal",
    "from tensorflow.python.layers import convolutional as conv_layers; conv_layers.conv2d, conv_layers.Conv2D",
    "from tensorflow.python.layers import core as core_layers, pooling as pooling_layers; core_layers.dropout",
    "from tensorflow.python.layers import base, normalization, utils; utils.smart_cond, base.Layer",
    "from tensorflow.python.layers.core import Dense",
    "from tensorflow.python.framework.smart_cond import smart_cond",
    "from tensorflow.python.ops import metrics_impl, array_ops, control_flow_ops; metrics_impl.auc",
    "from tensorflow.python.ops.distributions import normal, categorical; normal.Normal, categorical.Categorical",
    "import tensorflow.compat.v1 as tf; tf.layers.dense, tf.metrics.auc, tf.distributions.Normal",
]


@pytest.fixture(autouse=True)
def aliased() -> Iterator[None]:
    alias.install()
    yield
    alias.uninstall()


@pytest.mark.parametrize("program", PROGRAMS)
def test_import(program: str) -> None:
    namespace: dict[str, Any] = {}
    exec(program, namespace)
