"""The table of NumPy rules, and the view of a node that a rule gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.flat import Node
from penstock.jaxprs.sizes import Sizes, SizesNeeded, has_symbols

Kernel = Callable[..., Any]

# The memory of a result.
NEW = "new"  # its own
SAME = "same"  # that of operand 0, all of it
VIEW = "view"  # that of operand 0, some of it, or some of it several times
SHARED = "shared"  # that of any operand


class Overwriting(NamedTuple):
    """A kernel in two forms: one that leaves its operands alone, and one that writes its result into operand 0."""

    keeping: Kernel
    into_first: Kernel


class Site:
    """A node, and the sizes of its symbolic dimensions once they are known.

    If a rule asks for a value that depends on unknown sizes, SizesNeeded is raised: the rule is then called again for
    each set of sizes. A rule must raise NoRule before it asks for such a value.
    """

    __slots__ = ("node", "sizes")

    def __init__(self, node: Node, sizes: Sizes | None = None) -> None:
        self.node = node
        self.sizes = sizes

    def _resolved(self, value: Any) -> Any:
        if not has_symbols(value):
            return value
        if self.sizes is None:
            raise SizesNeeded
        return self.sizes.resolve(value)

    def param(self, name: str) -> Any:
        return self._resolved(self.node.params[name])

    def shape(self, operand: int) -> tuple[int, ...]:
        return self._resolved(self.node.inputs[operand].shape)  # type: ignore[no-any-return]

    def out_shape(self, result: int = 0) -> tuple[int, ...]:
        return self._resolved(self.node.outputs[result].shape)  # type: ignore[no-any-return]

    def ndim(self, operand: int) -> int:
        return len(self.node.inputs[operand].shape)

    def dtype(self, operand: int = 0) -> Any:
        return self.node.inputs[operand].dtype

    def out_dtype(self, result: int = 0) -> Any:
        return self.node.outputs[result].dtype

    def no_rule(self, reason: str) -> NoRule:
        return NoRule(self.node.primitive, reason)


class Rule(NamedTuple):
    build: Callable[[Site], Kernel | Overwriting]
    memory: str  # NEW, SAME, VIEW or SHARED
    broadcasts: bool  # the kernel takes operands that NumPy broadcasts to the shape of the result
    overwrites: bool  # the kernel is Overwriting


RULES: dict[str, Rule] = {}


def rule(
    *names: str, memory: str = NEW, broadcasts: bool = False, overwrites: bool = False
) -> Callable[[Callable[[Site], Any]], Callable[[Site], Any]]:
    """Registers a function from a Site to the kernel that computes the primitives `names`.

    A kernel takes arrays and returns one, or a sequence of them if the primitive has several results:

        @rule("transpose", memory=VIEW)
        def transpose(site):
            permutation = site.param("permutation")
            return lambda x: x.transpose(permutation)
    """

    def register(build: Callable[[Site], Any]) -> Callable[[Site], Any]:
        for name in names:
            RULES[name] = Rule(build, memory, broadcasts, overwrites)
        return build

    return register


def wider(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type to compute in: float32 for 16-bit and narrower floats, else `dtype` itself."""
    return np.dtype(np.float32) if is_narrow_float(dtype) else dtype


def is_narrow_float(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize <= 2 and is_float(dtype)


def is_float(dtype: np.dtype[Any]) -> bool:
    # The types of ml_dtypes have another kind.
    return dtype.kind == "f" or "float" in dtype.name


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def lowest(dtype: np.dtype[Any]) -> Any:
    """The smallest value of a type: the identity of max."""
    if dtype.kind == "b":
        return False
    return np.iinfo(dtype).min if is_integer(dtype) else -np.inf


def highest(dtype: np.dtype[Any]) -> Any:
    """The largest value of a type: the identity of min."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).max if is_integer(dtype) else np.inf
