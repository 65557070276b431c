"""Functions of contrib.framework that create and find variables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.checkpoint.bundle import BundleReader
from penstock.contrib.arg_scope import add_arg_scope
from penstock.graph import dtype as dt
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import add_to_collection, get_collection
from penstock.graph.scopes import device as device_scope
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.creation import placeholder
from penstock.ops.control.grouping import group
from penstock.train.saver import Saver
from penstock.variables.scope import VariableScope, get_variable, get_variable_scope
from penstock.variables.updates import assign
from penstock.variables.variable import Variable


@add_arg_scope
def variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Callable[..., Any] | None = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """`get_variable` on a device, through a custom getter: `slim.variable("w", shape=[10], device="/cpu:0")`."""
    keys = list(dict.fromkeys([GraphKeys.GLOBAL_VARIABLES] if collections is None else collections))
    getter: Callable[..., Any] = get_variable
    settings: dict[str, Any] = {}
    if custom_getter is not None:
        getter, settings["reuse"] = custom_getter, get_variable_scope().reuse
    with device_scope(device or ""):
        return getter(
            name,
            shape=shape,
            dtype=dtype,
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
            collections=keys,
            caching_device=caching_device,
            partitioner=partitioner,
            use_resource=use_resource,
            synchronization=synchronization,
            aggregation=aggregation,
            **settings,
        )


@add_arg_scope
def model_variable(
    name: str,
    shape: ShapeLike = None,
    dtype: DTypeLike = dt.float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Callable[..., Any] | None = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """A `variable` that is also in MODEL_VARIABLES: `slim.model_variable("weights", shape=[10, 10])`."""
    keys = [*(collections or ()), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
    return variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=keys,
        caching_device=caching_device,
        device=device,
        partitioner=partitioner,
        custom_getter=custom_getter,
        use_resource=use_resource,
        synchronization=synchronization,
        aggregation=aggregation,
    )


def local_variable(
    initial_value: TensorLike, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Any:
    """A variable of this process: in LOCAL_VARIABLES, not trained, not saved."""
    return Variable(
        initial_value,
        trainable=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        validate_shape=validate_shape,
        name=name,
        use_resource=use_resource,
    )


global_variable = variable


def add_model_variable(var: Any) -> None:
    """Adds a variable to MODEL_VARIABLES."""
    if var not in get_collection(GraphKeys.MODEL_VARIABLES):
        add_to_collection(GraphKeys.MODEL_VARIABLES, var)


def get_variables(
    scope: str | VariableScope | None = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES
) -> list[Any]:
    """The variables of a collection, filtered by scope and by the end of their names.

    >>> tf.contrib.framework.get_variables("conv1", suffix="weights")
    """
    prefix = scope.name if isinstance(scope, VariableScope) else scope
    if suffix is not None:
        if ":" not in suffix:
            suffix += ":"
        prefix = f"{prefix or ''}.*{suffix}"
    return get_collection(collection, prefix)


def get_model_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """`get_variables` of MODEL_VARIABLES."""
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_trainable_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """`get_variables` of TRAINABLE_VARIABLES."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_local_variables(scope: Any = None, suffix: str | None = None) -> list[Any]:
    """`get_variables` of LOCAL_VARIABLES."""
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: Any = None) -> list[Any]:
    """`get_variables` by the end of their names."""
    return get_variables(scope, suffix)


def get_variables_by_name(given_name: str, scope: Any = None) -> list[Any]:
    """The variables whose last part of the name is `given_name`, and the one with exactly that name."""
    return get_variables(scope, f"/{given_name}:|^{given_name}:")


def get_unique_variable(var_op_name: str) -> Any:
    """The one variable of a name; ValueError if there is none, or more."""
    candidates = get_variables(var_op_name)
    if not candidates:
        raise ValueError(f"Couldn't find variable {var_op_name}")
    found = [candidate for candidate in candidates if candidate.op.name == var_op_name]
    if not found:
        raise ValueError(f"Variable {var_op_name} does not uniquely identify a variable")
    return found[0]


def get_variable_full_name(var: Any) -> str:
    """The name under which a variable is saved: that of the whole for a slice of it."""
    info = getattr(var, "_save_slice_info", None)
    return str(info.full_name if info else var.op.name)


def filter_variables(
    var_list: Iterable[Any], include_patterns: Any = None, exclude_patterns: Any = None, reg_search: bool = True
) -> list[Any]:
    """The variables that match any pattern to include (all if none is given) and none to exclude."""
    match = re.search if reg_search else re.match
    chosen = [v for v in var_list if not include_patterns or any(match(p, v.name) for p in include_patterns)]
    return [v for v in chosen if not any(match(p, v.name) for p in exclude_patterns or ())]


def get_variables_to_restore(include: Any = None, exclude: Any = None) -> list[Any]:
    """The global variables under the scopes `include` (all if none is given) that are under none of `exclude`."""
    for what, given in (("include", include), ("exclude", exclude)):
        if given is not None and not isinstance(given, (list, tuple)):
            raise TypeError(f"{what} must be a list of scopes, received {given!r}.")
    chosen = get_variables() if include is None else [v for scope in include for v in get_variables(scope)]
    refused = {id(v) for scope in exclude or () for v in get_variables(scope)}
    return [v for v in chosen if id(v) not in refused]


def assign_from_values(var_names_to_values: Mapping[str, Any]) -> tuple[Any, dict[Any, Any]]:
    """An op that assigns arrays to variables by name, and the feed for it.

    >>> init, feed = slim.assign_from_values({"weights": array}); sess.run(init, feed)
    """
    feed, ops = {}, []
    for name, value in var_names_to_values.items():
        array = np.asarray(value)
        found = [v for v in get_variables(name) if v.op.name == name]
        if not found:
            raise ValueError(f"Variable {name} wasn't found")
        fed = placeholder(found[0].dtype.base_dtype, shape=found[0].shape, name=f"placeholder/{name}")
        ops.append(assign(found[0], fed))
        feed[fed] = array.reshape(found[0].shape.as_list())
    return group(*ops), feed


def assign_from_values_fn(var_names_to_values: Mapping[str, Any]) -> Callable[[Any], None]:
    """A function of a session that assigns arrays to variables by name: an `init_fn`."""
    op, feed = assign_from_values(var_names_to_values)

    def assign_values(session: Any) -> None:
        session.run(op, feed)

    return assign_values


def _in_checkpoint(model_path: str, var_list: Any, ignore_missing_vars: bool) -> dict[str, Any]:
    """The variables to restore, by their names in the checkpoint."""
    reader = BundleReader(model_path)
    wanted = dict(var_list) if isinstance(var_list, Mapping) else {get_variable_full_name(v): v for v in var_list}
    missing = [name for name in wanted if not reader.has(name)]
    if missing and not ignore_missing_vars:
        raise ValueError(f"Checkpoint '{model_path}' is missing variables {missing}.")
    return {name: variable for name, variable in wanted.items() if name not in missing}


def assign_from_checkpoint(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:
    """An op that assigns values from a checkpoint, and its feed; `var_list` may map names there to variables.

    >>> init, feed = slim.assign_from_checkpoint(path, slim.get_model_variables()); sess.run(init, feed)
    """
    reader = BundleReader(model_path)
    ops, feed = [], {}
    for name, found in _in_checkpoint(model_path, var_list, ignore_missing_vars).items():
        value = reader.read(name)
        for part in found if isinstance(found, (list, tuple)) else [found]:
            fed = placeholder(part.dtype.base_dtype, shape=part.shape, name=f"placeholder/{part.op.name}")
            ops.append(assign(part, fed))
            info = getattr(part, "_save_slice_info", None)
            piece = value
            if info is not None:
                places = zip(info.var_offset, info.var_shape, strict=True)
                piece = value[tuple(slice(start, start + size) for start, size in places)]
            if piece.size != math.prod(part.shape.as_list()):
                raise ValueError(f"'{name}' in the checkpoint has shape {value.shape}, the variable {part.shape}.")
            feed[fed] = piece.reshape(part.shape.as_list())
    return group(*ops), feed


def assign_from_checkpoint_fn(
    model_path: str, var_list: Any, ignore_missing_vars: bool = False, reshape_variables: bool = False
) -> Callable[[Any], None] | None:
    """A function of a session that restores variables from a checkpoint: an `init_fn`. None if none are there.

    >>> slim.learning.train(train_op, logdir, init_fn=slim.assign_from_checkpoint_fn(path, variables))
    """
    found = _in_checkpoint(model_path, var_list, ignore_missing_vars)
    if not found:
        return None
    saver = Saver(found, reshape=reshape_variables)

    def restore(session: Any) -> None:
        saver.restore(session, model_path)

    return restore


class VariableDeviceChooser:
    """A device function that puts variables on parameter servers in turn: `with tf.device(chooser):`."""

    def __init__(
        self,
        num_tasks: int = 0,
        job_name: str = "ps",
        device_type: str = "CPU",
        device_index: int = 0,
        replica: Any = None,
    ) -> None:
        self._tasks, self._job, self._type, self._index = num_tasks, job_name, device_type, device_index
        self._replica, self._next = replica, 0

    def __call__(self, op: Any) -> str:
        job = replica = task = ""
        if self._tasks > 0:
            job, task = f"/job:{self._job}", "/task:0"
            if op.type in ("Variable", "VariableV2", "VarHandleOp"):
                task, self._next = f"/task:{self._next}", (self._next + 1) % self._tasks
        if self._replica is not None:
            replica = f"/replica:{self._replica}"
        return f"{job}{replica}{task}/device:{self._type}:{self._index}"


def get_name_scope() -> str:
    """The current name scope of the default graph."""
    return get_default_graph().get_name_scope()
