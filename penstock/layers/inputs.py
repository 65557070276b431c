"""InputSpec: the requirements of a layer on its inputs, and their check."""

from __future__ import annotations

from typing import Any

from penstock.graph import nest
from penstock.graph.dtype import as_dtype
from penstock.graph.shape import as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike


class InputSpec:
    """Rank, sizes and type that an input must have; None means any.

    >>> tf.layers.InputSpec(min_ndim=2, axes={-1: 784})
    """

    def __init__(
        self,
        dtype: DTypeLike | None = None,
        shape: ShapeLike = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
    ) -> None:
        self.dtype = None if dtype is None else as_dtype(dtype).name
        self.shape = None if shape is None else as_shape(shape)
        self.ndim = ndim if self.shape is None else self.shape.rank
        self.max_ndim, self.min_ndim = max_ndim, min_ndim
        self.axes = {int(axis): size for axis, size in (axes or {}).items()}

    def __repr__(self) -> str:
        given = {key: value for key, value in vars(self).items() if value}
        return f"InputSpec({', '.join(f'{key}={value}' for key, value in given.items())})"

    def check(self, tensor: TensorLike, layer: str, index: int) -> None:
        """Raises ValueError if `tensor`, input number `index` of the layer called `layer`, does not fit."""
        where = f"Input {index} of layer {layer} is incompatible with the layer"
        shape = tensor.shape
        wants_rank = self.ndim is not None or self.max_ndim is not None or self.min_ndim is not None
        if shape.rank is None:
            if wants_rank:
                raise ValueError(f"{where}: its rank is undefined, but the layer requires a defined rank.")
            return
        received = f"found ndim={shape.rank}. Full shape received: {shape.as_list()}"
        if self.ndim is not None and shape.rank != self.ndim:
            raise ValueError(f"{where}: expected ndim={self.ndim}, {received}")
        if self.max_ndim is not None and shape.rank > self.max_ndim:
            raise ValueError(f"{where}: expected max_ndim={self.max_ndim}, {received}")
        if self.min_ndim is not None and shape.rank < self.min_ndim:
            raise ValueError(f"{where}: expected min_ndim={self.min_ndim}, {received}")
        if self.dtype is not None and tensor.dtype.base_dtype.name != self.dtype:
            raise ValueError(f"{where}: expected dtype={self.dtype}, found dtype={tensor.dtype.name}")
        for axis, size in self.axes.items():
            if size is not None and shape.as_list()[axis] not in (size, None):
                raise ValueError(
                    f"{where}: expected axis {axis} to have size {size}, but received shape {shape.as_list()}"
                )
        if self.shape is not None and not self.shape.is_compatible_with(shape):
            raise ValueError(f"{where}: expected shape={self.shape.as_list()}, found shape={shape.as_list()}")


def check_inputs(specs: Any, inputs: Any, layer: str) -> None:
    """Checks all inputs of a layer against its `input_spec`: one InputSpec, a list of them, or None."""
    if specs is None:
        return
    wanted, tensors = nest.flatten(specs), nest.flatten(inputs)
    if len(wanted) != len(tensors):
        raise ValueError(f"Layer {layer} expects {len(wanted)} inputs, but it received {len(tensors)}: {inputs}")
    for index, (spec, tensor) in enumerate(zip(wanted, tensors, strict=True)):
        if spec is not None:
            spec.check(tensor, layer, index)
