"""tf.saved_model.save: objects with variables, functions, assets and tables as a SavedModel."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import logging
from penstock.checkpoint import files
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function import Function, function
from penstock.eager.function_graph import handle_of
from penstock.eager.tensor import EagerTensor
from penstock.graph import dtype as dt
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Tensor
from penstock.ops.array.creation import constant
from penstock.ops.array.passthrough import identity
from penstock.ops.lookup import table_ops
from penstock.saved_model.asset import Asset
from penstock.saved_model.function_export import FunctionExport
from penstock.saved_model.functions import LoadedFunction
from penstock.saved_model.load import BareFunction, LoadedResource, SignatureMap
from penstock.saved_model.messages import FILE, SCHEMA, SavedModel, fingerprint, variables_prefix
from penstock.saved_model.meta_graph import MetaGraph
from penstock.saved_model.objects import functions_of, saved_children, saved_object
from penstock.saved_model.shards import Shard, shards_of, with_whole_variables
from penstock.saved_model.signatures import concrete_signatures
from penstock.saved_model.structures import encode, encode_signature
from penstock.trackable.base import is_table, is_trackable, offers_slices
from penstock.train import checkpoint_writing as writing
from penstock.train.object_graph import ObjectGraph
from penstock.variables.resource import ResourceVariable
from penstock.variables.variable import Variable


@dataclass
class SaveOptions:
    """Options of `save`. `extra_tags` are tags besides `serve`; the others of TensorFlow have no effect."""

    namespace_whitelist: Sequence[str] | None = None
    save_debug_info: bool = False
    function_aliases: Mapping[str, Any] | None = None
    experimental_debug_stripper: bool = False
    experimental_io_device: str | None = None
    experimental_variable_policy: Any = None
    experimental_custom_gradients: bool = True
    experimental_image_format: bool = False
    experimental_skip_saver: bool = False
    experimental_sharding_callback: Any = None
    extra_tags: Any = None


class _Model:
    """The objects of a SavedModel while it is made: each has a number, and functions refer to them by number."""

    def __init__(self, root: Any, signatures: Any) -> None:
        self.root = root
        self.values: list[Any] = []
        self.children: list[dict[str, int]] = []
        self._ids: dict[int, int] = {}
        self._handles: dict[Any, int] = {}  # by resource
        self._assets: dict[int, int] = {}  # by the tensor of the path
        self._constants: dict[int, int] = {}
        self._shards: dict[Any, Shard] = {}  # by resource
        self.wholes: dict[int, Tensor] = {}  # by number: the handles of variables in parts
        self.functions = FunctionExport(self._number_of)
        self._add(root)
        self._walk()
        given = signatures
        if signatures is None and isinstance(vars(root).get("signatures"), SignatureMap):
            given = dict(vars(root)["signatures"]) or None  # a model that was loaded keeps its signatures
        named = {name: f for name, f in functions_of(root).items() if not isinstance(f, BareFunction)}
        self.signatures = SignatureMap(concrete_signatures(root, named, given))
        number = self._add(self.signatures)
        self.children[0]["signatures"] = number
        for name, concrete in self.signatures.items():
            self.children[number][name] = self._add(concrete)
        for number in range(len(self.values)):
            self._add_table_functions(number)

    def _add(self, value: Any) -> int:
        found = self._ids.get(id(value))
        if found is None:
            found = self._ids[id(value)] = len(self.values)
            self.values.append(value)
            self.children.append({})
            if isinstance(value, ResourceVariable):
                self._handles[_key(value.handle)] = found
            elif offers_slices(value):
                self.wholes[found], shards = shards_of(value)
                self._handles[_key(self.wholes[found])] = found
                self._shards.update(shards)
            elif is_table(value) or isinstance(value, LoadedResource):
                self._handles[_key(value.resource_handle)] = found
            elif isinstance(value, Asset):
                self._assets[id(value.asset_path)] = found
        return found

    def _walk(self) -> None:
        done = 0
        while done < len(self.values):
            for name, child in saved_children(self.values[done]).items():
                self.children[done][name] = self._add(child)
            done += 1

    def _number_of(self, tensor: Tensor) -> int:
        """The number of the object that a function has captured the value or handle of."""
        handle = handle_of(tensor)
        if handle is not None:
            found = self._handles.get(handle.key)
            if found is None:
                raise AssertionError(
                    "Tried to export a function which references an 'untracked' resource, "
                    f"'{handle.attrs['shared_name']}' ({handle.op_def.name}). Objects that functions use, such as "
                    "variables and tables, must be attributes of the object that is saved, or of objects that it holds."
                )
            return found
        if not isinstance(tensor, EagerTensor):
            raise ValueError(f"A function that was traced inside of another one cannot be saved: it uses {tensor!r}.")
        known = self._assets.get(id(tensor))
        return self._add(tensor) if known is None else known

    def _add_table_functions(self, number: int) -> None:
        """The functions that make, fill and free a table where the model is loaded."""
        table = self.values[number]
        if not (is_table(table) or isinstance(table, LoadedResource)):
            return
        made = handle_of(table.resource_handle)
        assert made is not None
        keys, values = table_ops.lookup_table_export_v2(
            table.resource_handle, Tkeys=made.attrs["key_dtype"], Tvalues=made.attrs["value_dtype"]
        )

        def creator() -> Tensor:
            graph = get_default_graph()
            return graph.add_op(made.op_def, [], dict(made.attrs), [dt.resource], made.op_def.name).outputs[0]

        def initializer() -> Tensor:
            table_ops.lookup_table_import_v2(table.resource_handle, keys, values)
            return identity(constant(1))

        for name, python in (
            ("_create_resource", creator),
            ("_initialize", initializer),
            ("_destroy_resource", lambda: identity(constant(1))),
        ):
            traced = function(python)
            traced.get_concrete_function()
            self.children[number][name] = self._add(traced)

    # Messages

    def write(self, target: Any, meta: MetaGraph) -> None:
        """Writes all objects, with their functions, into a SavedObjectGraph."""
        done = 0
        while done < len(self.values):  # functions that are added may use constants, which are further objects
            message = saved_object(self.values[done])
            self._describe(self.values[done], message, meta)
            target.nodes.append(message)
            done += 1
        for number, message in enumerate(target.nodes):
            for name, child in self.children[number].items():
                message.children.add(node_id=child, local_name=name)
        for name, saved in self.functions.concrete.items():
            target.concrete_functions[name].CopyFrom(saved)

    def _describe(self, value: Any, message: Any, meta: MetaGraph) -> None:
        if isinstance(value, (Function, LoadedFunction)):
            message.function.concrete_functions.extend(self._traces(value))
            loaded = value.python_signature if isinstance(value, LoadedFunction) else value.function_spec.signature
            message.function.function_spec.fullargspec.CopyFrom(encode_signature(loaded))
            message.function.function_spec.input_signature.CopyFrom(encode(value.input_signature))
        elif isinstance(value, (ConcreteFunction, BareFunction)):
            concrete = value.function if isinstance(value, BareFunction) else value
            bare = message.bare_concrete_function
            bare.concrete_function_name = self.export(concrete)
            bare.argument_keywords.extend(concrete.argument_leaves)
            bare.allowed_positional_arguments = 1 if len(concrete.argument_leaves) == 1 else 0
        elif isinstance(value, Asset):
            message.asset.asset_file_def_index = meta.asset(value)
        elif isinstance(value, EagerTensor):
            message.constant.operation = meta.constant(value)

    def export(self, concrete: ConcreteFunction) -> str:
        """Adds a concrete function to the model, and returns its name there."""
        return self.functions.add(concrete, lambda: with_whole_variables(concrete, self._shards))

    def _traces(self, value: Function | LoadedFunction) -> list[str]:
        """The names of the traces of a function; those that cannot be saved are left out."""
        if isinstance(value, LoadedFunction):
            return [self.export(concrete) for concrete in value.concrete_functions]
        if value.input_signature is not None:
            value.get_concrete_function()
        names = []
        for concrete in value.concrete_functions:
            if concrete.graph.handle_parameters:
                logging.warning("A trace of %r is not saved: variables are its arguments.", value)
                continue
            try:
                names.append(self.export(concrete))
            except ValueError as error:
                logging.warning("A trace of %r is not saved: %s", value, error)
        return names


def _key(handle: Tensor) -> Any:
    found = handle_of(handle)
    assert found is not None
    return found.key


def save(obj: Any, export_dir: Any, signatures: Any = None, options: SaveOptions | None = None) -> None:
    """Saves an object, with the variables, functions, assets and tables that it holds, for other programs to load.

    Functions are saved with the traces that they have, and with their input signature if they have one.

    >>> tf.saved_model.save(module, "/tmp/model", signatures={"serving_default": module.predict})
    """
    if not is_trackable(obj) or isinstance(obj, (Variable, tuple)) or offers_slices(obj):
        raise ValueError(f"Expected an object that holds others, such as a tf.Module, to save; received {obj!r:.200}.")
    directory = os.fspath(export_dir)
    model = _Model(obj, signatures)
    meta = MetaGraph()
    extra = options.extra_tags if options is not None else None
    meta.proto.meta_info_def.tags.extend(["serve", *(extra or ())])
    model.write(meta.proto.object_graph_def, meta)
    graph = ObjectGraph(obj)
    meta.write(model, graph)
    saved = SavedModel(saved_model_schema_version=SCHEMA, meta_graphs=[meta.proto])
    # A new model appears whole: it is written aside and renamed.
    is_new = not os.path.exists(directory)
    aside = f"{directory.rstrip('/')}.tmp{secrets.token_hex(8)}" if is_new else directory
    try:
        os.makedirs(os.path.join(aside, "assets"), exist_ok=True)
        os.makedirs(os.path.join(aside, "variables"), exist_ok=True)
        for name, source in meta.assets.items():
            shutil.copyfile(source, os.path.join(aside, "assets", name))
        writing.write(variables_prefix(aside), writing.entries_of(graph))
        files.write_whole(os.path.join(aside, "fingerprint.pb"), fingerprint(saved))
        files.write_whole(os.path.join(aside, FILE), saved.SerializeToString(deterministic=True))
        if is_new:
            files.rename(aside, directory)
    except BaseException:
        if is_new:
            shutil.rmtree(aside, ignore_errors=True)
        raise
