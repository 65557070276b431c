"""Finds the layers of a model in its graph, for K-FAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph.operation import Operation, Tensor
from penstock.optim.kfac_layers import Layer, Window

_READS = ("Identity", "ReadVariableOp")
_ADDITIONS = ("BiasAdd", "Add", "AddV2")


def find_layers(loss: Tensor, variables: Sequence[Any]) -> list[Layer]:
    """The layers on the way to `loss` whose weight is one of `variables`, in the order of the graph.

    These are `tf.matmul(x, w)` and `tf.nn.conv2d(x, w)` (NHWC, padding SAME or VALID), with the bias that is added to
    them and to nothing else. Layers in the bodies of conditionals and loops are not found.

    >>> [layer.weights.name for layer in find_layers(loss, tf.trainable_variables())]
    ['hidden/kernel:0', 'logits/kernel:0']
    """
    reached = _reached(loss.op)
    by_op = {var.op: var for var in variables}
    uses: dict[Operation, list[Operation]] = {}
    for op in reached:
        weights = _variable(op.inputs[1], by_op) if op.type in ("MatMul", "Conv2D") else None
        if weights is not None and weights.get_shape().is_fully_defined():
            uses.setdefault(weights.op, []).append(op)
    layers: list[Layer] = []
    for weights_op, products in uses.items():
        windows = set(map(_window, products))
        if len(windows) > 1 or not all(map(_is_plain, products)):
            continue
        sums = [_biased(op, reached, by_op) for op in products]
        bias = sums[0][0]
        # A bias is preconditioned with one weight: the first one, and only if it is added to all uses of it.
        if any(other is not bias for other, _ in sums) or any(bias is layer.bias for layer in layers):
            bias = None
        outputs = [op.outputs[0] for op in products] if bias is None else [output for _, output in sums]
        inputs = [op.inputs[0] for op in products]
        layers.append(Layer(by_op[weights_op], bias, windows.pop(), list(zip(inputs, outputs, strict=True))))
    return layers


def _reached(end: Operation) -> dict[Operation, None]:
    """All operations that `end` needs, in the order of the graph."""
    seen, left = {end}, [end]
    while left:
        for tensor in left.pop().inputs:
            if tensor.op not in seen:
                seen.add(tensor.op)
                left.append(tensor.op)
    return dict.fromkeys(op for op in end.graph.get_operations() if op in seen)


def _variable(tensor: Tensor, by_op: dict[Operation, Any]) -> Any:
    """The variable that a tensor is a read of, or None."""
    op = tensor.op
    while op.type in _READS:
        op = op.inputs[0].op
    return by_op.get(op)


def _window(op: Operation) -> Window | None:
    if op.type == "MatMul":
        return None
    return Window(tuple(op.attrs["strides"]), op.attrs["padding"], tuple(op.attrs["dilations"]))


def _is_plain(op: Operation) -> bool:
    """True for the forms whose factors `Layer` computes."""
    if op.type == "MatMul":
        return not op.attrs["transpose_a"] and not op.attrs["transpose_b"]
    return op.attrs["data_format"] == "NHWC" and op.attrs["padding"] in ("SAME", "VALID")


def _biased(op: Operation, reached: dict[Operation, None], by_op: dict[Operation, Any]) -> tuple[Any, Tensor]:
    """The bias that is added to an operation's output, and the sum; None and the output if there is no such bias."""
    output = op.outputs[0]
    followers = [follower for follower in output.consumers() if follower in reached]
    if len(followers) == 1 and followers[0].type in _ADDITIONS:
        one, other = followers[0].inputs
        bias = _variable(other if one is output else one, by_op)
        if bias is not None and bias.get_shape().rank == 1 and bias.get_shape().is_compatible_with(output.shape[-1:]):
            return bias, followers[0].outputs[0]
    return None, output
