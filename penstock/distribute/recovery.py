"""Recovery: the variables of parameter servers, kept in checkpoints by the coordinator, and found again.

With a directory, each variable of the strategy has a name that stays the same when the program is started again. A
coordinator that is restarted takes the values that the parameter servers still have, else those of the last checkpoint.
If a parameter server is restarted, the coordinator restores all variables from the last checkpoint, and has the
closures run again that have run since.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock import logging
from penstock.checkpoint.bundle import BundleReader, BundleWriter, exists
from penstock.eager.runtime import runtime
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.scopes import init_scope
from penstock.ops.state import variable_ops

EVERY_SECS = 60.0


class PSRecovery:
    """Settings: the directory in which the coordinator keeps the state of the parameter servers, and how often.

    >>> recovery = tf.distribute.experimental.PSRecovery("/shared/job", every_secs=30)
    >>> strategy = tf.distribute.ParameterServerStrategy(resolver, ps_recovery=recovery)
    """

    def __init__(self, directory: str | os.PathLike[str], every_secs: float = EVERY_SECS) -> None:
        if every_secs <= 0:
            raise ValueError(f"every_secs must be positive, received {every_secs}.")
        self.directory = os.path.abspath(os.fspath(directory))
        self.every_secs = every_secs


class KeptState:
    """The variables of a strategy, with the last checkpoint of them."""

    def __init__(self, settings: PSRecovery) -> None:
        self._settings = settings
        os.makedirs(settings.directory, exist_ok=True)
        self._prefix = os.path.join(settings.directory, "state")
        self._variables: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._saved_at: float | None = None
        # The directory names the job: another job on the same servers has other variables.
        self.container = f"job {hashlib.sha256(settings.directory.encode()).hexdigest()[:16]}"

    # Variables

    def create(self, make: Callable[..., Any], device: str, **kwargs: Any) -> Any:
        """Makes a variable that keeps the value that it had before, if there is one."""
        given = kwargs.get("name") or "Variable"
        with self._lock:
            self._counts[given] = self._counts.get(given, 0) + 1
            name = f"{given}#{self._counts[given]}"
        with init_scope():
            initial = kwargs.pop("initial_value")
            value = convert_to_tensor(initial() if callable(initial) else initial, dtype=kwargs.get("dtype"))
            before = self._value_before(name, device, value)
            graph = get_default_graph()
            with graph.container(self.container), graph.attr_scope({"_resource_name": name}):
                variable = make(initial_value=value if before is None else before, **kwargs)
        self._variables[name] = variable
        self._saved_at = None  # the last checkpoint does not have it
        return variable

    def _value_before(self, name: str, device: str, like: Any) -> np.ndarray | None:
        found = self._live_value(name, device, like)
        if found is None and exists(self._prefix):
            reader = BundleReader(self._prefix)
            found = reader.read(name) if name in reader.names() else None
        if found is not None and tuple(found.shape) != tuple(like.shape.as_list()):
            raise ValueError(
                f"The variable '{name}' has shape {found.shape} in the job of '{self._settings.directory}', and "
                f"{like.shape} here: this is another model. Use another directory, or remove it."
            )
        return found

    def _live_value(self, name: str, device: str, like: Any) -> np.ndarray | None:
        """The value that a parameter server has for the variable, or None."""
        graph = Graph()
        with graph.as_default(), graph.device(device):
            handle = variable_ops.var_handle(
                shape=like.shape, dtype=like.dtype.base_dtype, shared_name=name, container=self.container
            )
            has_value = variable_ops.var_is_initialized(handle)
            value = variable_ops.read_variable(handle, dtype=like.dtype.base_dtype)
        master = runtime.master
        if not bool(master.run(master.signature((), (has_value,), (), 0), ())[0][0]):
            return None
        return np.asarray(master.run(master.signature((), (value,), (), 0), ())[0][0])

    # Checkpoints

    @property
    def is_due(self) -> bool:
        """Tells if it is time for a checkpoint."""
        return self._saved_at is None or time.monotonic() - self._saved_at > self._settings.every_secs

    def save(self) -> None:
        """Writes all variables. Nothing may change them meanwhile."""
        variables = dict(self._variables)
        with BundleWriter(self._prefix) as writer:
            for name, variable in variables.items():
                writer.add(name, np.asarray(variable.numpy()))
        if len(variables) == len(self._variables):
            self._saved_at = time.monotonic()

    def restore(self) -> None:
        """Sets all variables to the values of the last checkpoint."""
        reader = BundleReader(self._prefix)
        known = set(reader.names())
        for name, variable in list(self._variables.items()):
            if name not in known:
                raise KeyError(f"The variable '{name}' was made after the last checkpoint, {self._prefix}.")
            variable.assign(reader.read(name))
        logging.warning("The variables of the parameter servers were restored from %s.", self._prefix)
