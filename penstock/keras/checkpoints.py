"""TensorFlow checkpoints of Keras models: variables by their paths, sharded ones as one."""

from __future__ import annotations

import functools
import os
from collections import Counter
from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer

from penstock.distribute.sharded_variable import ShardedVariable
from penstock.keras.variables import BackedVariable, back
from penstock.trackable.base import Position
from penstock.train.checkpoint_state import update_checkpoint_state
from penstock.train.object_checkpoint import Checkpoint
from penstock.train.object_graph import VARIABLE_VALUE

_ENDINGS = (".keras", ".h5")


def is_checkpoint_path(path: Any) -> bool:
    """Tells if a path means a TensorFlow checkpoint, not a file of Keras."""
    return not str(os.fspath(path)).endswith(_ENDINGS)


def save_checkpoint(model: Any, path: str) -> None:
    """Writes a checkpoint of a model: `path.index` and its data. The file `checkpoint` beside it then names it."""
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    _checkpoint_of(model, optimizer=getattr(model, "optimizer", None)).write(path)
    update_checkpoint_state(folder, path, [path], save_relative_paths=True)


def restore_checkpoint(model: Any, path: str) -> None:
    """Reads a checkpoint of a model, which must be built. An optimizer gets what it has no variables for yet later."""
    _checkpoint_of(model).read(path).assert_existing_objects_matched()
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        Checkpoint(optimizer=optimizer).read(path).expect_partial()


def _checkpoint_of(model: Any, optimizer: Any = None) -> Checkpoint:
    if not model.variables:
        raise ValueError(
            f"The model '{model.name}' has no variables: build it, or call it, before its weights are read."
        )
    return Checkpoint(model=model) if optimizer is None else Checkpoint(model=model, optimizer=optimizer)


# Models and optimizers as objects of checkpoints


def _children_of_layer(layer: Any) -> dict[str, Any]:
    """The variables of a layer or model by the place of their layer in it: names of layers differ from run to run."""
    found: dict[str, Any] = {}
    for number, inner in enumerate(layer._flatten_layers()):
        for variable in (*inner._trainable_variables, *inner._non_trainable_variables):
            name = f"{number}/{variable.name}"
            while name in found:
                name += "_"
            found[name] = back(variable).backing
    return found


def _children_of_optimizer(optimizer: Any) -> dict[str, Any]:
    """The variables of an optimizer by number. The slots of a variable's shards are one, as the variable is."""
    groups: dict[Any, list[BackedVariable]] = {}
    slots: Counter[int] = Counter()  # by reference
    for variable in map(back, optimizer.variables):
        reference = getattr(variable, "_reference", None)
        if reference is None or reference.whole is None or variable.shape != reference.shape:
            groups[id(variable)] = [variable]
        else:
            groups.setdefault((id(reference.whole), slots[id(reference)]), []).append(variable)
            slots[id(reference)] += 1
    return {str(i): _one_of(group) for i, group in enumerate(groups.values())}


def _one_of(group: list[BackedVariable]) -> Any:
    """The object that a checkpoint has for a variable, or for the parts of one; always the same for the same group."""
    first, *others = group
    if not others and not first.copies:
        return first.backing
    if first.saved_as is None:
        parts = [variable.backing for variable in group]
        first.saved_as = ShardedVariable(parts, first.path) if others else _WithCopies(first)
    return first.saved_as


class _WithCopies:
    """A variable of which other tasks have copies: a checkpoint has one value for all."""

    def __init__(self, variable: BackedVariable) -> None:
        self._variable = variable

    def _saved_state(self) -> dict[str, Any]:
        return {VARIABLE_VALUE: self._variable.numpy()}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self._variable.write(state[VARIABLE_VALUE])


def _restored_from(optimizer: Any, position: Position) -> None:
    """Remembers a checkpoint for the slots of an optimizer that has none yet."""
    if not optimizer.built:
        vars(optimizer)["_penstock_position"] = position


def restore_slots(optimizer: Any) -> None:
    """Gives the slots of an optimizer, which has been built, the values of a checkpoint that was read before."""
    position = vars(optimizer).pop("_penstock_position", None)
    if position is not None:
        for name, child in _children_of_optimizer(optimizer).items():
            position.attach(name, child)


def install() -> None:
    """Has models save and load weights as TensorFlow checkpoints where the path says so.

    Models and optimizers can be parts of a `tf.train.Checkpoint` too.
    """
    keras.layers.Layer._trackable_children = _children_of_layer
    BaseOptimizer._trackable_children = _children_of_optimizer
    BaseOptimizer._restored_from = _restored_from
    save, load = keras.Model.save_weights, keras.Model.load_weights

    @functools.wraps(save)
    def save_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if is_checkpoint_path(filepath):
            return save_checkpoint(self, os.fspath(filepath))
        return save(self, filepath, *args, **kwargs)

    @functools.wraps(load)
    def load_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.exists(f"{os.fspath(filepath)}.index"):
            return restore_checkpoint(self, os.fspath(filepath))
        return load(self, filepath, *args, **kwargs)

    keras.Model.save_weights, keras.Model.load_weights = save_weights, load_weights
