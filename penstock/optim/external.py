"""Optimizers of other libraries, which drive a session: SciPy's, with bounds and constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock import logging
from penstock.autodiff import gradients
from penstock.graph import dtype as dt
from penstock.graph.sessions import get_default_session
from penstock.graph.typing import FeedDict, TensorLike
from penstock.ops.array.creation import placeholder, zeros_like
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import reshape
from penstock.ops.math.casting import cast
from penstock.variables.initialize import trainable_variables

Evaluation = Callable[[Any], Any]


class ExternalOptimizerInterface:
    """Base class of algorithms that look at all variables as one vector. A subclass implements `_minimize`.

    Tensors of `equalities` are to be zero, those of `inequalities` not negative; `var_to_bounds` maps variables to
    pairs (low, high) of numbers or arrays that broadcast to the variable. All other arguments are the algorithm's.

    >>> class Bisection(tf.contrib.opt.ExternalOptimizerInterface):
    ...     def _minimize(self, initial_val, loss_grad_func, **_): ...
    """

    def __init__(
        self,
        loss: TensorLike,
        var_list: Sequence[Any] | None = None,
        equalities: Sequence[Any] | None = None,
        inequalities: Sequence[Any] | None = None,
        var_to_bounds: Mapping[Any, tuple[Any, Any]] | None = None,
        **optimizer_kwargs: Any,
    ) -> None:
        self._loss: Any = loss
        self._equalities, self._inequalities = list(equalities or ()), list(inequalities or ())
        self._vars = list(trainable_variables() if var_list is None else var_list)
        if not self._vars:
            raise ValueError("No variables to optimize: var_list is empty.")
        self.optimizer_kwargs = optimizer_kwargs
        self._shapes = [tuple(var.get_shape().as_list()) for var in self._vars]
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])
        self._slices = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        self._packed_bounds = None if var_to_bounds is None else self._pack_bounds(var_to_bounds)
        self._packed_var = _packed(self._vars)
        self._packed_loss_grad = self._packed_gradient(loss)
        self._equality_grads = [self._packed_gradient(tensor) for tensor in self._equalities]
        self._inequality_grads = [self._packed_gradient(tensor) for tensor in self._inequalities]
        self._fed = [
            placeholder(var.dtype.base_dtype, shape) for var, shape in zip(self._vars, self._shapes, strict=True)
        ]
        self._assignments = [var.assign(value) for var, value in zip(self._vars, self._fed, strict=True)]

    def minimize(
        self,
        session: Any = None,
        feed_dict: FeedDict | None = None,
        fetches: Sequence[Any] | None = None,
        step_callback: Callable[[Any], Any] | None = None,
        loss_callback: Callable[..., Any] | None = None,
        **run_kwargs: Any,
    ) -> None:
        """Minimises the loss now, in the session, and assigns the variables at the end.

        `loss_callback` gets the values of `fetches` at each evaluation, `step_callback` the packed variables after each
        step of the algorithm.

        >>> tf.contrib.opt.ScipyOptimizerInterface(loss).minimize(sess, feed_dict={x: xs})
        """
        session = session or get_default_session()
        if session is None:
            raise ValueError("minimize() needs a session: pass one, or enter `with session:` before.")
        fed, more = dict(feed_dict or {}), list(fetches or ())

        def evaluation(tensors: list[Any], callback: Callable[..., Any] | None = None) -> Evaluation:
            def evaluate(x: Any) -> Any:
                values = session.run([*tensors, *more], {**self._feeds(x), **fed})
                if callback is not None:
                    callback(*values[len(tensors) :])
                return values[: len(tensors)] if len(tensors) > 1 else values[0]

            return evaluate

        best = self._minimize(
            initial_val=session.run(self._packed_var),
            loss_grad_func=evaluation([self._loss, self._packed_loss_grad], loss_callback),
            equality_funcs=[evaluation([tensor]) for tensor in self._equalities],
            equality_grad_funcs=[evaluation([tensor]) for tensor in self._equality_grads],
            inequality_funcs=[evaluation([tensor]) for tensor in self._inequalities],
            inequality_grad_funcs=[evaluation([tensor]) for tensor in self._inequality_grads],
            packed_bounds=self._packed_bounds,
            step_callback=step_callback or (lambda packed: None),
            optimizer_kwargs=self.optimizer_kwargs,
        )
        values = self._feeds(best).values()
        session.run(self._assignments, dict(zip(self._fed, values, strict=True)), **run_kwargs)

    def _minimize(
        self,
        initial_val: Any,
        loss_grad_func: Evaluation,
        equality_funcs: list[Evaluation],
        equality_grad_funcs: list[Evaluation],
        inequality_funcs: list[Evaluation],
        inequality_grad_funcs: list[Evaluation],
        packed_bounds: list[tuple[Any, Any]] | None,
        step_callback: Callable[[Any], Any],
        optimizer_kwargs: dict[str, Any],
    ) -> Any:
        """Returns the best vector, starting from `initial_val`. `loss_grad_func` returns a loss and its gradient."""
        raise NotImplementedError("To use ExternalOptimizerInterface, subclass it and implement _minimize().")

    def _feeds(self, packed: Any) -> dict[Any, Any]:
        return {
            var: np.asarray(packed)[part].reshape(shape).astype(var.dtype.base_dtype.as_numpy_dtype)
            for var, part, shape in zip(self._vars, self._slices, self._shapes, strict=True)
        }

    def _packed_gradient(self, tensor: Any) -> Any:
        found = gradients(tensor, self._vars)
        return _packed([zeros_like(var) if grad is None else grad for grad, var in zip(found, self._vars, strict=True)])

    def _pack_bounds(self, bounds: Mapping[Any, tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        unknown = [str(var) for var in bounds if not any(var is known for known in self._vars)]
        if unknown:
            raise ValueError(f"var_to_bounds has variables that are not optimized: {unknown}.")
        packed: list[tuple[Any, Any]] = []
        for var, shape in zip(self._vars, self._shapes, strict=True):
            low, high = bounds.get(var, (None, None))
            lows = np.broadcast_to(-np.inf if low is None else low, shape)
            highs = np.broadcast_to(np.inf if high is None else high, shape)
            packed += zip(lows.flat, highs.flat, strict=True)
        return packed


class ScipyOptimizerInterface(ExternalOptimizerInterface):
    """`scipy.optimize.minimize` on the variables of a session; L-BFGS-B unless `method` says otherwise.

    >>> rule = tf.contrib.opt.ScipyOptimizerInterface(loss, options={"maxiter": 100})
    >>> rule = tf.contrib.opt.ScipyOptimizerInterface(loss, var_to_bounds={w: (0.0, np.inf)})
    >>> rule = tf.contrib.opt.ScipyOptimizerInterface(loss, equalities=[w[1] - 1.0], method="SLSQP")
    >>> rule.minimize(sess)
    """

    _DEFAULT_METHOD = "L-BFGS-B"

    def _minimize(
        self,
        initial_val: Any,
        loss_grad_func: Evaluation,
        equality_funcs: list[Evaluation],
        equality_grad_funcs: list[Evaluation],
        inequality_funcs: list[Evaluation],
        inequality_grad_funcs: list[Evaluation],
        packed_bounds: list[tuple[Any, Any]] | None,
        step_callback: Callable[[Any], Any],
        optimizer_kwargs: dict[str, Any],
    ) -> Any:
        from scipy import optimize  # start-up

        settings = dict(optimizer_kwargs)
        kinds = (("eq", equality_funcs, equality_grad_funcs), ("ineq", inequality_funcs, inequality_grad_funcs))
        constraints = [
            {"type": kind, "fun": function, "jac": slope}
            for kind, functions, slopes in kinds
            for function, slope in zip(functions, slopes, strict=True)
        ]
        ours = {"jac": True, "callback": step_callback, "constraints": constraints, "bounds": packed_bounds}
        for name in ours.keys() & settings.keys():
            instead = {"bounds": "use var_to_bounds", "callback": "use step_callback", "constraints": "use equalities"}
            raise ValueError(f"Optimizer keyword '{name}' cannot be given: {instead.get(name, 'it is always True')}.")

        def evaluate(x: Any) -> tuple[float, Any]:
            loss, slope = loss_grad_func(x)
            return float(loss), np.asarray(slope, np.float64)

        method = settings.pop("method", self._DEFAULT_METHOD)
        result = optimize.minimize(evaluate, np.asarray(initial_val, np.float64), method=method, **ours, **settings)
        logging.info("%s ended: %s; loss %s.", method, result.message, result.fun)
        return result.x


def _packed(tensors: Sequence[Any]) -> Any:
    """All elements as one vector of float64, whatever types the variables have."""
    return concat([cast(reshape(tensor, [-1]), dt.float64) for tensor in tensors], 0)
