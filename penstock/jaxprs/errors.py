"""The error of a jaxpr that cannot be run by NumPy or padded: a primitive has no rule."""

from __future__ import annotations


class NoRule(Exception):
    """A primitive, with the params and types it has here, that there is no rule for.

    NoRule("debug_callback").primitive == "debug_callback"
    """

    def __init__(self, primitive: str, reason: str = "") -> None:
        super().__init__(f"Primitive {primitive!r} has no rule here" + (f": {reason}." if reason else "."))
        self.primitive = primitive
        self.reason = reason
