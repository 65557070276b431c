"""The `tf` of golden programs for `tf.distribute`: the names of the V2 face that they use."""

from __future__ import annotations

from types import SimpleNamespace

import penstock.v1
from penstock.v2 import config, distribute

tf = SimpleNamespace(
    distribute=distribute,
    config=config,
    train=SimpleNamespace(ClusterSpec=penstock.v1.train.ClusterSpec, ServerDef=penstock.v1.train.ServerDef),
    compat=SimpleNamespace(v1=penstock.v1),
)
