"""Saver: adds the ops that save and restore variables to a graph, and keeps the checkpoints in a directory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from tensorboard.compat.proto import meta_graph_pb2, saver_pb2

from penstock import logging
from penstock.checkpoint import files
from penstock.checkpoint.saveable_object import SaveableObject
from penstock.errors import InvalidArgumentError, NotFoundError, OpError
from penstock.graph import dtype as dt
from penstock.graph.collections import register_proto_function
from penstock.graph.device import DeviceSpec
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, device, name_scope
from penstock.ops.array.creation import constant, placeholder_with_default
from penstock.ops.array.joining import pack
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import shape
from penstock.ops.control.grouping import group
from penstock.ops.io import save_restore
from penstock.ops.string.join import string_join
from penstock.train.checkpoint_state import (
    checkpoint_exists,
    get_checkpoint_mtimes,
    remove_checkpoint,
    update_checkpoint_state,
)
from penstock.train.meta_graph import export_meta_graph, import_scoped_meta_graph, read_meta_graph_file
from penstock.train.saveables import saveables_of


class Saver:
    """Saves and restores variables.

    `var_list` is a list of variables, or a dict from the names in the files to variables; None for all that can be
    saved. The last `max_to_keep` checkpoints are kept, and one for every `keep_checkpoint_every_n_hours`. `sharded` has
    each device write a file of its own.

    >>> saver = tf.train.Saver()
    >>> path = saver.save(sess, "/tmp/train/model.ckpt", global_step=1000)
    >>> saver.restore(sess, path)
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = saver_pb2.SaverDef.V2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if defer_build and var_list:
            raise ValueError("If `var_list` is provided then build cannot be deferred. Set defer_build=False.")
        if saver_def is not None and not isinstance(saver_def, saver_pb2.SaverDef):
            raise ValueError(f"saver_def must be a SaverDef, received {saver_def!r}.")
        self._var_list = var_list
        self._reshape = reshape
        self._sharded = sharded
        self._max_to_keep = max_to_keep
        self._keep_every_n_hours = keep_checkpoint_every_n_hours
        self._name = name
        self._restore_sequentially = restore_sequentially
        self._allow_empty = allow_empty
        self._pad_step_number = pad_step_number
        self._save_relative_paths = save_relative_paths
        self._filename = filename
        self._is_empty = False
        self._saving = threading.Lock()
        self.saver_def: Any = saver_def
        self._last_checkpoints: list[tuple[str, float]] = []
        self._checkpoints_to_delete: list[tuple[str, float]] = []
        self._next_to_keep = 0.0
        if saver_def is None and not defer_build:
            self.build()
        elif saver_def is not None:
            self._take_settings()

    # The graph

    def build(self) -> None:
        """Adds the ops, if the constructor was told to defer that."""
        if self.saver_def is not None:
            return
        var_list = self._var_list if self._var_list is not None else _all_saveable_objects()
        if not var_list:
            if not self._allow_empty:
                raise ValueError("No variables to save")
            self._is_empty = True
            return
        saveables = saveables_of(var_list)
        with name_scope(self._name, "save"):
            with name_scope("filename") as scope:
                given = placeholder_with_default(
                    constant(self._filename or "model", dt.string, name="input"), shape=[], name=scope
                )
            path = placeholder_with_default(given, shape=[], name="Const")
            saved = self._add_sharded_save(path, saveables) if self._sharded else _add_save(path, saveables)
            restored = self._add_restore(path, saveables)
        self.saver_def = saver_pb2.SaverDef(
            filename_tensor_name=path.name,
            save_tensor_name=saved.name,
            restore_op_name=restored.name,
            max_to_keep=self._max_to_keep or 0,
            sharded=self._sharded,
            keep_checkpoint_every_n_hours=self._keep_every_n_hours,
            version=saver_pb2.SaverDef.V2,
        )
        self._take_settings()

    def _take_settings(self) -> None:
        self._sharded = self.saver_def.sharded
        self._max_to_keep = self.saver_def.max_to_keep
        self._keep_every_n_hours = self.saver_def.keep_checkpoint_every_n_hours
        self._next_to_keep = time.time() + self._keep_every_n_hours * 3600

    def _add_sharded_save(self, path: Tensor, saveables: list[SaveableObject]) -> Tensor:
        """Each device writes a temporary file; the last device merges them into one checkpoint."""
        with device("CPU"):
            # A separate directory, so that the files of a failed save are easy to find.
            base = string_join([path, constant("_temp/part")])
        per_device = _by_device(saveables)
        count = constant(len(per_device), name="num_shards")
        shards, written = [], []
        last = ""
        for i, (where, members) in enumerate(per_device):
            last = _cpu_of(where)
            with device(last):
                shards.append(save_restore.sharded_filename(base, i, count))
                written.append(_add_save(shards[-1], members))
        with control_dependencies([w.op for w in written]), device(last):
            prefixes = pack(shards, name="MergeV2Checkpoints/checkpoint_prefixes")
            merged = save_restore.merge_v2_checkpoints(prefixes, path, name="MergeV2Checkpoints")
            with control_dependencies([*(w.op for w in written), merged]):
                return identity(path)

    def _add_restore(self, path: Tensor, saveables: list[SaveableObject]) -> Operation:
        if not self._sharded:
            return group(*self._assignments(path, saveables, "CPU:0"), name="restore_all")
        shards = []
        for where, members in _by_device(saveables):
            with device(where):
                shards.append(group(*self._assignments(path, members, _cpu_of(where)), name="restore_shard"))
        return group(*shards, name="restore_all")

    def _assignments(self, path: Tensor, saveables: list[SaveableObject], where: str) -> list[Operation]:
        specs = [spec for saveable in saveables for spec in saveable.specs]
        with device(where):
            tensors = save_restore.restore_v2(
                path,
                [s.name for s in specs],
                [s.slice_spec for s in specs],
                dtypes=[s.dtype or s.tensor.dtype.base_dtype for s in specs],
            )
        remaining = iter(tensors if isinstance(tensors, (list, tuple)) else [tensors])
        assigned: list[Operation] = []
        for saveable in saveables:
            shapes = None
            if self._reshape:
                known = saveable.op.get_shape()
                shapes = [known.as_list() if known.is_fully_defined() else shape(saveable.op)]
            after = assigned[-1:] if self._restore_sequentially else []
            with control_dependencies(after):
                assigned.append(saveable.restore([next(remaining) for _ in saveable.specs], shapes))
        return assigned

    # Saving

    def save(
        self,
        sess: Any,
        save_path: Any,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Saves the variables and returns the prefix of the checkpoint, `save_path-global_step`.

        A failure at any point does not harm existing checkpoints: files are written under temporary names and renamed
        when they are on disk, and the list of checkpoints is changed last. Threads that save take turns, so a save that
        began earlier never becomes the latest checkpoint after one that began later.
        """
        if os.path.split(latest_filename or "checkpoint")[0]:
            raise ValueError(f"'latest_filename' must not contain path components: {latest_filename}")
        save_path = os.fspath(save_path)
        if isinstance(save_path, bytes):
            save_path = save_path.decode()
        directory, base = os.path.split(save_path)
        if not base:
            raise ValueError(f"save_path must name a file, received '{save_path}'.")
        if base == (latest_filename or "checkpoint"):
            raise ValueError(f"'save_path' must not be the name of the file that lists checkpoints: '{save_path}'.")
        with self._saving:
            prefix = self._prefix(sess, save_path, global_step)
            if self._is_empty:
                return None
            if self.saver_def is None:
                raise RuntimeError("Call Saver.build() before save(): the constructor was told to defer it.")
            if directory and not os.path.isdir(directory):
                with files.named(directory):
                    os.makedirs(directory, exist_ok=True)
            written = sess.run(self.saver_def.save_tensor_name, {self.saver_def.filename_tensor_name: prefix})
            prefix = written.decode() if isinstance(written, bytes) else str(written)
            if write_meta_graph:
                self.export_meta_graph(
                    f"{prefix}.{meta_graph_suffix}", graph=sess.graph, strip_default_attrs=strip_default_attrs
                )
            if write_state:
                self._record(prefix)
                update_checkpoint_state(
                    directory,
                    prefix,
                    self.last_checkpoints,
                    latest_filename,
                    [stamp for _, stamp in self._last_checkpoints],
                    save_relative_paths=self._save_relative_paths,
                )
                self._delete_old(meta_graph_suffix)
            return prefix

    def _prefix(self, sess: Any, save_path: str, global_step: Any) -> str:
        if global_step is None:
            return save_path
        if not isinstance(global_step, (int, np.integer)):
            global_step = sess.run(global_step) if not isinstance(global_step, np.ndarray) else global_step
        step = int(global_step)
        return f"{save_path}-{step:08d}" if self._pad_step_number else f"{save_path}-{step}"

    def _record(self, prefix: str) -> None:
        if not self._max_to_keep:
            return
        self._last_checkpoints = [(p, t) for p, t in self._last_checkpoints if p != prefix]
        self._last_checkpoints.append((prefix, time.time()))
        if len(self._last_checkpoints) > self._max_to_keep:
            self._checkpoints_to_delete.append(self._last_checkpoints.pop(0))

    def _delete_old(self, meta_graph_suffix: str) -> None:
        while self._checkpoints_to_delete:
            prefix, stamp = self._checkpoints_to_delete.pop(0)
            if stamp > self._next_to_keep:
                self._next_to_keep += self._keep_every_n_hours * 3600
                continue
            try:
                remove_checkpoint(prefix, meta_graph_suffix=meta_graph_suffix)
            except OpError as error:
                logging.warning("Ignoring: %s", error)

    # Restoring

    def restore(self, sess: Any, save_path: str | None) -> None:
        """Sets the variables from a checkpoint; they need not be initialised."""
        if self._is_empty:
            return
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        save_path = os.fspath(save_path)
        if not checkpoint_exists(save_path):
            raise ValueError(f"The passed save_path is not a valid checkpoint: {save_path}")
        logging.info("Restoring parameters from %s", save_path)
        with _explained(save_path):
            sess.run(self.saver_def.restore_op_name, {self.saver_def.filename_tensor_name: save_path})

    # Checkpoints that are kept

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that are not deleted yet, oldest first, as `set_last_checkpoints` takes them."""
        return [prefix for prefix, _ in self._last_checkpoints]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Makes this saver manage, and later delete, checkpoints that another saver made."""
        if not isinstance(last_checkpoints, list):
            raise TypeError(f"last_checkpoints must be a list, received {last_checkpoints!r}.")
        self._last_checkpoints = [(prefix, np.inf) for prefix in last_checkpoints]

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        """As `set_last_checkpoints`, with the times at which they were made."""
        self._last_checkpoints = list(last_checkpoints_with_time)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """As `set_last_checkpoints`, but leaves out checkpoints that do not exist any more."""
        there = [path for path in checkpoint_paths if checkpoint_exists(path)]
        self.set_last_checkpoints_with_time(list(zip(there, get_checkpoint_mtimes(there), strict=True)))

    # Descriptions

    def as_saver_def(self) -> Any:
        """The SaverDef: names of the ops, and the settings."""
        return self.saver_def

    def to_proto(self, export_scope: str | None = None) -> Any:
        """The SaverDef, with names relative to `export_scope`; None if the ops are outside it."""
        if export_scope is None:
            return self.saver_def
        names = {f: getattr(self.saver_def, f) for f in _NAMES}
        if not all(name.startswith(f"{export_scope}/") for name in names.values()):
            return None
        proto = saver_pb2.SaverDef()
        proto.CopyFrom(self.saver_def)
        for field, name in names.items():
            setattr(proto, field, name.removeprefix(f"{export_scope}/"))
        return proto

    @staticmethod
    def from_proto(saver_def: Any, import_scope: str | None = None) -> Saver:
        """A Saver that uses ops which are in the graph already."""
        proto = saver_pb2.SaverDef()
        proto.CopyFrom(saver_def)
        if import_scope:
            for field in _NAMES:
                setattr(proto, field, f"{import_scope}/{getattr(proto, field)}")
        return Saver(saver_def=proto)

    def export_meta_graph(
        self,
        filename: str | None = None,
        collection_list: Sequence[str] | None = None,
        as_text: bool = False,
        export_scope: str | None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
        graph: Graph | None = None,
    ) -> Any:
        """Writes the graph, its collections and this saver as a MetaGraphDef."""
        return export_meta_graph(
            filename=filename,
            graph=graph,
            saver_def=self.saver_def,
            collection_list=collection_list,
            as_text=as_text,
            export_scope=export_scope,
            clear_devices=clear_devices,
            clear_extraneous_savers=clear_extraneous_savers,
            strip_default_attrs=strip_default_attrs,
        )


_NAMES = ("filename_tensor_name", "save_tensor_name", "restore_op_name")

register_proto_function(GraphKeys.SAVERS, saver_pb2.SaverDef, Saver.to_proto, Saver.from_proto)


def _all_saveable_objects() -> list[Any]:
    graph = get_default_graph()
    return [*graph.get_collection(GraphKeys.GLOBAL_VARIABLES), *graph.get_collection(GraphKeys.SAVEABLE_OBJECTS)]


def _add_save(path: Tensor, saveables: list[SaveableObject]) -> Tensor:
    specs = [spec for saveable in saveables for spec in saveable.specs]
    saved = save_restore.save_v2(
        path, [s.name for s in specs], [s.slice_spec for s in specs], [s.tensor for s in specs]
    )
    with control_dependencies([saved]):
        return identity(path, name="control_dependency")


def _by_device(saveables: list[SaveableObject]) -> list[tuple[str, list[SaveableObject]]]:
    groups: dict[str, list[SaveableObject]] = {}
    for saveable in saveables:
        groups.setdefault(saveable.device, []).append(saveable)
    return sorted(groups.items())


def _cpu_of(where: str) -> str:
    """The first CPU of a device's task, which reads and writes files."""
    spec = DeviceSpec.from_string(where) if where else DeviceSpec()
    return DeviceSpec(job=spec.job, replica=spec.replica, task=spec.task, device_type="CPU", device_index=0).to_string()


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(
            error.node_def,
            error.op,
            f"Restoring from checkpoint '{path}' failed: the graph has a variable that the checkpoint lacks. Restore "
            "with a Saver of the variables that it has, or check their names with tf.train.list_variables. "
            f"{error.message}",
        ) from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            error.node_def,
            error.op,
            f"Restoring from checkpoint '{path}' failed: a variable of the graph has another shape or type there. See "
            f"tf.train.list_variables for what it holds. {error.message}",
        ) from error


def import_meta_graph(
    meta_graph_or_file: Any, clear_devices: bool = False, import_scope: str | None = None, **kwargs: Any
) -> Saver | None:
    """Adds a meta graph to the default graph. Returns its Saver, or None if it has no variables.

    >>> saver = tf.train.import_meta_graph("/tmp/train/model.ckpt-1000.meta")
    >>> saver.restore(sess, "/tmp/train/model.ckpt-1000")
    """
    if not isinstance(meta_graph_or_file, meta_graph_pb2.MetaGraphDef):
        meta_graph_or_file = read_meta_graph_file(meta_graph_or_file)
    variables, scope = import_scoped_meta_graph(
        meta_graph_or_file, clear_devices=clear_devices, import_scope=import_scope, **kwargs
    )
    if meta_graph_or_file.HasField("saver_def"):
        return Saver.from_proto(meta_graph_or_file.saver_def, scope)
    if variables:
        return Saver()
    logging.info("Saver not created because there are no variables in the graph to restore")
    return None
