"""Making tensors and changing their shapes: constants, placeholders, identities, fills, reshapes."""

from __future__ import annotations

import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.graph import dtype as dt
from penstock.graph.checks import require
from penstock.graph.constant import array_of, constant_value, constant_value_as_shape
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import OpDef, op, registered
from penstock.graph.operation import Operation
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import Dimension, TensorShape, as_shape, broadcast_shape
from penstock.graph.tensor import SparseTensor, Tensor
from penstock.ops import shapes
from penstock.ops.types import FLOATS, INDEX32, NUMBERS, QUANTIZED, Array, xp

_SMALL = 1000  # zeros and ones below this many elements are one Const, as in TensorFlow
_FOLDED = 4096  # larger arrays are made by the compiled code rather than kept as constants in it


def op_of(name: str) -> OpDef:
    """The op type `name`, declared in whichever module."""
    found = registered(name)
    assert found is not None, f"{name} is not declared"
    return found


def merge(a: TensorShape, b: TensorShape) -> TensorShape:
    """What two shapes of one tensor say together; ValueError as TensorFlow words it where they contradict."""
    left, right = a._dims, b._dims
    if left is None or right is None or left == right:
        return b if left is None else a
    if len(left) != len(right):
        raise ValueError(f"Shapes must be equal rank, but are {len(left)} and {len(right)}")
    for i, (x, y) in enumerate(zip(left, right, strict=True)):
        if x is not None and y is not None and x != y:
            raise ValueError(
                f"Dimension {i} in both shapes must be equal, but are {x} and {y}. "
                f"Shapes are {brief(a)} and {brief(b)}."
            )
    return TensorShape.of(tuple(y if x is None else x for x, y in zip(left, right, strict=True)))


def brief(shape: Any) -> str:
    """A shape as error messages show it: `[?,3]`."""
    dims = shape.as_list() if isinstance(shape, TensorShape) else list(shape)
    return "[" + ",".join("?" if d is None else str(d) for d in dims) + "]"


def require_rank(shape: TensorShape, rank: int) -> TensorShape:
    """`shape`, with rank `rank`; ValueError where it has another."""
    if shape.rank is not None and shape.rank != rank:
        raise ValueError(f"Shape must be rank {rank} but is rank {shape.rank}")
    return shape.with_rank(rank)


def refuse_gradient(op: Operation, *_: Any) -> Any:
    """The `grad=` of ops that TensorFlow has no gradient for."""
    raise LookupError(f"No gradient defined for operation '{op.name}' (op type: {op.type}).")


def array_module(size: int, *arrays: Array) -> Any:
    """`xp`, but jax.numpy for large results, so that they do not become constants in the compiled code."""
    module = xp(*arrays)
    return module if size <= _FOLDED or any(a.dtype.kind == "O" for a in arrays) else jnp


# Constants and placeholders


@op("Const", "-> output: dtype", shape=lambda op: [TensorShape.of(op.attrs["value"].shape)], no_gradient=True)
def const(*, value: np.ndarray, dtype: DType) -> Array:
    return value


def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str = "Const", verify_shape: bool = False
) -> Tensor:
    """A tensor with a fixed value; too few values are filled up with the last one unless `verify_shape`.

    >>> tf.constant(0.5, shape=[2, 3]).shape
    TensorShape([Dimension(2), Dimension(3)])
    """
    if isinstance(value, Tensor):
        raise TypeError(f"constant takes a value, received {value!r}; use tf.identity for a copy of a tensor.")
    wanted = None if dtype is None else as_dtype(dtype)
    if verify_shape and shape is not None:
        found = array_of(value, wanted)[0].shape
        if tuple(as_shape(shape).as_list()) != found:
            raise TypeError(f"Expected Tensor's shape: {as_shape(shape)}, but got {as_shape(found)}.")
    return make_constant(value, wanted, shape, name or "Const")


@op("Placeholder", "-> output: dtype", shape=shapes.from_attr, no_gradient=True)
def placeholder_op(*, dtype: DType, shape: TensorShape = TensorShape(None)) -> None:  # noqa: B008
    """A tensor that must be fed; it has no kernel."""


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor that must be fed.

    >>> x = tf.placeholder(tf.float32, [None, 784])
    """
    tensor: Tensor = placeholder_op(dtype=as_dtype(dtype), shape=as_shape(shape), name=name)
    return tensor


def _default_shape(op: Operation) -> list[TensorShape]:
    shape = op.attrs["shape"]
    merge(op.input_list[0].shape, shape)
    return [shape]


@op("PlaceholderWithDefault", "dtype -> output: dtype", shape=_default_shape,
    grad=lambda op, grad: [grad])  # fmt: skip
def placeholder_with_default_op(input: Array, *, shape: TensorShape) -> Array:
    return input


def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """A tensor that may be fed, and is `input` otherwise.

    >>> rate = tf.placeholder_with_default(0.1, [])
    """
    tensor: Tensor = placeholder_with_default_op(input, shape=as_shape(shape), name=name)
    return tensor


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A SparseTensor that must be fed with a SparseTensorValue or (indices, values, dense_shape).

    >>> x = tf.sparse_placeholder(tf.float32, shape=[None, 100])
    """

    def part(suffix: str) -> str | None:
        return None if name is None else f"{name}/{suffix}"

    rank: int | None = None
    if shape is None:
        dense_shape = placeholder(dt.int64, [None], part("shape"))
    elif isinstance(shape, Tensor):
        dense_shape, rank = shape, shape.shape.as_list()[0]
    else:
        dims = as_shape(shape).as_list()
        rank = len(dims)
        value = np.array([-1 if d is None else d for d in dims], np.int64)
        default = constant(value, name=part("shape_default") or "Const")
        dense_shape = placeholder_with_default(default, [rank], part("shape"))
    values = placeholder(dtype, [None], part("values"))
    return SparseTensor(placeholder(dt.int64, [None, rank], part("indices")), values, dense_shape)


# Identities


@op("Identity", "T -> output: T", shape=shapes.unchanged, numpy=True, grad=lambda op, grad: [grad])
def identity_op(input: Array) -> Array:
    return input


def identity(input: Any, name: str | None = None) -> Tensor:
    """The same values as a new tensor, a place to hang a name, a device or control dependencies on."""
    tensor: Tensor = identity_op(input, name=name)
    return tensor


@op("IdentityN", "list(T) -> output: list(T)", numpy=True, grad=lambda op, *grads: list(grads),
    shape=lambda op: [t.shape for t in op.input_list])  # fmt: skip
def identity_n(input: list[Array]) -> list[Array]:
    return list(input)


@op("StopGradient", "T -> output: T", shape=shapes.unchanged, numpy=True, no_gradient=True)
def stop_gradient_op(input: Array) -> Array:
    return input


def stop_gradient(input: Any, name: str | None = None) -> Tensor:
    """The same values, but a constant to `tf.gradients`."""
    tensor: Tensor = stop_gradient_op(input, name=name)
    return tensor


def _prevent_gradient(op: Operation, grad: Tensor) -> Any:
    raise LookupError(f"Gradient explicitly disabled at '{op.name}'. Reason: {op.attrs['message']!r}")


@op("PreventGradient", "T -> output: T", shape=shapes.unchanged, numpy=True, grad=_prevent_gradient)
def prevent_gradient(input: Array, *, message: str = "") -> Array:
    return input


@op("GuaranteeConst", "T -> output: T", shape=shapes.unchanged, stateful=True, grad=refuse_gradient)
def guarantee_const(input: Array) -> Array:
    return input


@op("CheckNumerics", "T -> output: T", shape=shapes.unchanged, stateful=True, T=FLOATS,
    grad=lambda op, grad: [
        check_numerics(grad, "Not a number (NaN) or infinity (Inf) values detected in gradient.")])  # fmt: skip
def check_numerics_op(tensor: Array, *, message: str) -> Array:
    # `{}` in a user's message must not be taken for a place to fill in.
    text = message.replace("{", "{{").replace("}", "}}")
    nan, inf = xp(tensor).isnan(tensor).any(), xp(tensor).isinf(tensor).any()
    require(~(nan & inf), text + " : Tensor had NaN and Inf values")
    require(~nan, text + " : Tensor had NaN values")
    require(~inf, text + " : Tensor had Inf values")
    return tensor


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """`tensor`, which fails with InvalidArgumentError at run time if it holds a NaN or an infinity."""
    result: Tensor = check_numerics_op(tensor, message=message, name=name)
    return result


def verify_tensor_all_finite(
    t: Any = None, msg: str | None = None, name: str | None = None, x: Any = None, message: str | None = None
) -> Tensor:
    """`t` after a check that all its values are finite."""
    value = t if x is None else x
    with name_scope(name, "VerifyFinite", [value]):
        tensor = convert_to_tensor(value, name="x")
        checked = check_numerics(tensor, msg or message or "")
        with control_dependencies([checked]):
            return identity(tensor, name="control_dependency")


assert_all_finite = verify_tensor_all_finite


def add_check_numerics_ops() -> Operation:
    """A check of every float tensor of the graph made so far; run it beside the training step."""
    checks: list[Operation] = []
    for operation in get_default_graph().get_operations():
        for output in operation.outputs:
            if output.dtype in (dt.float16, dt.float32, dt.float64):
                with control_dependencies(checks[-1:]):
                    checks.append(check_numerics(output, message=output.name).op)
    with control_dependencies(checks):
        result: Operation = op_of("NoOp")(name="group_deps")
        return result


def _ensured(op: Operation) -> list[TensorShape]:
    return [merge(op.attrs["shape"], op.input_list[0].shape)]


@op("EnsureShape", "T -> output: T", shape=_ensured, numpy=True, grad=lambda op, grad: [grad])
def ensure_shape_op(input: Array, *, shape: TensorShape) -> Array:
    if not shape.is_compatible_with(input.shape):
        raise ValueError(f"Shape of tensor {brief(input.shape)} is not compatible with expected shape {brief(shape)}.")
    return input


def ensure_shape(x: Any, shape: Any, name: str | None = None) -> Tensor:
    """`x`, whose shape is checked against `shape` while building and at run time."""
    tensor: Tensor = ensure_shape_op(x, shape=as_shape(shape), name=name)
    return tensor


def _bitcast_shape(op: Operation) -> list[TensorShape]:
    shape, old, new = op.input_list[0].shape, op.attrs["T"].size, op.attrs["type"].size
    if shape.rank is None or old == new:
        return [shape]
    dims = shape.as_list()
    if old > new:
        return [TensorShape.of((*dims, old // new))]
    if not dims or dims[-1] not in (None, new // old):
        raise ValueError(f"Cannot bitcast from {new} to {old} due to shape. {dims[-1:]} does not match {new // old}")
    return [TensorShape.of(tuple(dims[:-1]))]


@op("Bitcast", "T -> output: type", shape=_bitcast_shape, no_gradient=True,
    T=(*NUMBERS, *QUANTIZED), type=(*NUMBERS, *QUANTIZED))  # fmt: skip
def bitcast_op(input: Array, *, type: DType) -> Array:
    return lax.bitcast_convert_type(input, type.as_numpy_dtype)


def bitcast(input: Any, type: Any, name: str | None = None) -> Tensor:
    """The same bytes read as another type."""
    tensor: Tensor = bitcast_op(input, type=as_dtype(type), name=name)
    return tensor


# Shapes as tensors


def _rank_vectors(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((t.shape.rank,)) for t in op.input_list]


@op("Shape", "T -> output: out_type", numpy=True, no_gradient=True, shape=_rank_vectors, out_type=INDEX32)
def shape_op(input: Array, *, out_type: DType = dt.int32) -> Array:
    return np.array(input.shape, out_type.as_numpy_dtype)


@op("ShapeN", "N*T -> output: N*out_type", numpy=True, no_gradient=True, shape=_rank_vectors, out_type=INDEX32)
def shape_n_op(input: list[Array], *, out_type: DType = dt.int32) -> list[Array]:
    return [np.array(x.shape, out_type.as_numpy_dtype) for x in input]


@op("Size", "T -> output: out_type", numpy=True, no_gradient=True, shape=shapes.scalar, out_type=INDEX32)
def size_op(input: Array, *, out_type: DType = dt.int32) -> Array:
    return np.array(math.prod(input.shape), out_type.as_numpy_dtype)


@op("Rank", "T -> output: int32", numpy=True, no_gradient=True, shape=shapes.scalar)
def rank_op(input: Array) -> Array:
    return np.array(len(input.shape), np.int32)


def shape(input: Any, name: str | None = None, out_type: Any = dt.int32) -> Tensor:
    """The shape of a tensor as an integer vector; a constant if it is known already.

    >>> batch = tf.shape(x)[0]
    """
    return shape_internal(input, name, True, out_type)


def shape_internal(
    input: Any, name: str | None = None, optimize: bool = True, out_type: Any = dt.int32, const_name: str = ""
) -> Tensor:
    """`shape`, where `optimize` allows a constant; `const_name` names it under the scope."""
    with name_scope(name, "Shape", [input]) as scope:
        if hasattr(input, "dense_shape"):
            result: Tensor = op_of("Cast")(input.dense_shape, DstT=as_dtype(out_type), name="Cast")
            return result
        tensor = convert_to_tensor(input)
        if optimize and tensor.shape.is_fully_defined():
            return make_constant(tensor.shape.as_list(), as_dtype(out_type), name=const_name or scope)
        result = shape_op(tensor, out_type=as_dtype(out_type), name=scope)
        return result


@op("ConcatOffset", "int32, N*shape_type -> offset: N*shape_type", numpy=True, no_gradient=True,
    static="concat_dim shape", shape=lambda op: [t.shape for t in op.input_list[1:]], shape_type=INDEX32)  # fmt: skip
def concat_offset(concat_dim: Array, shape: list[Array]) -> list[Array]:
    axis, at = int(concat_dim), 0
    offsets = []
    for dims in shape:
        offset = np.zeros_like(dims)
        offset[axis] = at
        at += int(dims[axis])
        offsets.append(offset)
    return offsets


def shape_n(input: Any, out_type: Any = dt.int32, name: str | None = None) -> list[Tensor]:
    """The shapes of several tensors: `a, b = tf.shape_n([x, y])`."""
    result: list[Tensor] = shape_n_op(input, out_type=as_dtype(out_type), name=name)
    return result


def size(input: Any, name: str | None = None, out_type: Any = dt.int32) -> Tensor:
    """The number of elements; a constant if it is known already."""
    with name_scope(name, "Size", [input]) as scope:
        if hasattr(input, "dense_shape"):
            dims = op_of("Cast")(input.dense_shape, DstT=as_dtype(out_type), name="Cast")
            result: Tensor = op_of("Prod")(dims, [0], name=scope)
            return result
        tensor = convert_to_tensor(input)
        count = tensor.shape.num_elements()
        if count is not None:
            return make_constant(count, as_dtype(out_type), name=scope)
        result = size_op(tensor, out_type=as_dtype(out_type), name=scope)
        return result


def rank(input: Any, name: str | None = None) -> Tensor:
    """The number of dimensions; a constant if it is known already."""
    with name_scope(name, "Rank", [input]) as scope:
        if hasattr(input, "dense_shape"):
            return size(input.dense_shape, name=scope)
        tensor = convert_to_tensor(input)
        if tensor.shape.rank is not None:
            return make_constant(tensor.shape.rank, dt.int32, name=scope)
        result: Tensor = rank_op(tensor, name=scope)
        return result


# Fills


def _fill_shape(op: Operation) -> list[TensorShape]:
    dims = op.input_list[0]
    require_rank(dims.shape, 1)
    require_rank(op.input_list[1].shape, 0)
    known = constant_value(dims)
    if known is not None and (known < 0).any():
        raise ValueError("Fill dimensions must be >= 0")
    return [constant_value_as_shape(dims)]


@op("Fill", "index_type, T -> output: T", static="dims", numpy=True, shape=_fill_shape, index_type=INDEX32)
def fill_op(dims: Array, value: Array) -> Array:
    size = tuple(int(d) for d in dims)
    if any(d < 0 for d in size):
        raise ValueError(f"dims must be non-negative, received {list(size)}")
    module = array_module(math.prod(size), value)
    return module.full(size, value[()] if module is np else value, value.dtype)


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` filled with a scalar: `tf.fill([2, 3], 9.0)`."""
    tensor: Tensor = fill_op(dims, value, name=name)
    return tensor


def zeros(shape: Any, dtype: Any = dt.float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (False, empty strings): `tf.zeros([10])`."""
    return _filled(shape, dtype, name, "zeros", {"bool": False, "string": b""}, 0)


def ones(shape: Any, dtype: Any = dt.float32, name: str | None = None) -> Tensor:
    """A tensor of ones (True): `tf.ones([2, 2])`."""
    return _filled(shape, dtype, name, "ones", {"bool": True}, 1)


def _filled(shape: Any, dtype: Any, name: str | None, default: str, special: dict[str, Any], number: int) -> Tensor:
    base = as_dtype(dtype).base_dtype
    value = special.get(base.name, number)
    with name_scope(name, default, [shape]) as scope:
        if not isinstance(shape, Tensor):
            try:
                static = as_shape(shape)
            except (TypeError, ValueError):
                static = TensorShape(None)
            count = static.num_elements()
            # A bare size stays a Fill, as in TensorFlow.
            if count is not None and count < _SMALL and not isinstance(shape, (int, np.integer, Dimension)):
                return make_constant(value, base, static, scope)
            if count is not None:
                dims = make_constant(static, None, name="shape_as_tensor")
            else:
                dims = convert_to_tensor(shape, dtype=dt.int32)
        else:
            dims = shape if shape.shape.rank else reshape(shape, [-1])
        return fill(dims, make_constant(value, base), name=scope)


@op("ZerosLike", "T -> y: T", shape=shapes.unchanged, numpy=True, no_gradient=True)
def zeros_like_op(x: Array) -> Array:
    if hasattr(x, "tree_flatten"):  # a list of tensors
        return jax.tree.map(jnp.zeros_like, x)
    return np.full(x.shape, b"", object) if x.dtype == object else array_module(x.size, x).zeros_like(x)


@op("OnesLike", "T -> y: T", shape=shapes.unchanged, numpy=True, no_gradient=True, T=(*NUMBERS, dt.bool))
def ones_like_op(x: Array) -> Array:
    return array_module(x.size, x).ones_like(x)


def zeros_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Zeros of the shape (and type) of `tensor`."""
    with name_scope(name, "zeros_like", [tensor]) as scope:
        source = convert_to_tensor(tensor, name="tensor")
        wanted = source.dtype.base_dtype if dtype is None else as_dtype(dtype)
        if optimize and source.shape.is_fully_defined() and wanted is not dt.variant:
            return zeros(source.shape, wanted, name=scope)
        if wanted != source.dtype.base_dtype:
            return zeros(shape_internal(source, optimize=optimize), wanted, name=scope)
        result: Tensor = zeros_like_op(source, name=scope)
        return result


def ones_like(tensor: Any, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Ones of the shape (and type) of `tensor`."""
    with name_scope(name, "ones_like", [tensor]) as scope:
        source = convert_to_tensor(tensor, name="tensor")
        dims = shape_internal(source, optimize=optimize, const_name="shape_as_tensor")
        result = ones(dims, source.dtype if dtype is None else dtype, name=scope)
        result.set_shape(source.shape)
        return result


# Reshapes


def _reshape_shape(op: Operation) -> list[TensorShape]:
    tensor, wanted = op.input_list
    if wanted.shape.rank not in (None, 1):
        raise ValueError(f"Shape must be rank 1 but is rank {wanted.shape.rank}")
    target, count = constant_value_as_shape(wanted), tensor.shape.num_elements()
    if target.rank is None or count is None:
        return [target]
    dims = target.as_list()
    known = math.prod(d for d in dims if d is not None)
    unknown = dims.count(None)
    if unknown == 0 and known != count:
        raise ValueError(f"Cannot reshape a tensor with {count} elements to shape {brief(target)} ({known} elements)")
    if unknown == 1 and known > 0:
        if count % known:
            raise ValueError(f"Dimension size must be evenly divisible by {known} but is {count}")
        dims[dims.index(None)] = count // known
    return [TensorShape.of(tuple(dims))]


def _reshape_to_input(op: Operation, grad: Tensor) -> list[Any]:
    """The gradient of an op that only regroups elements."""
    from penstock.ops.segment import dense_rows

    return [reshape(dense_rows(grad), shape(op.input_list[0]))] + [None] * (len(op.input_list) - 1)


@op("Reshape", "T, Tshape -> output: T", static="shape", numpy=True, shape=_reshape_shape, grad=_reshape_to_input,
    Tshape=INDEX32)  # fmt: skip
def reshape_op(tensor: Array, shape: Array) -> Array:
    dims = [int(d) for d in shape]
    unknown = [i for i, d in enumerate(dims) if d == -1]
    if len(unknown) > 1:
        raise ValueError(f"Only one input size may be -1, not both {unknown[0]} and {unknown[1]}")
    known = math.prod(d for d in dims if d != -1)
    if unknown and known:
        if tensor.size % known:
            raise ValueError(
                f"Input to reshape is a tensor with {tensor.size} values, but the requested shape requires a multiple "
                f"of {known}"
            )
        dims[unknown[0]] = tensor.size // known
    elif unknown or known != tensor.size:
        raise ValueError(
            f"Input to reshape is a tensor with {tensor.size} values, but the requested shape has {known}"
        )
    return tensor.reshape(dims)


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Tensor:
    """The same elements in another shape; one size may be -1: `tf.reshape(x, [-1, 784])`."""
    result: Tensor = reshape_op(tensor, shape, name=name)
    return result


def _expand_shape(op: Operation) -> list[TensorShape]:
    source, dim = op.input_list[0].shape, constant_value(op.input_list[1])
    if dim is None or source.rank is None:
        return [TensorShape.of(None)]
    axis, limit = int(dim.reshape(())), source.rank + 1
    if not -limit <= axis < limit:
        raise ValueError(f"dim {axis} not in the interval [{-limit}, {limit - 1}].")
    dims = source.as_list()
    dims.insert(axis % limit, 1)
    return [TensorShape.of(tuple(dims))]


@op("ExpandDims", "T, Tdim -> output: T", static="dim", numpy=True, shape=_expand_shape, grad=_reshape_to_input,
    Tdim=INDEX32)  # fmt: skip
def expand_dims_op(input: Array, dim: Array) -> Array:
    return xp(input).expand_dims(input, int(dim.reshape(())))


def expand_dims(input: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """A dimension of size 1 inserted at `axis`: `tf.expand_dims(x, -1)`."""
    if (axis is None) == (dim is None):
        raise ValueError("expand_dims: exactly one of `axis` and its old name `dim` must be given.")
    result: Tensor = expand_dims_op(input, dim if axis is None else axis, name=name)
    return result


def _squeezed(dims: list[int | None], wanted: tuple[int, ...]) -> tuple[int | None, ...]:
    chosen = set()
    for axis in wanted:
        if not -len(dims) <= axis < len(dims):
            raise ValueError(f"Squeeze dim {axis} is not in [{-len(dims)}, {len(dims)})")
        chosen.add(axis % len(dims))
        if dims[axis] not in (1, None):
            raise ValueError(f"Can not squeeze dim[{axis % len(dims)}], expected a dimension of 1, got {dims[axis]}")
    return tuple(d for i, d in enumerate(dims) if (i not in chosen if wanted else d != 1))


def _squeeze_shape(op: Operation) -> list[TensorShape]:
    source, wanted = op.input_list[0].shape, op.attrs["squeeze_dims"]
    if source.rank is None or (not wanted and not source.is_fully_defined()):
        return [TensorShape.of(None)]
    return [TensorShape.of(_squeezed(source.as_list(), wanted))]


@op("Squeeze", "T -> output: T", numpy=True, shape=_squeeze_shape, grad=_reshape_to_input)
def squeeze_op(input: Array, *, squeeze_dims: list[int] = []) -> Array:  # noqa: B006
    return input.reshape(_squeezed(list(input.shape), tuple(squeeze_dims)))


def squeeze(input: Any, axis: Any = None, name: str | None = None, squeeze_dims: Any = None) -> Tensor:
    """Without the dimensions of size 1, or without those in `axis`: `tf.squeeze(x, [1])`."""
    if axis is not None and squeeze_dims is not None:
        raise ValueError("squeeze: give only one of `axis` and its old name `squeeze_dims`.")
    chosen = axis if squeeze_dims is None else squeeze_dims
    dims = [] if chosen is None else [chosen] if np.ndim(chosen) == 0 else list(chosen)
    result: Tensor = squeeze_op(input, squeeze_dims=dims, name=name)
    return result


def _broadcast_to_shape(op: Operation) -> list[TensorShape]:
    source, target = op.input_list[0].shape, constant_value_as_shape(op.input_list[1])
    if source.rank is not None and target.rank is not None:
        if source.rank > target.rank:
            raise ValueError(f"Shape must be at most rank {target.rank} but is rank {source.rank}")
        shapes.broadcast_pair(source, target)
    return [target]


@op("BroadcastTo", "T, Tidx -> output: T", static="shape", numpy=True, shape=_broadcast_to_shape, Tidx=INDEX32)
def broadcast_to_op(input: Array, shape: Array) -> Array:
    dims = tuple(int(d) for d in shape)
    return array_module(math.prod(dims), input).broadcast_to(input, dims)


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """`input` repeated to `shape` by the rules of broadcasting: `tf.broadcast_to(row, [10, 3])`."""
    result: Tensor = broadcast_to_op(input, shape, name=name)
    return result


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The static shape that two shapes broadcast to."""
    return broadcast_shape(shape_x, shape_y)


@op("BroadcastArgs", "T, T -> r0: T", numpy=True, no_gradient=True, static="s0 s1", T=INDEX32,
    shape=lambda op: [_longer(op)])  # fmt: skip
def broadcast_args(s0: Array, s1: Array) -> Array:
    return np.array(np.broadcast_shapes(tuple(s0.tolist()), tuple(s1.tolist())), s0.dtype)


def _longer(op: Operation) -> TensorShape:
    a, b = (require_rank(t.shape, 1).as_list()[0] for t in op.input_list)
    return TensorShape.of((None if a is None or b is None else max(a, b),))


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Tensor:
    """The shape that two shapes, given as integer vectors, broadcast to."""
    result: Tensor = broadcast_args(shape_x, shape_y)
    return result


def __getattr__(name: str) -> Any:
    """TensorFlow has one module of array ops; here what is not above is in the modules beside this one."""
    if not name.startswith("__"):
        for module in ("joining", "slicing", "selection", "diag", "segment"):
            found = getattr(importlib.import_module(f"penstock.ops.{module}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module 'penstock.ops.array' has no attribute '{name}'")
