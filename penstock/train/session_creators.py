"""Session creators: they make the session inside a MonitoredSession, each time that it needs one."""

from __future__ import annotations

from typing import Any

from penstock.graph.graph import get_default_graph
from penstock.train.chief_sessions import ChiefSessions
from penstock.train.scaffold import Scaffold
from penstock.train.session_manager import SessionManager
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
        self._sessions: ChiefSessions | None = None

    def create_session(self) -> Any:
        manager, scaffold = self._manager(), self._scaffold
        if self._sessions is None:
            self._sessions = ChiefSessions(
                manager, get_default_graph(), self._master, self._config, self._checkpoint_dir, get_global_step()
            )
        return self._sessions.make(
            self._master,
            again=self._sessions.began,
            config=self._config,
            saver=scaffold.saver,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
        )

    def _after_step(self, session: Any) -> None:
        """Called after each step."""
        if self._sessions is not None:
            self._sessions.after_step(session)

    def _end(self) -> None:
        """Called when the training has ended, with or without an error."""
        if self._sessions is not None:
            self._sessions.end()


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
