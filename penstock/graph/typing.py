"""Names for the arguments of public functions: what can become a tensor, a shape, a type, and what can be fed.

`TensorLike` and `FeedValue` are `Any` to a type checker. A tensor may be given as anything that has a conversion
(`register_tensor_conversion_function`), and the functions that take it compute with it as soon as it is converted; a
union would need a cast at each of these places. Arrays to feed come from many libraries. The names tell a reader what
`Any` does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from penstock.graph.dimension import Dimension
from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape

# A Tensor, a variable, a number, a string, an array, or a list of any of these: `tf.add([1.0, x], 2)`.
TensorLike: TypeAlias = Any

# A shape as a TensorShape, a list of sizes (None where one is unknown), a number for a list of one, or a tensor where
# the shape may be computed. None is a shape of which nothing is known: `tf.placeholder(tf.float32, [None, 784])`.
ShapeLike: TypeAlias = TensorShape | Tensor | np.ndarray | Sequence[int | Dimension | Tensor | None] | int | None

# A type as a DType, as NumPy or Python has it, by name, or by its number in TensorFlow's enum: `tf.cast(x, "int32")`.
DTypeLike: TypeAlias = DType | np.dtype[Any] | type[Any] | str | int

# A value for a step: anything that NumPy makes an array of, or the value of a composite tensor such as a
# SparseTensorValue: `sess.run(y, {x: [[1.0, 2.0]]})`.
FeedValue: TypeAlias = Any

# The values to feed, by tensor or by its name.
FeedDict: TypeAlias = Mapping[Any, FeedValue]
