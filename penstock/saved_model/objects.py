"""The objects of a SavedModel: which ones a root holds, and each as a message."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.saved_object_graph_pb2 import SavedObject

from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function import Function
from penstock.eager.tensor import EagerTensor
from penstock.saved_model.asset import Asset
from penstock.saved_model.functions import LoadedFunction
from penstock.saved_model.load import BareFunction, LoadedResource, SignatureMap
from penstock.trackable.base import children_of, is_table, offers_slices
from penstock.trackable.containers import ListWrapper, _DictWrapper
from penstock.variables.variable import Variable

FUNCTIONS = (Function, LoadedFunction, ConcreteFunction, BareFunction)


def functions_of(value: Any) -> dict[str, Any]:
    """The functions that are attributes of an object or of its class, by name."""
    if isinstance(value, (*FUNCTIONS, dict, list, tuple, Variable)) or not hasattr(value, "__dict__"):
        return {}
    own = {name: f for name, f in vars(value).items() if isinstance(f, FUNCTIONS)}
    inherited = {
        name
        for base in type(value).__mro__
        for name, f in vars(base).items()
        if isinstance(f, FUNCTIONS) and name not in own
    }
    return {**own, **{name: getattr(value, name) for name in sorted(inherited)}}


def saved_children(value: Any) -> dict[str, Any]:
    """All that is saved with an object, by name."""
    if is_table(value) or isinstance(value, (LoadedResource, SignatureMap, *FUNCTIONS)):
        return {}
    children = {name: child for name, child in children_of(value).items() if not isinstance(child, SignatureMap)}
    return {**children, **functions_of(value)}


def saved_object(value: Any) -> Any:
    """An object as a message, without its children and functions."""
    message = SavedObject()
    if isinstance(value, Variable) or offers_slices(value):
        variable = message.variable
        variable.dtype = value.dtype.base_dtype.as_datatype_enum
        variable.shape.CopyFrom(value.shape.as_proto())
        variable.trainable = bool((value._save_slices()[0][0] if offers_slices(value) else value).trainable)
        variable.name = str(value.name).partition(":")[0]
    elif isinstance(value, Asset):
        message.asset.SetInParent()
    elif isinstance(value, EagerTensor):
        message.constant.SetInParent()
        message.registered_name = "tf.TrackableConstant"
    elif is_table(value) or isinstance(value, LoadedResource):
        message.resource.SetInParent()
    elif isinstance(value, (Function, LoadedFunction)):
        message.function.SetInParent()
    elif isinstance(value, (ConcreteFunction, BareFunction)):
        message.bare_concrete_function.SetInParent()
    else:
        message.user_object.identifier = _identifier(value)
        message.user_object.version.producer = 1
        message.user_object.version.min_consumer = 1
    return message


def _identifier(value: Any) -> str:
    if isinstance(value, ListWrapper):
        return "trackable_list_wrapper"
    if isinstance(value, _DictWrapper):
        return "trackable_dict_wrapper"
    if isinstance(value, tuple):
        return "trackable_tuple_wrapper"
    return "signature_map" if isinstance(value, SignatureMap) else "_generic_user_object"
