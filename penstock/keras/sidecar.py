"""SidecarEvaluator: a task of its own that evaluates each checkpoint of a training as it appears."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from penstock import logging
from penstock.errors import NotFoundError
from penstock.keras.checkpoints import restore_checkpoint
from penstock.progress import under_way
from penstock.train.checkpoint_state import checkpoint_exists
from penstock.train.evaluation import checkpoints_iterator

WAIT_SECS = 3600.0  # for the next checkpoint


class SidecarEvaluator:
    """Evaluates a model on the checkpoints in a directory, which another task writes.

    It needs no connection to the cluster, only the directory. The model must be built and compiled. Checkpoints are
    those of `ModelCheckpoint`, of `save_weights`, or of `tf.train.Checkpoint(model=model, optimizer=optimizer)`.
    Callbacks get the results: TensorBoard writes them by the number of training steps, which a checkpoint has.

    >>> evaluator = tf.keras.utils.SidecarEvaluator(model, data, "/shared/checkpoints", max_evaluations=10)
    >>> evaluator.start()
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: str | os.PathLike[str],
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
        *,
        wait_secs: float = WAIT_SECS,
    ) -> None:
        self.model, self.data = model, data
        self.checkpoint_dir = os.fspath(checkpoint_dir)
        self.steps, self.max_evaluations = steps, max_evaluations
        self.callbacks = list(callbacks or ())
        self._wait_secs = wait_secs

    def start(self) -> list[dict[str, float]]:
        """Evaluates checkpoints until the last one, and returns the results of each.

        The last one has the number `max_evaluations` at the end of its name, or a greater one; where names have no
        numbers, so many have been evaluated. Checkpoints may be passed over: it is always the latest that is
        evaluated. Without `max_evaluations`, or if the training was ended early, it stops when no new checkpoint has
        come for `wait_secs`.
        """
        results: list[dict[str, float]] = []
        for path in checkpoints_iterator(self.checkpoint_dir, timeout=self._wait_secs):
            if not self._restored(path):
                continue
            found = self.model.evaluate(
                self.data, steps=self.steps, callbacks=self.callbacks, verbose=2, return_dict=True
            )
            logging.info("Evaluated %s: %s", path, found)
            results.append(found)
            under_way()
            number = re.search(r"-(\d+)$", path)
            if self.max_evaluations and self.max_evaluations <= (int(number[1]) if number else len(results)):
                return results
        logging.warning(
            "No new checkpoint in '%s' for %g s: the evaluation ends.", self.checkpoint_dir, self._wait_secs
        )
        return results

    def _restored(self, path: str) -> bool:
        """Reads a checkpoint; False if the training has removed it meanwhile, as it does when it has a newer one."""
        try:
            restore_checkpoint(self.model, path)
        except NotFoundError as error:
            if checkpoint_exists(path):
                raise
            logging.info("The checkpoint %s was removed while it was read: %s", path, error)
            return False
        return True
