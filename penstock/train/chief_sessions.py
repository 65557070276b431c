"""The sessions of a chief: each keeps the model of this training, and initialises or restores any other."""

from __future__ import annotations

from typing import Any

from penstock.graph.graph import Graph
from penstock.session import Session
from penstock.train.session_manager import SessionManager
from penstock.train.step_memory import StepMemory
from penstock.train.training_mark import TrainingMark


class ChiefSessions:
    """Makes the sessions of one training, and remembers which training that is and how far it has come.

    >>> sessions = ChiefSessions(manager, graph, server.target, None, "/tmp/train", global_step)
    >>> session = sessions.make(server.target, again=False, init_op=init, saver=saver)
    """

    def __init__(
        self,
        manager: SessionManager,
        graph: Graph,
        master: str,
        config: Any,
        checkpoint_dir: str | None,
        global_step: Any,
    ) -> None:
        self._manager = manager
        self._checkpoint_dir = checkpoint_dir
        self.began = False  # True if no model was prepared yet
        self._mark = TrainingMark(master, checkpoint_dir, graph, config)
        self._memory = StepMemory(global_step, checkpoint_dir) if master else None  # on a cluster

    def make(self, master: str, again: bool, wait: dict[str, Any] | None = None, **model: Any) -> Session:
        """A session whose model is ready. `again` is True if there was one before; `wait` is for `prepare_session`."""
        # At first the servers may hold another training, unless the mark is there. Later they hold this one.
        if again or self._mark.is_there():
            session = self._manager.rejoin_session(master, checkpoint_dir=self._checkpoint_dir, **model)
        else:
            session = self._manager.prepare_session(
                master, checkpoint_dir=self._checkpoint_dir, **model, **(wait or {})
            )
        self.began = True
        try:
            self._mark.put()
            if self._memory is not None:
                self._memory.compare(session)
        except BaseException:
            session.close()
            raise
        return session

    def after_step(self, session: Any) -> None:
        """Records the current global step."""
        if self._memory is not None:
            self._memory.note(session)

    def end(self) -> None:
        """Ends the training, so that its servers may be used for another."""
        self._mark.take_away()
