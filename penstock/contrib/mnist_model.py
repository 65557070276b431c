"""The network of TensorFlow's MNIST tutorial: two hidden layers, trained by gradient descent."""

from __future__ import annotations

import math
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.io import summary
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import add
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.nn.activation import relu
from penstock.ops.nn.collected_losses import sparse_softmax_cross_entropy
from penstock.ops.nn.layer_parts import in_top_k
from penstock.ops.random.stateful import truncated_normal
from penstock.optim.gradient_descent import GradientDescentOptimizer
from penstock.variables.variable import Variable

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def _layer(name: str, inputs: Any, units: int, activation: Any = None) -> Tensor:
    width = int(inputs.shape[1])
    with name_scope(name):
        weights = Variable(truncated_normal([width, units], stddev=1.0 / math.sqrt(width)), name="weights")
        outputs = add(matmul(inputs, weights), Variable(zeros([units]), name="biases"))
        return outputs if activation is None else activation(outputs)


def inference(images: TensorLike, hidden1_units: int, hidden2_units: int) -> Tensor:
    """The logits of ten digits for rows of 784 pixels.

    >>> logits = mnist.inference(images, 128, 32)
    """
    hidden = _layer("hidden1", images, hidden1_units, relu)
    hidden = _layer("hidden2", hidden, hidden2_units, relu)
    return _layer("softmax_linear", hidden, NUM_CLASSES)


def loss(logits: TensorLike, labels: TensorLike) -> Tensor:
    """The mean cross-entropy."""
    return sparse_softmax_cross_entropy(labels=cast(labels, dt.int64), logits=logits)


def training(loss: TensorLike, learning_rate: TensorLike) -> Any:
    """The op of a training step, with a summary of the loss and a global step."""
    summary.scalar("loss", loss)
    step = Variable(0, name="global_step", trainable=False)
    return GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step)


def evaluation(logits: TensorLike, labels: TensorLike) -> Tensor:
    """The number of examples whose label is the most likely class."""
    return reduce_sum(cast(in_top_k(logits, labels, 1), dt.int32))
