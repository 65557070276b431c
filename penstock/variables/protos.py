"""Variables as VariableDef messages, which MetaGraphDefs contain."""

from __future__ import annotations

from typing import Any

from tensorboard.compat.proto.variable_pb2 import VariableDef

from penstock.graph.graph import get_default_graph
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.slices import SaveSliceInfo, strip_scope


def to_proto(variable: Any, export_scope: str | None = None) -> VariableDef | None:
    """`variable` as a VariableDef, or None if it is not under `export_scope`."""
    element = variable._ref()
    if export_scope is not None and not element.name.startswith(export_scope):
        return None
    proto = VariableDef(
        variable_name=strip_scope(element.name, export_scope),
        initializer_name=strip_scope(variable.initializer.name, export_scope),
        is_resource=element.dtype.name == "resource",
        trainable=variable.trainable,
        synchronization=variable.synchronization.value,
        aggregation=variable.aggregation.value,
    )
    if variable.initial_value is not None:
        proto.initial_value_name = strip_scope(variable.initial_value.name, export_scope)
    proto.snapshot_name = strip_scope(variable._snapshot.name, export_scope)
    info = variable._get_save_slice_info()
    if info is not None:
        proto.save_slice_info_def.MergeFrom(info.to_proto(export_scope=export_scope))
    return proto


def fill_in(variable: Any, proto: Any, import_scope: str | None = None) -> None:
    """Initializes an object as the variable that `proto` describes; its nodes are already in the default graph."""
    graph = get_default_graph()

    def element(name: str) -> Any:
        return graph.as_graph_element(f"{import_scope}/{name}" if import_scope else name)

    variable._use_nodes(element(proto.variable_name), element(proto.snapshot_name))
    variable._initializer_op = element(proto.initializer_name)
    variable._initial_value = element(proto.initial_value_name) if proto.initial_value_name else None
    variable._trainable = bool(proto.trainable)
    variable._synchronization = VariableSynchronization(proto.synchronization)
    variable._aggregation = VariableAggregation(proto.aggregation)
    variable._constraint = None
    variable._caching_device = None
    variable._save_slice_info = None
    if proto.HasField("save_slice_info_def"):
        variable._save_slice_info = SaveSliceInfo(
            save_slice_info_def=proto.save_slice_info_def, import_scope=import_scope
        )
