"""The shards that workers and tests know by the same name."""

from __future__ import annotations

from typing import Any

import penstock.v1 as tf

RECORDS, SHARDS, BATCH = 30, 6, 2  # three steps for each shard


def make_shards() -> Any:
    """Adds the shards to the default graph."""
    return tf.data.Shards(RECORDS, SHARDS, seed=3, deadline_secs=60.0, name="records")
