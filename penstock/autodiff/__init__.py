"""Gradients: walks a graph backwards from `ys` to `xs` and adds the nodes that compute the derivatives.

`walk` does so in one graph, using the functions that `registry` has per op type. `branches` and `loops` differentiate
conditionals and loops: into another conditional or loop, with bodies that `body` makes by walking the forward ones.
"""

from penstock.autodiff.branches import if_gradient
from penstock.autodiff.custom import custom_gradient, grad_pass_through
from penstock.autodiff.loops import while_gradient
from penstock.autodiff.registry import NoGradient, NotDifferentiable, RegisterGradient, get_gradient_function
from penstock.autodiff.walk import AggregationMethod, UnconnectedGradients, gradients, hessians
from penstock.ops.engine.if_while import if_op, while_op

if_op.grad = if_gradient
while_op.grad = while_gradient

__all__ = [
    "AggregationMethod",
    "NoGradient",
    "NotDifferentiable",
    "RegisterGradient",
    "UnconnectedGradients",
    "custom_gradient",
    "get_gradient_function",
    "grad_pass_through",
    "gradients",
    "hessians",
]
