"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.control import grouping

tuple_ = adapted(grouping.tuple_, "tensors, control_inputs=None, name=None")
