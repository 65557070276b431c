"""The error for a jaxpr that NumPy cannot run or that cannot be padded: a primitive has no rule."""

from __future__ import annotations


class NoRule(Exception):
    """Raised for a primitive for which there is no rule, given its params and types.

    NoRule("debug_callback").primitive == "debug_callback"
    """

    def __init__(self, primitive: str, reason: str = "") -> None:
        super().__init__(f"Primitive {primitive!r} has no rule here" + (f": {reason}." if reason else "."))
        self.primitive = primitive
        self.reason = reason
