"""Reading numbers out of strings of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor
from penstock.ops.types import COMPLEX, FLOATS

_RAW = Types(*FLOATS, *COMPLEX, dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.bool)


def _one_more(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].shape.concatenate([None])]


@op("DecodeRaw", "string -> output: out_type", host=True, no_gradient=True, shape=_one_more, out_type=_RAW)
def decode_raw_op(bytes: Any, *, out_type: DType, little_endian: bool = True) -> Any:
    texts = np.asarray(bytes, object)
    flat = texts.reshape(-1).tolist()
    sizes = {len(text) for text in flat}
    if len(sizes) > 1:
        raise InvalidArgumentError(
            None, None, f"DecodeRaw requires input strings to all be the same size, received sizes {sorted(sizes)}"
        )
    size = sizes.pop() if sizes else 0
    wanted = np.dtype(out_type.as_numpy_dtype)
    if size % wanted.itemsize:
        raise InvalidArgumentError(
            None, None,
            f"Input to DecodeRaw has length {size} that is not a multiple of {wanted.itemsize}, the size of "
            f"{out_type.name}",
        )  # fmt: skip
    values = np.frombuffer(b"".join(flat), wanted).reshape(*texts.shape, size // wanted.itemsize)
    return values.copy() if little_endian else values.byteswap()


def decode_raw(
    input_bytes: Any = None,
    out_type: Any = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    """The bytes of strings of one length as numbers, along a new last dimension.

    >>> tf.decode_raw(["ab"], tf.uint8)  # [[97, 98]]
    """
    if input_bytes is None:
        input_bytes = bytes
    tensor: Tensor = decode_raw_op(input_bytes, out_type=out_type, little_endian=little_endian, name=name)
    return tensor
