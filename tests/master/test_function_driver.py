"""A driver runs functions for one client."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf
from penstock.errors import CancelledError
from penstock.passes.prune import prune
from penstock.wire.messages import RunGraph

DEADLINE = 60.0


def test_a_function_that_comes_after_the_client_has_closed_is_cancelled() -> None:
    with tf.Graph().as_default(), tf.train.Server({"worker": free_addresses(1)}) as server:
        driver = server.worker.make_function_driver()
        function = driver.add(prune([], [tf.constant(3)], []))
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        driver.start(function, RunGraph(1, 0), lambda values, error, step: done.put((values, error)))
        values, error = done.get(timeout=DEADLINE)
        # On a GPU the values are arrays of jax in memory of the host, which jax cannot compare there.
        assert error is None and list(map(np.asarray, values)) == [3]
        driver.close()
        with pytest.raises(CancelledError, match="closed its session"):
            driver.start(function, RunGraph(2, 0), done.put)
