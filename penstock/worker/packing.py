"""Packing: small results of another device in one transfer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MAX_PACKED = 1 << 14  # bytes: a larger array is worth a transfer of its own


@jax.tree_util.register_pytree_node_class
class Packed:
    """Small arrays as one array of bytes: on another device each transfer costs as much as several kernels.

    The layout (name, type, shape and position of each) belongs to the form of the compiled code's result, so it comes
    back from a call without a transfer.
    """

    def __init__(self, data: Any, layout: tuple[tuple[int, str, tuple[int, ...], int], ...]) -> None:
        self.data = data
        self.layout = layout

    @classmethod
    def of(cls, parts: dict[int, Any]) -> Packed:
        """Joins arrays while tracing."""
        layout, pieces, start = [], [], 0
        for name, array in parts.items():
            is_bool = array.dtype == jnp.bool_
            plain = array.astype(jnp.uint8) if is_bool else jax.lax.bitcast_convert_type(array, jnp.uint8)
            layout.append((name, np.dtype(array.dtype).str, tuple(array.shape), start))
            pieces.append(plain.reshape(-1))
            start += pieces[-1].size
        return cls(jnp.concatenate(pieces), tuple(layout))

    def arrays(self) -> dict[int, np.ndarray]:
        """The arrays, on the host."""
        data = self.data.__array__()
        return {name: np.ndarray(shape, dtype, data, start) for name, dtype, shape, start in self.layout}

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        return (self.data,), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Any, children: tuple[Any]) -> Packed:
        return cls(children[0], layout)
