"""Arithmetic, functions, reductions, segments."""

from penstock.face.missing import guard as _guard
from penstock.ops.math.arithmetic import (
    add,
    divide,
    floormod,
    maximum,
    minimum,
    multiply,
    multiply_no_nan,
    xdivy,
    xlog1py,
    xlogy,
)
from penstock.ops.math.arithmetic import div_no_nan as divide_no_nan
from penstock.ops.math.arithmetic import floormod as mod
from penstock.ops.math.casting import angle, conj, imag, real
from penstock.ops.math.cumulative import cumulative_logsumexp
from penstock.ops.math.formulas import (
    erfcinv,
    is_non_decreasing,
    is_strictly_increasing,
    lbeta,
    log_sigmoid,
    polyval,
    reciprocal_no_nan,
)
from penstock.ops.math.reduce import reduce_euclidean_norm, reduce_std, reduce_variance
from penstock.ops.math.special import (
    bessel_i0,
    bessel_i0e,
    bessel_i1,
    bessel_i1e,
    betainc,
    digamma,
    erf,
    erfc,
    erfinv,
    igamma,
    igammac,
    lgamma,
    ndtri,
    nextafter,
    polygamma,
    zeta,
)
from penstock.ops.math.unary import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    ceil,
    cos,
    cosh,
    exp,
    expm1,
    floor,
    log,
    log1p,
    negative,
    reciprocal,
    rint,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
)
from penstock.ops.math.v2 import argmax, argmin, bincount, confusion_matrix, count_nonzero, equal, not_equal
from penstock.ops.nn.activation import softplus, softsign
from penstock.ops.nn.layer_parts import log_softmax, top_k, zero_fraction
from penstock.ops.nn.normalization import l2_normalize
from penstock.ops.nn.v2 import in_top_k
from penstock.ops.ragged.functions import add_n
from penstock.ops.ragged.layers import softmax
from penstock.v1 import (
    accumulate_n,
    atan2,
    cumprod,
    cumsum,
    floordiv,
    greater,
    greater_equal,
    invert_permutation,
    is_finite,
    is_inf,
    is_nan,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    pow,
    reduce_all,
    reduce_any,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    scalar_mul,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    squared_difference,
    subtract,
    truediv,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)

__getattr__ = _guard(__name__)
