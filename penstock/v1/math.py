"""Mathematical functions."""

from penstock.face.missing import guard as _guard
from penstock.ops.array.arranging import invert_permutation
from penstock.ops.array.ranges import bincount
from penstock.ops.math.arithmetic import (
    accumulate_n,
    add,
    add_n,
    atan2,
    divide,
    divide_no_nan,
    floordiv,
    floormod,
    maximum,
    minimum,
    mod,
    multiply,
    multiply_no_nan,
    pow,
    scalar_mul,
    squared_difference,
    subtract,
    truediv,
    xdivy,
    xlog1py,
    xlogy,
)
from penstock.ops.math.casting import angle, conj, imag, real
from penstock.ops.math.compare import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from penstock.ops.math.cumulative import cumprod, cumsum, cumulative_logsumexp
from penstock.ops.math.formulas import (
    erfcinv,
    is_non_decreasing,
    is_strictly_increasing,
    lbeta,
    log_sigmoid,
    polyval,
    reciprocal_no_nan,
)
from penstock.ops.math.histogram import confusion_matrix
from penstock.ops.math.reduce import (
    argmax,
    argmin,
    count_nonzero,
    reduce_all,
    reduce_any,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_std,
    reduce_sum,
    reduce_variance,
)
from penstock.ops.math.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
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
    is_finite,
    is_inf,
    is_nan,
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
from penstock.ops.nn.activation import softplus, softsign
from penstock.ops.nn.layer_parts import in_top_k, log_softmax, softmax, top_k, zero_fraction
from penstock.ops.nn.normalization import l2_normalize

__getattr__ = _guard(__name__)
