"""Layers whose curvature K-FAC approximates, and the two factors of each.

For a dense layer with the input `a` and the output `s = a W + b`, the Fisher matrix of `[W; b]` is taken as the
Kronecker product of `A = E[a' a'^T]`, where a' is `a` with a 1 behind it for the bias, and `G = E[g g^T]`, where g is
the gradient of one example's loss by s (Martens & Grosse 2015, "Optimizing Neural Networks with Kronecker-factored
Approximate Curvature", arXiv:1503.05671). In a convolution each place of the output is such a layer, on its window of
the input: A is the sum over places, G the mean (Grosse & Martens 2016, "A Kronecker-factored approximate Fisher matrix
for convolution layers", arXiv:1602.01573). A weight that is used several times has its uses for places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import ones
from penstock.ops.array.joining import concat
from penstock.ops.array.passthrough import stop_gradient
from penstock.ops.array.reshaping import reshape, shape, squeeze
from penstock.ops.conv.blocks import extract_image_patches
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.matmul import matmul
from penstock.ops.linalg.solve import cholesky, cholesky_solve, trace
from penstock.ops.math.arithmetic import add_n
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_mean, reduce_sum
from penstock.ops.math.unary import sqrt, square
from penstock.ops.nn.cross_entropy import sparse_softmax_cross_entropy_with_logits
from penstock.ops.random.stateful import multinomial, random_normal
from penstock.optim.lars import ratio_or_one
from penstock.optim.rule import require_positive
from penstock.variables.variable import Variable


@dataclass(frozen=True)
class Window:
    """The settings of a convolution (NHWC), each as its op takes them."""

    strides: tuple[int, ...]
    padding: str
    dilations: tuple[int, ...] = (1, 1, 1, 1)


@dataclass
class Layer:
    """A weight and perhaps a bias, and the pairs (inputs, outputs) of tensors between which they are used."""

    weights: Any
    bias: Any
    window: Window | None = None
    uses: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def variables(self) -> list[Any]:
        """The weight, and the bias if there is one."""
        return [self.weights] if self.bias is None else [self.weights, self.bias]

    @property
    def outputs(self) -> list[Tensor]:
        """The output of each use."""
        return [outputs for _, outputs in self.uses]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of rows of each factor, A and G."""
        *window, channels = self.weights.get_shape().as_list()
        return {"A": math.prod(window) + (self.bias is not None), "G": channels}

    def statistics(self, output_grads: list[Tensor]) -> dict[str, Tensor]:
        """A and G of one batch, from the gradients of its mean loss by the outputs."""
        found: dict[str, list[Any]] = {"A": [], "G": []}
        for (inputs, _), grad in zip(self.uses, output_grads, strict=True):
            a, g = self._rows(inputs), reshape(grad, [-1, self.sizes["G"]])
            batch: Any = cast(shape(inputs)[0], a.dtype)  # type: ignore[index]
            places: Any = cast(shape(g)[0], a.dtype) / batch  # type: ignore[index]
            found["A"].append(matmul(a, a, transpose_a=True) / batch)
            # The gradient of a mean loss is 1 / batch of each example's own: squared that is one factor too many.
            found["G"].append(matmul(g, g, transpose_a=True) * (batch / places / len(self.uses)))
        return {name: add_n(parts) for name, parts in found.items()}

    def _rows(self, inputs: Tensor) -> Tensor:
        """A row for each example and place: the inputs of one output, and a 1 for the bias."""
        if self.window is not None:
            ksizes = [1, *self.weights.get_shape().as_list()[:2], 1]
            strides, rates = list(self.window.strides), list(self.window.dilations)
            inputs = extract_image_patches(inputs, ksizes, strides, rates, self.window.padding)
        rows = reshape(inputs, [-1, self.sizes["A"] - (self.bias is not None)])
        if self.bias is None:
            return rows
        return concat([rows, ones([shape(rows)[0], 1], rows.dtype)], 1)  # type: ignore[index]

    def joined(self, grads: list[Tensor]) -> Tensor:
        """The gradients of weight and bias as one matrix, with a row for each row of A and a column for each of G."""
        return concat([reshape(grad, [-1, self.sizes["G"]]) for grad in grads], 0)

    def parted(self, matrix: Any) -> list[Tensor]:
        """The parts of such a matrix, in the shapes of weight and bias."""
        if self.bias is None:
            return [reshape(matrix, self.weights.get_shape())]
        return [reshape(matrix[:-1], self.weights.get_shape()), matrix[-1]]


def damped_inverses(a: Any, g: Any, damping: Any) -> dict[str, Tensor]:
    """The inverses of `A + pi sqrt(damping) I` and `G + sqrt(damping) / pi I`; NaN where there is none.

    pi^2, the ratio of the mean eigenvalues of A and G, divides the damping so that it weighs the same in both (section
    6.3 of the first paper).
    """
    means: list[Any] = [trace(factor) / factor.get_shape()[0].value for factor in (a, g)]
    pi = ratio_or_one(means[0], means[1], sqrt(means[0] / means[1]))
    root: Any = sqrt(damping)
    return {"A_inverse": _inverse(a, root * pi), "G_inverse": _inverse(g, root / pi)}


def _inverse(factor: Any, damping: Any) -> Tensor:
    identity: Any = eye(factor.get_shape()[0].value, dtype=factor.dtype)
    return cholesky_solve(cholesky(factor + damping * identity), identity)


class LayerCollection:
    """The layers that K-FAC preconditions, and the distributions that the model predicts.

    Without registered layers the optimizer finds them in the graph. Distributions are needed only for targets that are
    drawn from them (`estimation_mode="gradients"`).

    >>> layers = tf.contrib.kfac.layer_collection.LayerCollection()
    >>> layers.register_fully_connected((w, b), inputs=x, outputs=logits)
    >>> layers.register_categorical_predictive_distribution(logits)
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._sampled_losses: list[Any] = []

    def register_fully_connected(self, params: Any, inputs: TensorLike, outputs: TensorLike) -> None:
        """Registers `outputs = inputs @ w + b`; `params` is (w, b) or w. The same params again are a further use.

        >>> layers.register_fully_connected((w, b), inputs, tf.matmul(inputs, w) + b)
        """
        self._register("register_fully_connected", params, None, 2, inputs, outputs)

    def register_conv2d(
        self,
        params: Any,
        strides: Any,
        padding: str,
        inputs: TensorLike,
        outputs: TensorLike,
        data_format: str | None = None,
        dilations: Any = None,
    ) -> None:
        """Registers a convolution of images (NHWC) with a bias or without; `params` is (w, b) or w.

        >>> layers.register_conv2d((w, b), [1, 1, 1, 1], "SAME", images, tf.nn.conv2d(images, w, 1, "SAME") + b)
        """
        name = "register_conv2d"
        if data_format not in (None, "NHWC"):
            raise ValueError(f"{name}: data_format must be 'NHWC', received {data_format!r}.")
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"{name}: padding must be 'SAME' or 'VALID', received {padding!r}.")
        sizes = {"strides": tuple(strides), "dilations": tuple(dilations or (1, 1, 1, 1))}
        for argument, value in sizes.items():
            if len(value) != 4 or value[0] != 1 or value[3] != 1 or min(value) < 1:
                raise ValueError(f"{name}: {argument} must be [1, rows, columns, 1], received {list(value)}.")
        self._register(name, params, Window(padding=padding, **sizes), 4, inputs, outputs)

    def _register(self, name: str, params: Any, window: Window | None, rank: int, inputs: Any, outputs: Any) -> None:
        variables = list(params) if isinstance(params, (tuple, list)) else [params]
        if len(variables) not in (1, 2) or not all(isinstance(var, Variable) for var in variables):
            raise ValueError(f"{name}: params must be a variable or a pair (weight, bias), received {params!r}.")
        weights, bias = variables if len(variables) == 2 else (variables[0], None)
        inputs, outputs = convert_to_tensor(inputs), convert_to_tensor(outputs)
        found = weights.get_shape()
        if found.rank != rank or not found.is_fully_defined():
            raise ValueError(f"{name}: the weight in params must have {rank} known dimensions, received {found}.")
        channels, units = found.as_list()[-2:]
        wanted = {
            "the bias in params": (bias, [units]),
            "inputs": (inputs, [None] * (rank - 1) + [channels]),
            "outputs": (outputs, [None] * (rank - 1) + [units]),
        }
        for argument, (given, fitting) in wanted.items():
            if given is not None and not given.get_shape().is_compatible_with(fitting):
                raise ValueError(
                    f"{name}: {argument} must have the shape {fitting}, since the weight '{weights.name}' has {found}; "
                    f"received {given.get_shape()}."
                )
        for layer in self.layers:
            if weights is layer.weights:
                if bias is not layer.bias or window != layer.window:
                    raise ValueError(f"{name}: params has '{weights.name}', which is registered with other settings.")
                layer.uses.append((inputs, outputs))
                return
        self.layers.append(Layer(weights, bias, window, [(inputs, outputs)]))

    def register_categorical_predictive_distribution(self, logits: TensorLike, seed: int | None = None) -> None:
        """Registers that the model predicts classes, with a row of logits for each example.

        >>> layers.register_categorical_predictive_distribution(logits)
        """
        given: Any = convert_to_tensor(logits)
        if given.shape.rank != 2:
            raise ValueError(f"logits must have the shape [batch, classes], received {given.shape}.")
        drawn = squeeze(multinomial(stop_gradient(given), 1, seed=seed), [1])
        self._sampled_losses.append(reduce_mean(sparse_softmax_cross_entropy_with_logits(labels=drawn, logits=given)))

    def register_normal_predictive_distribution(
        self, mean: TensorLike, var: float = 0.5, seed: int | None = None
    ) -> None:
        """Registers that the model predicts means of normal distributions with the variance `var`.

        >>> layers.register_normal_predictive_distribution(predictions)
        """
        require_positive(var=var)
        given: Any = convert_to_tensor(mean)
        noise = random_normal(shape(given), stddev=math.sqrt(var), dtype=given.dtype, seed=seed)
        batch: Any = cast(shape(given)[0], given.dtype)  # type: ignore[index]
        misses: Any = reduce_sum(square(stop_gradient(given + noise) - given))
        self._sampled_losses.append(misses / (2.0 * var) / batch)

    def sampled_loss(self) -> Tensor | None:
        """The mean of `-log p(target)` over targets drawn from what the model predicts; None without distributions."""
        return add_n(self._sampled_losses) if self._sampled_losses else None
