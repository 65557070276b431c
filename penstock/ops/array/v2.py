"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph import convert
from penstock.graph.adapted import adapted
from penstock.ops.array import arranging, creation, gathering, padding, reshaping, selection

boolean_mask = adapted(selection.boolean_mask, "tensor, mask, axis=None, name='boolean_mask'")
convert_to_tensor = adapted(convert.convert_to_tensor, "value, dtype=None, dtype_hint=None, name=None")
fill = adapted(creation.fill, "dims, value, name=None, layout: _ = None")
gather = adapted(gathering.gather, "params, indices, validate_indices=None, axis=None, batch_dims=0, name=None")
gather_nd = adapted(gathering.gather_nd, "params, indices, batch_dims=0, name=None, bad_indices_policy=''")
ones = adapted(creation.ones, "shape, dtype='float32', name=None, layout: _ = None")
ones_like = adapted(creation.ones_like, "input: tensor, dtype=None, name=None, layout: _ = None")
pad = adapted(padding.pad, "tensor, paddings, mode='CONSTANT', constant_values=0, name=None")
scatter_nd = adapted(gathering.scatter_nd, "indices, updates, shape, bad_indices_policy: _ = '', name=None")
shape = adapted(reshaping.shape, "input, out_type=None, name=None")
size = adapted(reshaping.size, "input, out_type=None, name=None")
squeeze = adapted(reshaping.squeeze, "input, axis=None, name=None")
tensor_scatter_nd_update = adapted(gathering.tensor_scatter_nd_update, "tensor, indices, updates, name=None")
transpose = adapted(arranging.transpose, "a, perm=None, conjugate=False, name='transpose'")
zeros = adapted(creation.zeros, "shape, dtype='float32', name=None, layout: _ = None")
zeros_like = adapted(creation.zeros_like, "input: tensor, dtype=None, name=None, layout: _ = None")
