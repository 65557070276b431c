"""GatherTree: the sequences of a beam search, followed from their last steps back to their first."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from penstock.graph.opdef import op
from penstock.kernel.types import INDEX32, Array


@op("GatherTree", "T, T, int32, T -> beams: T", no_gradient=True, shape=lambda op: [op.input_list[0].shape], T=INDEX32)
def gather_tree_op(step_ids: Array, parent_ids: Array, max_sequence_lengths: Array, end_token: Array) -> Array:
    if step_ids.ndim != 3 or step_ids.shape != parent_ids.shape:
        raise ValueError(
            f"step_ids and parent_ids must be [time, batch, beam] alike, got {step_ids.shape} and {parent_ids.shape}."
        )
    if max_sequence_lengths.shape != step_ids.shape[1:2]:
        raise ValueError(
            f"max_sequence_lengths must be a vector of {step_ids.shape[1]}, got {max_sequence_lengths.shape}."
        )
    steps, batch, beams = step_ids.shape
    lengths = jnp.minimum(jnp.asarray(max_sequence_lengths), steps)[:, None]
    end = jnp.asarray(end_token, step_ids.dtype)

    def back(beam: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        ids, parents, time = step
        inside = time < lengths
        row = jnp.where(inside, jnp.take_along_axis(ids, beam, axis=1), end)
        return jnp.where(inside, jnp.take_along_axis(parents, beam, axis=1), beam), row

    start = jnp.broadcast_to(jnp.arange(beams, dtype=step_ids.dtype), (batch, beams))
    inputs = (jnp.asarray(step_ids), jnp.asarray(parent_ids), jnp.arange(steps, dtype=jnp.int32))
    _, found = lax.scan(back, start, inputs, reverse=True)
    # Nothing comes after the first end token.
    ends = jnp.cumsum((found == end).astype(jnp.int32), axis=0)
    return jnp.where(ends - (found == end) > 0, end, found)
