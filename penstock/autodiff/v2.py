"""Gradients of graphs under the parameters of TensorFlow 2."""

from penstock.autodiff import walk
from penstock.graph.adapted import adapted

gradients = adapted(
    walk.gradients,
    "ys, xs, grad_ys=None, name='gradients', gate_gradients=False, aggregation_method=None, stop_gradients=None, "
    "unconnected_gradients='none'",
)
hessians = adapted(walk.hessians, "ys, xs, gate_gradients=False, aggregation_method=None, name='hessians'")
