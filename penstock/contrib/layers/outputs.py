"""Names and collections of the outputs of layers, and the getter that makes their variables model variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.contrib.variables import model_variable
from penstock.graph.operation import Tensor
from penstock.graph.scopes import add_to_collections, get_collection, get_collection_ref
from penstock.graph.typing import TensorLike
from penstock.variables.partitioned import PartitionedVariable

_ALIASES = ("__tensor_aliases",)  # not a string, so that users do not see it among the collections


def _aliases() -> dict[Tensor, list[str]]:
    found = get_collection_ref(_ALIASES)
    if not found:
        found.append({})
    aliases: dict[Tensor, list[str]] = found[0]
    return aliases


def collect_named_outputs(collections: Any, alias: str, outputs: Any) -> Any:
    """Adds `outputs` to `collections` under the name `alias`."""
    if collections:
        append_tensor_alias(outputs, alias)
        add_to_collections(collections, outputs)
    return outputs


def append_tensor_alias(tensor: TensorLike, alias: str) -> Any:
    """Gives a tensor one more name, for `convert_collection_to_dict`."""
    alias = alias.removesuffix("/")
    names = _aliases().setdefault(tensor, [])
    if alias not in names:
        names.append(alias)
    return tensor


def get_tensor_aliases(tensor: TensorLike) -> list[str]:
    """The names that layers gave a tensor, or else its own."""
    return _aliases().get(tensor) or [tensor.name.removesuffix(":0")]


def convert_collection_to_dict(collection: Any, clear_collection: bool = False) -> dict[str, Any]:
    """The tensors of a collection by the names that layers gave them: `end_points` of a network."""
    found = {alias: tensor for tensor in get_collection(collection) for alias in get_tensor_aliases(tensor)}
    if clear_collection:
        get_collection_ref(collection).clear()
    return found


def get_variable_collections(variables_collections: Any, name: str) -> Any:
    """The collections for the variable `name`: the list itself, or its entry for that name."""
    return variables_collections.get(name) if isinstance(variables_collections, dict) else variables_collections


def collect_variable(variable: Any, collections: Any, name: str) -> None:
    """Adds a variable, with all its parts, to the collections for `name`."""
    keys = get_variable_collections(collections, name)
    if keys and variable is not None:
        for part in variable if isinstance(variable, PartitionedVariable) else [variable]:
            for key in keys:
                if not any(part is each for each in get_collection(key)):
                    add_to_collections([key], part)


def _getter(
    getter: Callable[..., Any],
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    rename: dict[str, str] | None = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
    **_: Any,
) -> Any:
    folder, _slash, short = name.rpartition("/")
    if rename and short in rename:
        name = f"{folder}{_slash}{rename[short]}"
    return model_variable(
        name,
        shape=shape,
        dtype=dtype,
        initializer=initializer,
        regularizer=regularizer,
        trainable=trainable,
        collections=collections,
        caching_device=caching_device,
        partitioner=partitioner,
        custom_getter=getter,
        use_resource=use_resource,
        synchronization=synchronization,
        aggregation=aggregation,
    )


def variable_getter(**rename: str) -> Callable[..., Any]:
    """A custom getter that makes model variables and renames them: `variable_getter(kernel="weights")`."""

    def layer_variable_getter(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _getter(getter, *args, **{**kwargs, "rename": rename})

    return functools.partial(layer_variable_getter)


def channel_axis(data_format: str | None) -> int:
    """The axis of the channels: 1 for "NCHW" and similar formats, else the last."""
    return 1 if data_format is not None and data_format.startswith("NC") else -1


def checked_format(data_format: str | None, allowed: tuple[str, ...]) -> str:
    """'channels_first' or 'channels_last' for a data format, which must be one of those allowed."""
    if data_format not in (None, *allowed):
        raise ValueError(f"data_format has to be one of {', '.join(allowed)}, received {data_format!r}.")
    return "channels_first" if channel_axis(data_format) == 1 else "channels_last"


def finished(
    outputs: Any, normalizer_fn: Any, normalizer_params: Any, activation_fn: Any, collections: Any, name: str
) -> Any:
    """Normalizes, activates and collects `outputs`: the last step of most layers."""
    if normalizer_fn is not None:
        outputs = normalizer_fn(outputs, **(normalizer_params or {}))
    if activation_fn is not None:
        outputs = activation_fn(outputs)
    return collect_named_outputs(collections, name, outputs)
