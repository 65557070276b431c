"""MetaGraph: the graph of a SavedModel, for loaders that know no objects: signatures, a saver, and an init op."""

from __future__ import annotations

import os
from typing import Any

from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.compat.proto.saver_pb2 import SaverDef

from penstock.eager.function_graph import handle_of
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph
from penstock.graph.opdef import op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies
from penstock.ops.array.creation import constant
from penstock.ops.array.passthrough import identity
from penstock.ops.control.grouping import group
from penstock.ops.io import save_restore
from penstock.ops.state import variable_ops
from penstock.saved_model.asset import Asset
from penstock.trackable.base import offers_slices
from penstock.train.object_graph import GRAPH_KEY, ObjectGraph, full_name_of
from penstock.variables.variable import Variable

_VERSION = "2.21.0"  # of TensorFlow's API, which readers look at
_INIT = "__saved_model_init_op"


class MetaGraph:
    """Collects what a MetaGraphDef has besides the objects."""

    def __init__(self) -> None:
        self.proto = MetaGraphDef()
        self.proto.meta_info_def.tensorflow_version = _VERSION
        self.proto.meta_info_def.stripped_default_attrs = False
        self.assets: dict[str, str] = {}  # names in the directory, and the files to copy
        self._asset_names: list[str] = []
        self._graph = Graph()
        self._constants: dict[int, Tensor] = {}
        self._kept: list[Any] = []

    def asset(self, value: Asset) -> int:
        """The number of an asset; files of one name get different names."""
        base = name = os.path.basename(os.fspath(value))
        suffix = 0
        while name in self.assets:
            suffix += 1
            name = f"{base}_{suffix}"
        self.assets[name] = os.fspath(value)
        self._asset_names.append(name)
        return len(self._asset_names) - 1

    def constant(self, value: Any) -> str:
        """The name of the node that holds the value of a tensor."""
        found = self._constants.get(id(value))
        if found is None:
            self._kept.append(value)
            with self._graph.as_default():
                found = self._constants[id(value)] = constant(value.numpy(), dtype=value.dtype, name="Const")
        return found.op.name

    def write(self, model: Any, objects: ObjectGraph) -> None:
        """Adds the graph: a node for each object that functions use, and what loaders run."""
        with self._graph.as_default():
            nodes, started = self._nodes(model)
            saved = {id(v): n for v, n in zip(model.values, nodes, strict=True) if n is not None}
            self._write_saver(objects, saved)
        calls: list[tuple[str, str, list[str]]] = []
        for number in range(len(model.values)):
            initialize = model.children[number].get("_initialize")
            if initialize is not None:
                name = self.proto.object_graph_def.nodes[initialize].function.concrete_functions[0]
                calls.append((self._unique("StatefulPartitionedCall"), name, self._captured(model, name, nodes)))
        init = self._unique("NoOp")
        waits = [f"^{op.name}" for op in started] + [f"^{name}" for name, _, _ in calls]
        for name, concrete in model.signatures.items():
            self._write_signature(name, concrete, model, nodes, calls)
        model.functions.write(self.proto.graph_def.library)
        definition = self._graph.as_graph_def()
        self.proto.graph_def.node.extend(definition.node)
        self.proto.graph_def.versions.CopyFrom(definition.versions)
        self.proto.graph_def.node.add(name=init, op="NoOp", input=waits)
        self._write_calls(calls)
        self.proto.collection_def["saved_model_main_op"].node_list.value.append(init)
        self.proto.signature_def[_INIT].outputs[_INIT].name = init
        self.proto.signature_def[_INIT].outputs[_INIT].tensor_shape.unknown_rank = True

    def _unique(self, name: str) -> str:
        return self._graph.unique_name(name)

    def _nodes(self, model: Any) -> tuple[list[Tensor | None], list[Operation]]:
        """The tensor of the graph for each object, and the operations that assign the paths of assets."""
        nodes: list[Tensor | None] = []
        assigned: list[Operation] = []
        assets = iter(self._asset_names)
        for number, value in enumerate(model.values):
            if isinstance(value, Variable) or number in model.wholes:
                name = full_name_of(value)
                nodes.append(_variable(self._unique(name), value.dtype.base_dtype, value.shape))
            elif isinstance(value, Asset):
                path = op_of("Placeholder")(dtype=dt.string, shape=[], name="asset_path_initializer")
                kept = _variable(self._unique("asset_path"), dt.string, [])
                assigned.append(variable_ops.assign_variable(kept, path))
                nodes.append(variable_ops.read_variable(kept, dtype=dt.string))
                self.proto.asset_file_def.add(filename=next(assets)).tensor_info.name = path.name
            elif id(value) in self._constants:
                nodes.append(self._constants[id(value)])
            elif hasattr(value, "resource_handle"):
                handle = handle_of(value.resource_handle)
                assert handle is not None
                made = self._graph.add_op(handle.op_def, [], dict(handle.attrs), [dt.resource], "table")
                nodes.append(made.outputs[0])
            else:
                nodes.append(None)
        return nodes, assigned

    def _captured(self, model: Any, function: str, nodes: list[Tensor | None]) -> list[str]:
        found = [nodes[number] for number in model.functions.concrete[function].bound_inputs]
        return [tensor.name for tensor in found if tensor is not None]

    def _write_signature(
        self, name: str, concrete: Any, model: Any, nodes: list[Tensor | None], calls: list[tuple[str, str, list[str]]]
    ) -> None:
        signature = self.proto.signature_def[name]
        signature.method_name = "tensorflow/serving/predict"
        inputs = []
        with self._graph.as_default():
            for key, spec in concrete.structured_input_signature[1].items():
                given = op_of("Placeholder")(dtype=spec.dtype, shape=spec.shape, name=f"{name}_{key}")
                _describe(signature.inputs[key], given.name, spec)
                inputs.append(given.name)
        function = model.export(concrete)
        call = self._unique("StatefulPartitionedCall")
        calls.append((call, function, inputs + self._captured(model, function, nodes)))
        for i, (key, spec) in enumerate(concrete.structured_outputs.items()):
            _describe(signature.outputs[key], f"{call}:{i}", spec)

    def _write_calls(self, calls: list[tuple[str, str, list[str]]]) -> None:
        arguments = {f.signature.name: f.signature for f in self.proto.graph_def.library.function}
        for name, function, inputs in calls:
            node = self.proto.graph_def.node.add(name=name, op="StatefulPartitionedCall", input=inputs)
            node.attr["f"].func.name = function
            node.attr["Tin"].list.type.extend(a.type for a in arguments[function].input_arg)
            node.attr["Tout"].list.type.extend(a.type for a in arguments[function].output_arg)
            for attr in ("config", "config_proto", "executor_type"):
                node.attr[attr].s = b""

    def _write_saver(self, objects: ObjectGraph, saved: dict[int, Tensor]) -> None:
        """Adds the operations that save and restore the variables under the keys of the model's checkpoint."""
        filename = op_of("Placeholder")(dtype=dt.string, shape=[], name="saver_filename")
        variables = [n for n in objects.nodes if isinstance(n.value, Variable) or offers_slices(n.value)]
        pairs = [(objects.entries(n)[0].key, saved[id(n.value)], n.value) for n in variables]
        keys = [key for key, _, _ in pairs]
        types = [value.dtype.base_dtype for _, _, value in pairs]
        reads = [variable_ops.read_variable(handle, dtype=t) for (_, handle, _), t in zip(pairs, types, strict=True)]
        message = constant(objects.proto().SerializeToString())
        written = save_restore.save_v2(filename, [*keys, GRAPH_KEY], [""] * (len(keys) + 1), [*reads, message])
        with control_dependencies([written]):
            path = identity(filename, name="saved_path")
        assigned = []
        if keys:
            restored = save_restore.restore_v2(filename, keys, [""] * len(keys), dtypes=types)
            values = restored if isinstance(restored, (list, tuple)) else [restored]
            assigned = [
                variable_ops.assign_variable(handle, v) for (_, handle, _), v in zip(pairs, values, strict=True)
            ]
        done = group(*assigned, name="restore_all")
        saver = self.proto.saver_def
        saver.filename_tensor_name, saver.save_tensor_name = filename.name, path.name
        saver.restore_op_name, saver.version = done.name, SaverDef.V2


def _variable(name: str, dtype: Any, shape: Any) -> Tensor:
    handle: Tensor = variable_ops.var_handle(shape=shape, dtype=dtype, shared_name=name, name=name)
    return handle


def _describe(target: Any, name: str, spec: Any) -> None:
    target.name = name
    target.dtype = spec.dtype.as_datatype_enum
    target.tensor_shape.CopyFrom(spec.shape.as_proto())
