"""Session creators: they make the session inside a MonitoredSession, each time that it needs one."""

from __future__ import annotations

from typing import Any

from penstock.graph.graph import get_default_graph
from penstock.train.scaffold import Scaffold
from penstock.train.session_manager import SessionManager
from penstock.train.step_memory import StepMemory
from penstock.train.training_mark import TrainingMark
from penstock.variables.global_step import get_global_step


class SessionCreator:
    """Makes the sessions of a MonitoredSession."""

    def create_session(self) -> Any:
        """Returns a session whose model is ready."""
        raise NotImplementedError("A SessionCreator must implement create_session().")


class _ScaffoldedCreator(SessionCreator):
    """The common base of the creators for a chief and for a worker."""

    def __init__(self, scaffold: Scaffold | None, master: str, config: Any) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master = master
        self._config = config
        self._session_manager: SessionManager | None = None

    def _manager(self) -> SessionManager:
        """The session manager, made when the scaffold is complete."""
        scaffold = self._scaffold.finalize()
        if self._session_manager is None:
            self._session_manager = SessionManager(
                local_init_op=scaffold.local_init_op,
                local_init_feed_dict=scaffold.local_init_feed_dict,
                ready_op=scaffold.ready_op,
                ready_for_local_init_op=scaffold.ready_for_local_init_op,
                graph=get_default_graph(),
            )
        return self._session_manager


class ChiefSessionCreator(_ScaffoldedCreator):
    """For the chief: restores the model from the last checkpoint, or initialises it.

    >>> creator = tf.train.ChiefSessionCreator(checkpoint_dir="/tmp/train")
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        super().__init__(scaffold, master, config)
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path
        self._began = False
        self._mark: TrainingMark | None = None
        self._memory: StepMemory | None = None  # only for a training on a cluster

    def create_session(self) -> Any:
        manager, scaffold = self._manager(), self._scaffold
        if self._mark is None:
            self._mark = TrainingMark(self._master, self._checkpoint_dir, get_default_graph(), self._config)
        if self._memory is None and self._master:
            self._memory = StepMemory(get_global_step(), self._checkpoint_dir)
        # At first the servers may hold another training, unless the mark is there. Later they hold this one.
        ours = self._began or self._mark.is_there()
        prepare = manager.rejoin_session if ours else manager.prepare_session
        session = prepare(
            self._master,
            saver=scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            config=self._config,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )
        self._began = True
        try:
            self._mark.put()
            if self._memory is not None:
                self._memory.compare(session)
        except BaseException:
            session.close()
            raise
        return session

    def _after_step(self, session: Any) -> None:
        """Called after each step."""
        if self._memory is not None:
            self._memory.note(session)

    def _end(self) -> None:
        """Called when the training has ended, with or without an error."""
        if self._mark is not None:
            self._mark.take_away()


class WorkerSessionCreator(_ScaffoldedCreator):
    """For a worker: waits until the chief has initialised the model.

    >>> creator = tf.train.WorkerSessionCreator(master=server.target)
    """

    def __init__(
        self, scaffold: Scaffold | None = None, master: str = "", config: Any = None, max_wait_secs: float = 30 * 60
    ) -> None:
        super().__init__(scaffold, master, config)
        self._max_wait_secs = max_wait_secs

    def create_session(self) -> Any:
        return self._manager().wait_for_session(self._master, config=self._config, max_wait_secs=self._max_wait_secs)
