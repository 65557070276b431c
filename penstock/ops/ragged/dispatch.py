"""Calls of op types with ragged tensors: the one place where public functions and operators meet them.

A public function passes what it is given to an op type. That fails to convert a ragged tensor, and comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.hooks import NotDense
from penstock.graph.opdef import OpDef
from penstock.ops.array.reshaping import reshape
from penstock.ops.array.selection import one_hot_op
from penstock.ops.ragged import arranging, reductions
from penstock.ops.ragged.broadcasting import mapped
from penstock.ops.ragged.ragged_tensor import RaggedTensor

# Op types that treat each element alone, and broadcast if they have several inputs.
_NAMES = """
    Abs Acos Acosh Add AddV2 Angle AsString Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e Bitcast BitwiseAnd BitwiseOr
    BitwiseXor Cast Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj Cos Cosh DecodeBase64 Digamma Div DivNoNan
    Elu EncodeBase64 Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Identity Imag Inv
    Invert IsFinite IsInf IsNan LeakyRelu LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr
    Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike Pow Real RealDiv Reciprocal RegexFullMatch
    RegexReplace Relu Relu6 RightShift Rint Round Rsqrt Selu SelectV2 Sigmoid Sign Sin Sinh Softplus Softsign Sqrt
    Square SquaredDifference StaticRegexFullMatch StaticRegexReplace StopGradient StringJoin StringLength StringLower
    StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr
    Tan Tanh TruncateDiv TruncateMod UnicodeScript UnicodeTranscode Xdivy Xlog1py Xlogy ZerosLike
"""
ELEMENTWISE = frozenset(_NAMES.split())


def call(op_def: OpDef, args: Sequence[Any], kwargs: dict[str, Any], name: str | None) -> Any:
    """The result of a call of an op type that got a ragged tensor. Raises NotDense if it takes dense ones only."""
    named = dict(zip([parameter for parameter, _ in op_def.parameters], args, strict=False)) | kwargs
    named.pop("name", None)
    inputs = [named.pop(arg.name) for arg in op_def.inputs]
    if op_def.name in ELEMENTWISE:
        if op_def.inputs[0].is_list:
            return mapped(lambda flat: op_def(flat, name=name, **named), inputs[0])
        return mapped(lambda flat: op_def(*flat, name=name, **named), inputs)
    special = _SPECIAL.get(op_def.name)
    if special is None:
        raise NotDense(
            f"{op_def.name} takes dense tensors, received a ragged one among {inputs!r:.200}. Use its to_tensor(), or "
            "tf.ragged.map_flat_values."
        )
    return special(inputs, named)


def _numbers(value: Any, what: str) -> list[int]:
    known = constant_value(convert_to_tensor(value))
    if known is None:
        raise ValueError(f"{what} must be known when an operation on ragged tensors is built.")
    return [int(n) for n in np.asarray(known).reshape(-1)]


def _concat(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    return arranging.concat(inputs[0], _numbers(inputs[1], "axis")[0])


def _gather(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    axis = _numbers(inputs[2], "axis")[0] if len(inputs) > 2 else 0
    return arranging.gather(inputs[0], inputs[1], axis, attrs.get("batch_dims", 0))


def _reduction(kind: str) -> Callable[[list[Any], dict[str, Any]], Any]:
    return lambda inputs, attrs: reductions.reduced(kind, inputs[0], inputs[1], attrs.get("keep_dims", False))


def _one_hot(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    indices, *rest = inputs
    return indices.with_flat_values(one_hot_op(indices.flat_values, *rest, **attrs))


def _segments(kind: str) -> Callable[[list[Any], dict[str, Any]], Any]:
    return lambda inputs, attrs: reductions.segmented(kind, *inputs)


def _reshape(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    if not isinstance(inputs[0], RaggedTensor) or _numbers(inputs[1], "shape") != [-1]:
        raise NotDense("reshape takes a ragged tensor only to make a vector of its values, with shape [-1].")
    return reshape(inputs[0].flat_values, [-1])


def _squeeze(inputs: list[Any], attrs: dict[str, Any]) -> Any:
    return arranging.squeeze(inputs[0], [int(a) for a in attrs.get("squeeze_dims", ())])


_SPECIAL: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    **{kind: _reduction(kind) for kind in reductions.KINDS},
    "ConcatV2": _concat,
    "ExpandDims": lambda inputs, attrs: arranging.expand_dims(inputs[0], _numbers(inputs[1], "axis")[0]),
    "Gather": _gather,
    "GatherV2": _gather,
    "Pack": lambda inputs, attrs: arranging.stack(inputs[0], attrs.get("axis", 0)),
    "ReverseV2": lambda inputs, attrs: arranging.reverse(inputs[0], _numbers(inputs[1], "axis")),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    **{f"UnsortedSegment{kind}": _segments(kind) for kind in reductions.SEGMENTED},
    "Tile": lambda inputs, attrs: arranging.tile(inputs[0], _numbers(inputs[1], "multiples")),
}
