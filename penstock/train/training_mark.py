"""TrainingMark: tells which training a parameter server holds, so that a chief that was killed can continue it.

A chief starts from the last checkpoint. If the chief was killed and the parameter servers were not, they hold more than
that: all that the other workers have done since. So the chief leaves a mark there, a number made from its checkpoint
directory, and removes it when it ends by itself, with or without an error. A chief that finds the mark of its
directory, and all variables initialised, keeps them. After an error in the program, such as a loss that became NaN, it
finds no mark and restores the checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
from typing import Any

from tensorboard.compat.proto import config_pb2

from penstock import logging
from penstock.errors import FailedPreconditionError, OpError
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import device
from penstock.ops.array.creation import constant, placeholder
from penstock.session import Session
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.variables.updates import assign
from penstock.variables.variable import Variable

_LEAVING_TIMEOUT_MS = 5000  # how long a chief that leaves waits for the parameter server


class TrainingMark:
    """The mark of the training in a checkpoint directory. It is stored beside the first variable of a graph."""

    def __init__(self, target: str, directory: str | None, graph: Graph, config: Any) -> None:
        places = [v.device for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if v.device]
        self._used = bool(target and directory and places)
        self._target, self._directory, self._config = target, directory, config
        self._place = places[0] if places else ""
        digest = hashlib.sha256(os.path.abspath(str(directory)).encode()).digest()
        self._number = int.from_bytes(digest[:8], "little") >> 1 | 1
        self._session: Session | None = None

    def _connect(self) -> Session:
        """Opens a separate session with its own graph: the program's graph stays as it is."""
        self._close()
        with Graph().as_default() as graph, device(self._place):
            mark = Variable(constant(0, dt.int64), trainable=False, name="penstock_training_mark")
            self._value = placeholder(dt.int64, [])
            self._put = assign(mark, self._value).op
            self._get = mark.read_value()
        self._session = Session(self._target, graph=graph, config=self._config)
        return self._session

    def is_there(self) -> bool:
        """True if the parameter server holds this training, and a checkpoint of it was made."""
        if not self._used or latest_checkpoint(self._directory) is None:
            return False
        try:
            found = int(self._connect().run(self._get))
        except FailedPreconditionError:  # the mark is not initialised
            return False
        if found == self._number:
            logging.warning(
                "The chief of the training in %s was killed. What the parameter servers still hold of it is kept.",
                self._directory,
            )
        return found == self._number

    def put(self) -> None:
        """Sets the mark, on a parameter server that may be a new one."""
        if self._used:
            self._connect().run(self._put, {self._value: self._number})
            atexit.register(self.take_away)

    def take_away(self) -> None:
        """Removes the mark, since the training has ended, with or without an error."""
        atexit.unregister(self.take_away)
        if self._session is not None:
            # If the parameter server is gone, so is the mark.
            with contextlib.suppress(OpError, RuntimeError):
                self._session.run(self._put, {self._value: 0}, config_pb2.RunOptions(timeout_in_ms=_LEAVING_TIMEOUT_MS))
        self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
