"""function.Defun: a Python function of tensors with declared types, and optionally its own gradient.

TensorFlow turns it into a function of the graph. Here every call adds the nodes of its body in place; functions are
inlined before a step is compiled in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from penstock.autodiff import custom_gradient
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.scopes import name_scope


class Defun:
    """Decorator that declares the types of a function's arguments.

    >>> @function.Defun(tf.float32, tf.float32)
    ... def product(x, y):
    ...     return x * y
    """

    def __init__(self, *input_types: Any, **kwargs: Any) -> None:
        self._types = [as_dtype(each) for each in input_types]
        self._options = kwargs

    def __call__(self, func: Callable[..., Any]) -> DefinedFunction:
        return DefinedFunction(func, self._types, **self._options)


class DefinedFunction:
    """A function declared by `Defun`: call it with tensors."""

    def __init__(
        self,
        func: Callable[..., Any],
        input_types: Sequence[Any],
        func_name: str | None = None,
        grad_func: Any = None,
        python_grad_func: Callable[..., Any] | None = None,
        shape_func: Callable[..., Any] | None = None,
        **ignored: Any,
    ) -> None:
        self._func, self._types = func, list(input_types)
        self.name = func_name or getattr(func, "__name__", "function")
        self._grad_func, self._python_grad_func, self._shape_func = grad_func, python_grad_func, shape_func

    @property
    def declared_input_types(self) -> list[Any]:
        """The types of the arguments."""
        return self._types

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._types and len(args) != len(self._types):
            raise ValueError(f"Function '{self.name}' takes {len(self._types)} arguments, received {len(args)}.")
        with name_scope(kwargs.get("name"), self.name, args):
            types = self._types or [None] * len(args)
            inputs = [convert_to_tensor(each, dtype=dtype) for each, dtype in zip(args, types, strict=True)]
            if self._grad_func is None and self._python_grad_func is None:
                return self._shaped(self._func(*inputs), inputs)
            return custom_gradient(self._with_gradient)(*inputs)

    def _with_gradient(self, *inputs: Any) -> tuple[Any, Callable[..., Any]]:
        outputs = self._shaped(self._func(*inputs), inputs)

        def gradient(*output_grads: Any, **ignored: Any) -> Any:
            if self._python_grad_func is None:
                return self._grad_func(*inputs, *output_grads)
            given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            # The attributes of the op that such a function reads.
            call = SimpleNamespace(inputs=list(inputs), outputs=list(given), name=self.name, type=self.name)
            return self._python_grad_func(call, *output_grads)

        return outputs, gradient

    def _shaped(self, outputs: Any, inputs: Sequence[Any]) -> Any:
        if self._shape_func is not None:
            given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            call = SimpleNamespace(inputs=list(inputs), outputs=list(given), name=self.name, type=self.name)
            for output, shape in zip(given, self._shape_func(call), strict=True):
                output.set_shape(shape)
        return outputs
