"""The file `checkpoint`, which lists the checkpoints of a directory and names the last one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import text_format

from penstock import logging
from penstock.checkpoint import bundle, files
from penstock.checkpoint.messages import CheckpointState
from penstock.errors import NotFoundError, OpError


def _path(directory: Any, latest_filename: str | None) -> str:
    return os.path.join(os.fspath(directory), latest_filename or "checkpoint")


def generate_checkpoint_state_proto(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> Any:
    """The contents of the file. If `save_dir` is relative, the paths are relative to it."""
    paths = list(all_model_checkpoint_paths or ())
    times = list(all_model_checkpoint_timestamps or ())
    if times and len(times) != len(paths):
        raise ValueError(f"There are {len(paths)} checkpoint paths and {len(times)} timestamps.")
    if model_checkpoint_path not in paths:
        paths.append(model_checkpoint_path)
        times = [*times, time.time()] if times else times
    if not os.path.isabs(save_dir):
        model_checkpoint_path, *paths = (
            path if os.path.isabs(path) else os.path.relpath(path, save_dir) for path in (model_checkpoint_path, *paths)
        )
    return CheckpointState(
        model_checkpoint_path=model_checkpoint_path,
        all_model_checkpoint_paths=paths,
        all_model_checkpoint_timestamps=times,
        last_preserved_timestamp=last_preserved_timestamp,
    )


def update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
    save_relative_paths: bool = False,
) -> None:
    """Replaces the file: writes a temporary file and renames it."""
    target = _path(save_dir, latest_filename)
    if save_relative_paths:
        model_checkpoint_path, *all_paths = (
            os.path.relpath(path, save_dir) if os.path.isabs(path) == os.path.isabs(save_dir) else path
            for path in (model_checkpoint_path, *(all_model_checkpoint_paths or ()))
        )
        state = generate_checkpoint_state_proto(
            os.path.abspath(save_dir),
            model_checkpoint_path,
            all_paths,
            all_model_checkpoint_timestamps,
            last_preserved_timestamp,
        )
    else:
        state = generate_checkpoint_state_proto(
            save_dir,
            model_checkpoint_path,
            all_model_checkpoint_paths,
            all_model_checkpoint_timestamps,
            last_preserved_timestamp,
        )
    if target == state.model_checkpoint_path:
        raise RuntimeError(f"The checkpoint '{target}' has the name of the file that lists checkpoints.")
    files.write_whole(target, text_format.MessageToString(state).encode())


def get_checkpoint_state(checkpoint_dir: Any, latest_filename: str | None = None) -> Any:
    """The contents of the file, with paths that can be opened from here; None if there is no such file.

    >>> state = tf.train.get_checkpoint_state("/tmp/train")
    >>> saver.restore(sess, state.model_checkpoint_path)
    """
    path = _path(checkpoint_dir, latest_filename)
    try:
        state = text_format.Parse(files.read(path).decode(), CheckpointState())
    except NotFoundError:
        return None
    except (OpError, text_format.ParseError, UnicodeDecodeError) as error:
        logging.warning("%s: %s", path, error)
        return None
    if not state.model_checkpoint_path:
        raise ValueError(f"Invalid checkpoint state in '{path}': it names no checkpoint.")
    directory = os.fspath(checkpoint_dir)
    state.model_checkpoint_path = os.path.join(directory, state.model_checkpoint_path)
    for i, each in enumerate(state.all_model_checkpoint_paths):
        state.all_model_checkpoint_paths[i] = os.path.join(directory, each)
    return state


def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    """The prefix of the last checkpoint in a directory, or None.

    >>> tf.train.latest_checkpoint("/tmp/train")
    '/tmp/train/model.ckpt-1000'
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    if checkpoint_exists(state.model_checkpoint_path):
        return str(state.model_checkpoint_path)
    logging.error("Couldn't match files for checkpoint %s", state.model_checkpoint_path)
    return None


def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """True if there is a checkpoint with that prefix."""
    return bundle.exists(os.fspath(checkpoint_prefix))


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[str]) -> list[float]:
    """When each of the checkpoints was written, in seconds; those that are gone are left out."""
    indexes = map(bundle.index_path, checkpoint_prefixes)
    return [os.stat(index).st_mtime for index in indexes if os.path.exists(index)]


def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: Any = None, meta_graph_suffix: str = "meta"
) -> None:
    """Removes the files of a checkpoint, the index first."""
    files.remove(bundle.index_path(checkpoint_prefix))
    for path in bundle.data_paths(checkpoint_prefix):
        files.remove(path)
    files.remove(f"{checkpoint_prefix}.{meta_graph_suffix}")
