"""basic_train_loop: calls a function in a Supervisor's session until the training is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import logging
from penstock.errors import AbortedError, UnavailableError
from penstock.train.supervisor import Supervisor


def basic_train_loop(
    supervisor: Supervisor,
    train_step_fn: Callable[..., Any],
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    master: str = "",
) -> None:
    """Calls `train_step_fn(session, *args, **kwargs)` until the supervisor stops; a lost task leads to a new session.

    >>> tf.train.basic_train_loop(tf.train.Supervisor(logdir="/tmp/train"), lambda sess: sess.run(train_op))
    """
    while True:
        try:
            with supervisor.managed_session(master) as session:
                while not supervisor.should_stop():
                    train_step_fn(session, *(args or ()), **(kwargs or {}))
            return
        except (AbortedError, UnavailableError) as error:
            logging.info("A task was lost. The training goes on in a new session. Error: %s", error)
