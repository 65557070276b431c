"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from typing import Any

from penstock.graph.adapted import adapted
from penstock.graph.typing import TensorLike
from penstock.ops.sparse import arranging, reduce, segments, serialize

_SEGMENTS = "data, indices, segment_ids, num_segments=None, name=None, sparse_gradient: _ = False"

concat = adapted(arranging.sparse_concat, "axis, sp_inputs, expand_nonconcat_dims=False, name=None")
segment_mean = adapted(segments.sparse_segment_mean, _SEGMENTS)
segment_sqrt_n = adapted(segments.sparse_segment_sqrt_n, _SEGMENTS)
segment_sum = adapted(segments.sparse_segment_sum, _SEGMENTS)
serialize_many_sparse = adapted(serialize.serialize_many_sparse, "sp_input, out_type='string', name=None")
serialize_sparse = adapted(serialize.serialize_sparse, "sp_input, out_type='string', name=None")
split = adapted(arranging.sparse_split, "sp_input=None, num_split=None, axis=None, name=None")


def reduce_max(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Any:
    """The largest entries along `axis`, as a dense tensor or a sparse one: `tf.sparse.reduce_max(x, axis=1)`."""
    return (reduce.sparse_reduce_max_sparse if output_is_sparse else reduce.sparse_reduce_max)(sp_input, axis, keepdims)


def reduce_sum(
    sp_input: Any,
    axis: TensorLike = None,
    keepdims: bool | None = None,
    output_is_sparse: bool = False,
    name: str | None = None,
) -> Any:
    """The sums along `axis`, as a dense tensor or a sparse one: `tf.sparse.reduce_sum(x, axis=1)`."""
    return (reduce.sparse_reduce_sum_sparse if output_is_sparse else reduce.sparse_reduce_sum)(sp_input, axis, keepdims)
