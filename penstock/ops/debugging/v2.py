"""Assertions under the parameters of TensorFlow 2. Where operations run at once they return None."""

from collections.abc import Callable
from typing import Any

from penstock.graph.adapted import adapted
from penstock.graph.operation import Operation
from penstock.ops.array import passthrough
from penstock.ops.debugging import assertion, check_ops, check_shapes


def _checks(check: Callable[..., Any], parameters: str) -> Callable[..., Any]:
    def checked(**arguments: Any) -> Any:
        done = check(**arguments)
        return None if isinstance(done, Operation) and done.graph.is_eager else done

    checked.__name__, checked.__doc__ = check.__name__, check.__doc__
    return adapted(checked, parameters)


_TWO = "x, y, message=None, summarize=None, name=None"
_ONE = "x, message=None, summarize=None, name=None"
_RANK = "x, rank, message=None, name=None"

Assert = _checks(assertion.Assert, "condition, data, summarize=None, name=None")
assert_all_finite = adapted(passthrough.verify_tensor_all_finite, "x, message, name=None")
assert_equal = _checks(check_ops.assert_equal, _TWO)
assert_greater = _checks(check_ops.assert_greater, _TWO)
assert_greater_equal = _checks(check_ops.assert_greater_equal, _TWO)
assert_integer = _checks(check_ops.assert_integer, "x, message=None, name=None")
assert_less = _checks(check_ops.assert_less, _TWO)
assert_less_equal = _checks(check_ops.assert_less_equal, _TWO)
assert_near = _checks(check_ops.assert_near, "x, y, rtol=None, atol=None, message=None, summarize=None, name=None")
assert_negative = _checks(check_ops.assert_negative, _ONE)
assert_non_negative = _checks(check_ops.assert_non_negative, _ONE)
assert_non_positive = _checks(check_ops.assert_non_positive, _ONE)
assert_none_equal = _checks(check_ops.assert_none_equal, "x, y, summarize=None, message=None, name=None")
assert_positive = _checks(check_ops.assert_positive, _ONE)
assert_rank = _checks(check_ops.assert_rank, _RANK)
assert_rank_at_least = _checks(check_ops.assert_rank_at_least, _RANK)
assert_rank_in = _checks(check_ops.assert_rank_in, "x, ranks, message=None, name=None")
assert_scalar = adapted(check_ops.assert_scalar, "tensor, message=None, name=None")
assert_shapes = _checks(check_shapes.assert_shapes, "shapes, data=None, summarize=None, message=None, name=None")
assert_type = _checks(check_ops.assert_type, "tensor, tf_type, message=None, name=None")
