"""tf.train.Checkpoint: saves and restores the variables of objects, which are known by the paths to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from penstock.checkpoint.bundle import BundleReader
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import int64
from penstock.graph.graph import get_default_graph
from penstock.graph.scopes import control_dependencies, init_scope
from penstock.ops.array.passthrough import identity
from penstock.trackable.base import is_trackable
from penstock.trackable.containers import AutoTrackable, wrap
from penstock.train import checkpoint_writing as writing
from penstock.train.checkpoint_state import update_checkpoint_state
from penstock.train.checkpoint_writing import AsyncWriter, CheckpointOptions
from penstock.train.load_status import CheckpointLoadStatus, InitializationOnlyStatus, LoadStatus, NameBasedSaverStatus
from penstock.train.object_graph import VARIABLE_VALUE, ObjectGraph, full_name_of, has_values
from penstock.train.restoration import Restoration, read_object_graph, restore_value
from penstock.variables.variable import Variable


class Checkpoint(AutoTrackable):
    """Saves and restores objects: variables, modules, optimizers, lists and dicts of them, and what they hold.

    >>> checkpoint = tf.train.Checkpoint(model=model, step=step)
    >>> path = checkpoint.save("/tmp/train/ckpt")
    >>> checkpoint.restore(path).assert_consumed()
    """

    def __init__(self, root: Any = None, **kwargs: Any) -> None:
        if root is not None and not is_trackable(wrap(root)):
            raise ValueError(
                f"`Checkpoint` was expecting `root` to be a trackable object (an object derived from `Trackable`), "
                f"received {root!r}."
            )
        self._root = wrap(root)
        self._writer = AsyncWriter()
        for name, value in kwargs.items():
            value = wrap(value() if _is_plain_callable(value) else value)
            if not is_trackable(value):
                raise ValueError(
                    f"`Checkpoint` was expecting {name} to be a trackable object (an object derived from "
                    f"`Trackable`), received {value!r}. If this object should be saved, derive its class from "
                    "tf.Module or tf.train.experimental.PythonState."
                )
            if self._root is not None and getattr(self._root, name, value) is not value:
                raise ValueError(
                    f"Cannot create a Checkpoint with keyword argument {name} if root.{name} already exists."
                )
            setattr(self, name, value)
        if root is not None:
            self.root = self._root

    def _trackable_children(self) -> dict[str, Any]:
        found = super()._trackable_children()
        return {"save_counter" if name == "_save_counter" else name: value for name, value in found.items()}

    def _attached_children(self) -> dict[str, Any]:
        """The children that this checkpoint adds to those of its root."""
        return {name: value for name, value in self._trackable_children().items() if name != "_root"}

    def _object_graph(self) -> ObjectGraph:
        return ObjectGraph(self) if self._root is None else ObjectGraph(self._root, self._attached_children())

    @property
    def save_counter(self) -> Any:
        """The number of saves; a part of each checkpoint that `save` writes."""
        if "_save_counter" not in vars(self):
            with init_scope():
                counter = Variable(0, dtype=int64, trainable=False, name="save_counter")
            object.__setattr__(self, "_save_counter", counter)
            self._attached("save_counter", counter)
        return vars(self)["_save_counter"]

    # Writing

    def write(self, file_prefix: Any, options: CheckpointOptions | None = None) -> Any:
        """Writes a checkpoint under exactly this name, and returns the name.

        >>> checkpoint.write("/tmp/model")
        '/tmp/model'
        """
        return self._write(file_prefix, options or CheckpointOptions(), lambda: None)

    def save(self, file_prefix: Any, options: CheckpointOptions | None = None) -> Any:
        """Writes a checkpoint with a number after its name, and names it in the file `checkpoint` beside it.

        >>> checkpoint.save("/tmp/train/ckpt")
        '/tmp/train/ckpt-1'
        """
        if not get_default_graph().is_eager:
            raise RuntimeError("Checkpoint.save counts in Python: call it outside of tf.function, or call write there.")
        prefix = _text(file_prefix)
        path = f"{prefix}-{int(self.save_counter.assign_add(1).numpy())}"

        def name_it() -> None:
            update_checkpoint_state(os.path.dirname(prefix), path, [path], save_relative_paths=True)

        return self._write(path, options or CheckpointOptions(), name_it)

    def _write(self, prefix: Any, options: CheckpointOptions, after: Callable[[], None]) -> Any:
        self._writer.sync()
        entries = writing.entries_of(self._object_graph())
        if not get_default_graph().is_eager:
            target = convert_to_tensor(prefix)
            with control_dependencies([writing.write_in_function(target, entries)]):
                return identity(target)
        path = _text(prefix)

        def job() -> None:
            writing.write(path, taken)
            after()
            for callback in options.experimental_write_callbacks or ():
                callback(path)

        taken = writing.snapshot(entries) if options.is_async else entries
        if options.is_async:
            self._writer.start(job)
        else:
            job()
        return path

    def sync(self) -> None:
        """Waits until a checkpoint that a thread writes is on disk, and raises its error if it could not be written."""
        self._writer.sync()

    # Reading

    def read(self, save_path: Any, options: CheckpointOptions | None = None) -> LoadStatus:
        """Restores what a checkpoint has of these objects; objects that are made later get their values then.

        >>> checkpoint.read("/tmp/model").assert_existing_objects_matched()
        """
        self._writer.sync()
        path = _text(save_path)
        if os.path.isdir(path) and os.path.exists(os.path.join(path, "saved_model.pb")):
            path = os.path.join(path, "variables", "variables")
        reader = BundleReader(path)
        graph = read_object_graph(reader)
        if graph is None:
            return self._read_by_name(reader)
        restoration = Restoration(reader, graph)
        if self._root is None:
            restoration.bind(0, self)
        else:
            restoration.bind(0, self._root)
            place = restoration.place(0)
            self._restored_from(place)
            for name, child in self._attached_children().items():
                place.attach(name, child)
        return CheckpointLoadStatus(restoration, self)

    def restore(self, save_path: Any, options: CheckpointOptions | None = None) -> LoadStatus:
        """Restores a checkpoint that `save` has written; with None it does nothing.

        >>> checkpoint.restore(tf.train.latest_checkpoint("/tmp/train"))
        """
        if save_path is None:
            return InitializationOnlyStatus()
        status = self.read(save_path, options)
        assert self.save_counter is not None  # it is made now, so that it is restored
        return status

    def _read_by_name(self, reader: BundleReader) -> LoadStatus:
        missing, used = [], set()
        with init_scope():
            for node in self._object_graph().nodes:
                if has_values(node.value):
                    name = full_name_of(node.value)
                    if reader.has(name):
                        restore_value(reader, {VARIABLE_VALUE: name}, node.value)
                        used.add(name)
                    else:
                        missing.append(node.value)
        return NameBasedSaverStatus(missing, [name for name in reader.names() if name not in used])


def _is_plain_callable(value: Any) -> bool:
    """Tells if a value is a function that makes the object, and not an object that can be called."""
    return callable(value) and not is_trackable(value)


def _text(path: Any) -> str:
    if hasattr(path, "numpy"):
        path = path.numpy()
    path = os.fspath(path)
    return path.decode() if isinstance(path, bytes) else str(path)
