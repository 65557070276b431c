"""Optional: a value that may be missing, such as the element after the last one."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data import structure
from penstock.data.iterator_ops import check_element
from penstock.data.nodes import Element
from penstock.errors import InvalidArgumentError, OutOfRangeError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle

_OPTIONS: dict[str, Any] = {"host": True, "no_gradient": True, "shape": shapes.scalar}


@op("OptionalFromValue", "list(Toutput_types) -> optional: variant", **_OPTIONS)
def optional_from_value(components: list[Any], *, Toutput_types: list[DType]) -> Any:
    return as_handle(tuple(components))


@op("OptionalNone", "-> optional: variant", **_OPTIONS)
def optional_none() -> Any:
    return as_handle(None)


@op("OptionalHasValue", "variant -> has_value: bool", **_OPTIONS)
def optional_has_value(optional: Any) -> Any:
    return np.asarray(from_handle(optional) is not None)


def _declared(op: Operation) -> list[TensorShape]:
    return list(op.attrs["output_shapes"])


@op("OptionalGetValue", "variant -> components: list(output_types)", host=True, no_gradient=True, shape=_declared)
def optional_get_value(optional: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    element: Element | None = from_handle(optional)
    if element is None:
        raise InvalidArgumentError("The given optional does not have a value.")
    check_element(element, output_types, output_shapes)
    return list(element)


@op(
    "IteratorGetNextAsOptional",
    "resource -> optional: variant",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def iterator_get_next_as_optional(
    iterator: Any, *, output_types: list[DType], output_shapes: list[TensorShape], ctx: Any
) -> Any:
    try:
        return as_handle(from_handle(iterator).get_next(ctx))
    except OutOfRangeError:
        return as_handle(None)


class Optional(structure.Carried):
    """A value that may be missing: `tf.experimental.Optional.from_value(1)`, or the next element of an iterator.

    >>> found = iterator.get_next_as_optional()
    >>> found.get_value() if found.has_value() else 0
    """

    def __init__(self, variant_tensor: Tensor, spec: Any) -> None:
        self._variant_tensor = variant_tensor
        self._spec = spec

    @staticmethod
    def from_value(value: Any) -> Optional:
        """An optional with a value."""
        spec, tensors = structure.to_tensors(value, lambda i: None)
        return Optional(optional_from_value(tensors), spec)

    @staticmethod
    def empty(element_spec: Any) -> Optional:
        """An optional without a value."""
        return Optional(optional_none(), element_spec)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of the value."""
        return self._spec

    def has_value(self, name: str | None = None) -> Tensor:
        """A bool: there is a value."""
        found: Tensor = optional_has_value(self._variant_tensor, name=name)
        return found

    def get_value(self, name: str | None = None) -> Any:
        """The value; InvalidArgumentError if there is none."""
        spec = self._spec
        found = optional_get_value(
            self._variant_tensor,
            output_types=structure.types_of(spec),
            output_shapes=structure.shapes_of(spec),
            name=name,
        )
        return structure.from_tensors(spec, found)


def get_next_as_optional(iterator: Any) -> Optional:
    """The next element of an iterator as a value that may be missing, at the end.

    >>> tf.data.experimental.get_next_as_optional(iterator).has_value()
    """
    spec = iterator.element_spec
    found = iterator_get_next_as_optional(
        iterator._iterator_resource, output_types=structure.types_of(spec), output_shapes=structure.shapes_of(spec)
    )
    return Optional(found, spec)
