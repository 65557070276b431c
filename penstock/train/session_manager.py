"""SessionManager: makes sessions whose model is ready. It restores or initialises the model, or waits for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import logging
from penstock.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.typing import FeedDict
from penstock.session import Session
from penstock.train.checkpoint_state import checkpoint_exists, get_checkpoint_state, latest_checkpoint

_FIRST_PAUSE = 0.1  # seconds between checks of a model that is not ready; they grow up to `recovery_wait_secs`
_LOG_EVERY = 10.0


class SessionManager:
    """Restores a model from a checkpoint, runs its init op, or waits until another process has done so.

    >>> manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables())
    >>> sess = manager.prepare_session("", init_op=init, saver=saver, checkpoint_dir="/tmp/train")
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: Any = None,
        local_init_feed_dict: FeedDict | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise ValueError("If you pass a ready_for_local_init_op you must also pass a local_init_op.")
        self._graph = graph or get_default_graph()
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._recovery_wait_secs = recovery_wait_secs
        self._local_init_run_options = local_init_run_options
        self._local_init_feed_dict = local_init_feed_dict
        self._target = ""

    def prepare_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
        init_feed_dict: FeedDict | None = None,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> Session:
        """The session of a chief: restored from the last checkpoint, or initialised."""
        session, restored = self._restored(
            master, saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs, config
        )
        try:
            if not restored:
                if init_op is None and init_fn is None and self._local_init_op is None:
                    raise RuntimeError("Model is not initialized and no init_op or init_fn or local_init_op was given")
                if init_op is not None:
                    session.run(init_op, feed_dict=init_feed_dict)
                if init_fn is not None:
                    init_fn(session)
            local_ready, why = self._run_local_init(session)
            if not local_ready:
                raise RuntimeError(
                    f"Init operations did not make model ready for local_init. Init op: {_name(init_op)}, init fn: "
                    f"{init_fn}, error: {why}"
                )
            ready, why = _ready(self._ready_op, session, "Model not ready")
            if not ready:
                raise RuntimeError(
                    f"Init operations did not make model ready. Init op: {_name(init_op)}, init fn: {init_fn}, "
                    f"local_init_op: {_name(self._local_init_op)}, error: {why}"
                )
        except BaseException:
            session.close()
            raise
        return session

    def rejoin_session(
        self,
        master: str,
        init_op: Any = None,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        config: Any = None,
        init_feed_dict: FeedDict | None = None,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> Session:
        """The session of a chief that has lost its cluster. Keeps the model if it is still there.

        Otherwise it is the same as `prepare_session`.
        """
        held = self._ready_for_local_init_op if self._ready_for_local_init_op is not None else self._ready_op
        if held is not None:
            session = Session(master, graph=self._graph, config=config)
            try:
                if _ready(held, session, "")[0] and self._run_local_init(session)[0]:
                    ready, why = _ready(self._ready_op, session, "Model not ready")
                    if ready:
                        logging.info("The model is still there, and is kept.")
                        return session
                    logging.info("The model is not there any more: %s", why)
            except BaseException:
                session.close()
                raise
            session.close()
        return self.prepare_session(
            master,
            init_op=init_op,
            saver=saver,
            checkpoint_dir=checkpoint_dir,
            checkpoint_filename_with_path=checkpoint_filename_with_path,
            config=config,
            init_feed_dict=init_feed_dict,
            init_fn=init_fn,
        )

    def recover_session(
        self,
        master: str,
        saver: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: Any = None,
    ) -> tuple[Session, bool]:
        """A session, and True if it was restored from a checkpoint that made the model ready."""
        session, restored = self._restored(
            master, saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs, config
        )
        local_ready, why = self._run_local_init(session)
        ready, not_ready = _ready(self._ready_op, session, "Model not ready")
        if not restored:
            return session, False
        if not local_ready or not ready:
            logging.info("Restoring model from checkpoint did not make it ready: %s", why or not_ready)
            return session, False
        logging.info("Restored model from %s", checkpoint_dir or checkpoint_filename_with_path)
        return session, True

    def wait_for_session(self, master: str, config: Any = None, max_wait_secs: float = float("Inf")) -> Session:
        """The session of a worker: made once the chief has initialised the model.

        Logs what it waits for. Raises DeadlineExceededError after `max_wait_secs`.
        """
        self._target = master
        limit = float("inf") if max_wait_secs is None else max_wait_secs
        began = logged = time.monotonic()
        pause = min(_FIRST_PAUSE, self._recovery_wait_secs)
        session = Session(master, graph=self._graph, config=config)
        try:
            while True:
                ready, why = self._run_local_init(session)
                if ready:
                    ready, why = _ready(self._ready_op, session, "Model not ready")
                    if ready:
                        return session
                now = time.monotonic()
                if now + pause > began + limit:
                    raise DeadlineExceededError(
                        f"Session was not ready after waiting {limit} secs. {why or ''}".rstrip()
                    )
                if now - logged >= _LOG_EVERY or logged == began:
                    # A short wait is part of every start; a long one deserves a warning.
                    log = logging.info if logged == began else logging.warning
                    logged = now
                    log(
                        "Waiting until the chief has initialised the model (for %.0f s; gives up after %.0f s): %s",
                        now - began,
                        limit,
                        why,
                    )
                time.sleep(pause)
                pause = min(pause * 1.5, self._recovery_wait_secs)
        except BaseException:
            session.close()
            raise

    def _restored(
        self,
        master: str,
        saver: Any,
        checkpoint_dir: str | None,
        path: str | None,
        wait: bool,
        max_wait_secs: float,
        config: Any,
    ) -> tuple[Session, bool]:
        self._target = master
        session = Session(master, graph=self._graph, config=config)
        if checkpoint_dir and path:
            session.close()
            raise ValueError("Can not provide both checkpoint_dir and checkpoint_filename_with_path.")
        if not saver or not (checkpoint_dir or path):
            return session, False
        try:
            if path:
                saver.restore(session, path)
                return session, True
            found = self._wait_for_checkpoint(checkpoint_dir, max_wait_secs if wait else 0.0)
            if found is None:
                return session, False
            saver.restore(session, found)
            state = get_checkpoint_state(checkpoint_dir)
            saver.recover_last_checkpoints(list(state.all_model_checkpoint_paths) if state is not None else [found])
        except BaseException:
            session.close()
            raise
        return session, True

    def _wait_for_checkpoint(self, checkpoint_dir: Any, limit: float) -> str | None:
        deadline = time.monotonic() + limit
        while True:
            state = get_checkpoint_state(checkpoint_dir)
            if state is not None and checkpoint_exists(state.model_checkpoint_path):
                return str(state.model_checkpoint_path)
            if state is not None and latest_checkpoint(checkpoint_dir) is None and limit == 0.0:
                raise NotFoundError(
                    f"'{checkpoint_dir}/checkpoint' names '{state.model_checkpoint_path}', which is not there. Remove "
                    "the file to begin anew."
                )
            if time.monotonic() >= deadline:
                return None
            logging.info("Waiting for a checkpoint in %s", checkpoint_dir)
            time.sleep(min(self._recovery_wait_secs, max(0.0, deadline - time.monotonic())))

    def _run_local_init(self, session: Session) -> tuple[bool, str | None]:
        """Initialises local variables and tables if the global variables are initialised."""
        if self._local_init_op is None:
            return True, None
        ready, why = _ready(self._ready_for_local_init_op, session, "Model not ready for local init")
        if ready:
            logging.info("Running local_init_op.")
            session.run(self._local_init_op, feed_dict=self._local_init_feed_dict, options=self._local_init_run_options)
            logging.info("Done running local_init_op.")
        return ready, why


def _name(operation: Any) -> str:
    names = [getattr(o, "name", str(o)) for o in (operation if isinstance(operation, (list, tuple)) else [operation])]
    return ", ".join(names)


def _ready(op: Any, session: Session, message: str) -> tuple[bool, str | None]:
    """Runs an op that reports what is not initialised. Returns True and None, or False and a message."""
    if op is None:
        return True, None
    try:
        value = session.run(op)
    except FailedPreconditionError as error:
        if "uninitialized" not in str(error):
            raise
        return False, f"{message}: {error}"
    value = np.asarray(value)
    if value.dtype == bool:
        return (True, None) if value.all() else (False, message)
    if value.size == 0:
        return True, None
    names = ", ".join(n.decode() if isinstance(n, bytes) else str(n) for n in value.reshape(-1))
    return False, f"Variables not initialized: {names}"
