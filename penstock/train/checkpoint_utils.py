"""Functions that read checkpoints, and that initialise variables from one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import types_pb2

from penstock import logging
from penstock.checkpoint.bundle import BundleReader
from penstock.graph.dtype import DType
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import device
from penstock.graph.typing import TensorLike
from penstock.ops.io import save_restore
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.train.saveables import VariableSaveable
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.store import variable_store
from penstock.variables.variable import Variable


class CheckpointReader:
    """Reads the tensors of a checkpoint.

    >>> reader = tf.train.NewCheckpointReader("/tmp/train/model.ckpt-1000")
    >>> reader.get_variable_to_shape_map()
    {'w': [784, 10]}
    >>> reader.get_tensor("w")
    """

    def __init__(self, filename: TensorLike) -> None:
        self._reader = BundleReader(_text(filename))

    def has_tensor(self, tensor_str: str) -> bool:
        """True if there is a tensor of that name."""
        return self._reader.has(_text(tensor_str))

    def get_tensor(self, tensor_str: str) -> Any:
        """A tensor as a NumPy array, put together if it was saved in parts; a scalar string as bytes."""
        value = self._reader.read(_text(tensor_str))
        return value.item() if value.dtype == object and value.ndim == 0 else value

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes of all tensors, by name."""
        return {name: list(self._reader.shape(name)) for name in self._reader.names()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The types of all tensors, by name."""
        return {name: self._reader.dtype(name) for name in self._reader.names()}

    def debug_string(self) -> bytes:
        """A line for each tensor, or part of one: name, type and shape."""
        lines = []
        for key, entry in sorted(self._reader.entries.items()):
            if not entry.slices:
                dims = ",".join(str(d.size) for d in entry.shape.dim)
                lines.append(key + f" ({types_pb2.DataType.Name(entry.dtype)}) [{dims}]\n".encode())
        return b"".join(lines)


def NewCheckpointReader(filepattern: Any) -> CheckpointReader:
    """A reader of the checkpoint with that prefix: `tf.train.NewCheckpointReader("/tmp/train/model.ckpt-1000")`."""
    return CheckpointReader(filepattern)


def load_checkpoint(ckpt_dir_or_file: Any) -> CheckpointReader:
    """A reader of a checkpoint, or of the last one in a directory: `tf.train.load_checkpoint("/tmp/train")`."""
    return CheckpointReader(_prefix(ckpt_dir_or_file))


def load_variable(ckpt_dir_or_file: Any, name: str) -> Any:
    """A tensor of a checkpoint: `tf.train.load_variable("/tmp/train", "w")`."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


def list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    """Names and shapes of the tensors in a checkpoint: `tf.train.list_variables("/tmp/train")`."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def init_from_checkpoint(ckpt_dir_or_file: Any, assignment_map: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> None:
    """Changes the initializers of variables, so that they read their values from a checkpoint when they run.

    Keys of `assignment_map` are names in the checkpoint; values are variables, lists of the parts of one, or names of
    variables. A key that ends with "/" is a scope, and so is its value: it stands for all
    variables that `get_variable` made in it.

    >>> tf.train.init_from_checkpoint("/tmp/pretrained", {"encoder/": "model/encoder/", "bias": b})
    """
    path = _prefix(ckpt_dir_or_file)
    stored = CheckpointReader(path).get_variable_to_shape_map()
    items = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    for key, target in sorted(items, key=lambda item: item[0]):
        for name, variable in _pairs(key, target):
            parts = list(variable) if isinstance(variable, (PartitionedVariable, list, tuple)) else [variable]
            _check(name, parts, stored, ckpt_dir_or_file)
            for part in parts:
                _initialize_from(part, path, name)
            logging.info(
                "Initialize variable %s from checkpoint %s with %s",
                ",".join(part.name for part in parts),
                ckpt_dir_or_file,
                name,
            )


def warm_start(
    ckpt_to_initialize_from: Any,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Mapping[str, Any] | None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Initialises variables from a checkpoint of another model, which may have other names for some of them.

    `vars_to_warm_start` is a regular expression for trainable variables, or a list of expressions for all variables,
    or a list of variables.

    >>> tf.train.warm_start("/tmp/pretrained", "encoder/.*", var_name_to_prev_var_name={"encoder/w": "w"})
    """
    if var_name_to_vocab_info:
        raise NotImplementedError(
            "warm_start: vocabularies that differ are not supported. Build the rows from tf.train.load_variable by "
            f"NumPy, and assign them; received {sorted(var_name_to_vocab_info)}."
        )
    graph, patterns = get_default_graph(), vars_to_warm_start
    if patterns is None or isinstance(patterns, str):
        found = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES, scope=patterns) if patterns else []
    elif all(isinstance(each, str) for each in patterns):
        found = [v for each in patterns for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES, scope=each)]
    else:
        found = list(patterns)
    renamed = dict(var_name_to_prev_var_name or {})
    grouped: dict[str, list[Variable]] = {}
    for variable in found:
        info = variable._get_save_slice_info()
        name = info.full_name if info is not None else variable.op.name
        grouped.setdefault(name, []).append(variable)
    unknown = sorted(renamed.keys() - grouped.keys())
    if unknown:
        raise ValueError(f"warm_start: var_name_to_prev_var_name has names of no variable to warm-start: {unknown}.")
    init_from_checkpoint(ckpt_to_initialize_from, [(renamed.get(name, name), parts) for name, parts in grouped.items()])


def _pairs(key: str, target: Any) -> list[tuple[str, Any]]:
    """Pairs of a name in the checkpoint and its variable, from one entry of an assignment map."""
    if not isinstance(target, str):
        return [(key, target)]
    store = variable_store()
    variables = {**store.variables, **store.partitioned}
    if target in variables:
        return [(key, variables[target])]
    scope = target.rpartition("/")[0]
    if not key.endswith("/"):
        raise ValueError(
            f"Assignment map with scope only name {scope} should map to scope only {key}. Should be 'scope/': "
            f"'other_scope/'. Or there is no variable '{target}' that tf.get_variable made."
        )
    parts = {part.name.partition(":")[0] for whole in store.partitioned.values() for part in whole}
    inside = f"{scope}/" if scope else ""
    within = [name for name in sorted(variables) if name.startswith(inside) and name not in parts]
    prefix = "" if key == "/" else key
    return [(prefix + name.removeprefix(inside), variables[name]) for name in within]


def _check(name: str, parts: Sequence[Variable], stored: Mapping[str, list[int]], where: Any) -> None:
    if not parts or not all(isinstance(part, Variable) for part in parts):
        raise TypeError(f"init_from_checkpoint: what '{name}' is mapped to is no variable: {parts!r}.")
    if name not in stored:
        found = ", ".join(f"{known} {shape}" for known, shape in sorted(stored.items())[:100])
        raise ValueError(f"Tensor {name} is not found in {where} checkpoint, which has {found}")
    infos = [part._get_save_slice_info() for part in parts]
    if len(parts) > 1 and len({info.full_name if info is not None else "" for info in infos}) > 1:
        raise ValueError(f"Slices must all be from the same tensor: {[part.name for part in parts]}.")
    shape: Any = parts[0].get_shape() if infos[0] is None else infos[0].full_shape
    if list(stored[name]) != list(shape) if infos[0] is not None else not shape.is_compatible_with(stored[name]):
        raise ValueError(
            f"Shape of variable {parts[0].name} ({shape}) doesn't match with shape of tensor {name} ({stored[name]}) "
            "from checkpoint reader."
        )


def _initialize_from(variable: Variable, path: str, name: str) -> None:
    info = variable._get_save_slice_info()
    spec = info.spec if info is not None else ""
    # Only CPUs read files: this is the CPU of the variable's task.
    with device(variable.device), device("/cpu:0"):
        restored = save_restore.restore_v2(
            path, [name], [spec], dtypes=[variable.dtype.base_dtype], name="checkpoint_initializer"
        )
    tensor = restored[0] if isinstance(restored, (list, tuple)) else restored
    variable._initializer_op = VariableSaveable(variable, spec, name).restore([tensor], None)
    tensor.set_shape(variable.get_shape())
    variable._initial_value = tensor


def _text(value: Any) -> str:
    value = os.fspath(value)
    return value.decode() if isinstance(value, bytes) else str(value)


def _prefix(ckpt_dir_or_file: Any) -> str:
    path = _text(ckpt_dir_or_file)
    if not os.path.isdir(path):
        return path
    found = latest_checkpoint(path)
    if found is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}")
    return found
