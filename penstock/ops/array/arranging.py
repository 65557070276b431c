"""The same elements in another order: transposes, reversals, rolls, and grids of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.checks import require, require_in_range
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.shapes import merge, require_rank
from penstock.kernel.types import INDEX, INDEX32, INDEX64, Array, xp
from penstock.ops.array.creation import ones
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.reshaping import rank, reshape, size


def _transpose_shape(op: Operation) -> list[TensorShape]:
    source, perm = op.input_list[0].shape, op.input_list[1]
    length = require_rank(perm.shape, 1).as_list()[0]
    if source.rank is not None and length is not None and source.rank != length:
        raise ValueError(f"Dimension must be {source.rank} but is {length}")
    count = length if source.rank is None else source.rank
    if count is None:
        return [TensorShape.of(None)]
    order = constant_value(perm)
    if order is None:
        return [TensorShape.of((None,) * count)]
    for axis in order.tolist():
        if not -count <= axis < count:
            raise ValueError(f"perm dim {axis} is out of range of input rank {count}")
    dims = source.with_rank(count).as_list()
    return [TensorShape.of(tuple(dims[axis] for axis in order.tolist()))]


@op(
    "InvertPermutation",
    "T -> y: T",
    numpy=True,
    no_gradient=True,
    T=INDEX32,
    shape=lambda op: [require_rank(op.input_list[0].shape, 1)],
)
def invert_permutation(x: Array) -> Array:
    module = xp(x)
    order = module.argsort(x)
    require_in_range(x, x.shape[0])
    require((x[order] == module.arange(x.shape[0])).all(), "the numbers are no permutation: one of them is there twice")
    return order.astype(x.dtype)


@op(
    "Transpose",
    "T, Tperm -> y: T",
    static="perm",
    numpy=True,
    shape=_transpose_shape,
    Tperm=INDEX32,
    grad=lambda op, grad: [transpose(grad, invert_permutation(op.input_list[1])), None],
)
def transpose_op(x: Array, perm: Array) -> Array:
    return xp(x).transpose(x, perm.tolist())


@op(
    "ConjugateTranspose",
    "T, Tperm -> y: T",
    static="perm",
    numpy=True,
    shape=_transpose_shape,
    Tperm=INDEX32,
    grad=lambda op, grad: [transpose(grad, invert_permutation(op.input_list[1]), conjugate=True), None],
)
def conjugate_transpose(x: Array, perm: Array) -> Array:
    return xp(x).transpose(xp(x).conj(x), perm.tolist())


def transpose(a: TensorLike, perm: TensorLike = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """The dimensions in the order `perm`, by default reversed: `tf.transpose(x, [1, 0, 2])`."""
    with name_scope(name, "transpose", [a]) as scope:
        tensor = convert_to_tensor(a, name="a")
        if perm is None:
            count = tensor.shape.rank
            if count is not None:
                perm = np.arange(count - 1, -1, -1, dtype=np.int32)
            else:
                perm = op_of("Range")(rank(tensor) - 1, -1, -1, name="Range")  # type: ignore[operator]
        apply = conjugate_transpose if conjugate and tensor.dtype.is_complex else transpose_op
        result: Tensor = apply(tensor, perm, name=scope)
        return result


def matrix_transpose(a: TensorLike, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """The last two dimensions exchanged."""
    with name_scope(name, "matrix_transpose", [a]):
        tensor = convert_to_tensor(a, name="a")
        count = tensor.shape.rank
        if count is not None:
            if count < 2:
                raise ValueError(f"Argument `a` should be a (batch) matrix with rank >= 2. Received `a` = {tensor!r}")
            perm: Any = [*range(count - 2), count - 1, count - 2]
        else:
            n: Any = rank(tensor)
            perm = concat([op_of("Range")(0, n - 2, 1, name="Range"), [n - 1, n - 2]], 0)
        return transpose(tensor, perm, conjugate=conjugate)


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The last two dimensions exchanged and every element conjugated."""
    with name_scope(name, "adjoint", [matrix]):
        return matrix_transpose(convert_to_tensor(matrix, name="matrix"), conjugate=True)


@op(
    "ReverseV2",
    "T, Tidx -> output: T",
    static="axis",
    numpy=True,
    shape=shapes.unchanged,
    Tidx=INDEX32,
    grad=lambda op, grad: [reverse(grad, op.input_list[1]), None],
)
def reverse_v2(tensor: Array, axis: Array) -> Array:
    return xp(tensor).flip(tensor, tuple({int(a) % tensor.ndim for a in axis.reshape(-1)}))


def reverse(tensor: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """The elements in opposite order along the axes in `axis`: `tf.reverse(x, [0])`."""
    result: Tensor = reverse_v2(tensor, axis, name=name)
    return result


def _sequence_shape(op: Operation) -> list[TensorShape]:
    source, lengths = op.input_list[0].shape, require_rank(op.input_list[1].shape, 1)
    if source.rank is None:
        return [source]
    batch = op.attrs["batch_dim"]
    dims = source.as_list()
    if max(batch, op.attrs["seq_dim"]) >= len(dims):
        raise ValueError(f"batch_dim and seq_dim must be < input rank: {len(dims)}")
    dims[batch] = merge(TensorShape.of((dims[batch],)), lengths).as_list()[0]
    return [TensorShape.of(tuple(dims))]


@op(
    "ReverseSequence",
    "T, Tlen -> output: T",
    shape=_sequence_shape,
    Tlen=INDEX64,
    grad=lambda op, grad: [
        reverse_sequence(grad, op.input_list[1], seq_axis=op.attrs["seq_dim"], batch_axis=op.attrs["batch_dim"]),
        None,
    ],
)
def reverse_sequence_op(input: Array, seq_lengths: Array, *, seq_dim: int, batch_dim: int = 0) -> Array:
    module = xp(input, seq_lengths)
    moved = module.moveaxis(input, (batch_dim, seq_dim), (0, 1))
    steps = module.arange(moved.shape[1])
    if seq_lengths.shape != moved.shape[:1]:
        raise ValueError(f"len(seq_lens) != input.dims({batch_dim}), ({seq_lengths.shape[0]} vs. {moved.shape[0]})")
    if seq_lengths.shape[0]:
        require(seq_lengths >= 0, "seq_lens({}) < 0", module.argmin(seq_lengths))
        require(seq_lengths <= moved.shape[1], f"seq_lens({{}}) > input.dims({seq_dim})", module.argmax(seq_lengths))
    lengths = seq_lengths[:, None]
    source = module.where(steps < lengths, lengths - 1 - steps, steps)
    picked = module.take_along_axis(moved, source.reshape(*source.shape, *[1] * (moved.ndim - 2)), axis=1)
    return module.moveaxis(picked, (0, 1), (batch_dim, seq_dim))


def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: Any = None,
    batch_axis: Any = None,
    name: str | None = None,
    seq_dim: Any = None,
    batch_dim: Any = None,
) -> Tensor:
    """Each sequence of a batch in opposite order up to its length, unchanged after it."""
    seq = seq_dim if seq_axis is None else seq_axis
    result: Tensor = reverse_sequence_op(
        input, seq_lengths, seq_dim=seq, batch_dim=(batch_dim if batch_axis is None else batch_axis) or 0, name=name
    )
    return result


def _roll_grad(op: Operation, grad: Tensor) -> list[Any]:
    shift: Any = op.input_list[1]
    return [roll(grad, -shift, op.input_list[2]), None, None]


@op(
    "Roll",
    "T, Tshift, Taxis -> output: T",
    static="shift axis",
    numpy=True,
    shape=shapes.unchanged,
    grad=_roll_grad,
    Tshift=INDEX,
    Taxis=INDEX,
)
def roll_op(input: Array, shift: Array, axis: Array) -> Array:
    pairs = (shift.reshape(-1).tolist(), axis.reshape(-1).tolist())
    return xp(input).roll(input, *map(tuple, pairs))


def roll(input: TensorLike, shift: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """The elements shifted cyclically by `shift` along `axis`: `tf.roll(x, 1, 0)`."""
    result: Tensor = roll_op(input, shift, axis, name=name)
    return result


def meshgrid(*args: Any, **kwargs: Any) -> list[Tensor]:
    """The coordinates of a grid: `x, y = tf.meshgrid(xs, ys, indexing="xy")`."""
    indexing, name = kwargs.pop("indexing", "xy"), kwargs.pop("name", "meshgrid")
    if kwargs:
        raise TypeError(f"'{next(iter(kwargs))}' is an invalid keyword argument for meshgrid.")
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Argument `indexing` must be 'xy' or 'ij', received {indexing!r}.")
    with name_scope(name, "meshgrid", args):
        count = len(args)
        columns = [reshape(stack(x), [1] * i + [-1] + [1] * (count - i - 1)) for i, x in enumerate(args)]
        sizes = [size(x) for x in args]
        if not args:
            return []
        kind = convert_to_tensor(args[0]).dtype.base_dtype
        if indexing == "xy" and count > 1:
            columns[0] = reshape(columns[0], [1, -1] + [1] * (count - 2))
            columns[1] = reshape(columns[1], [-1, 1] + [1] * (count - 2))
            sizes[0], sizes[1] = sizes[1], sizes[0]
        grid = ones(sizes, kind)
        return [c * grid for c in columns]  # type: ignore[operator]
