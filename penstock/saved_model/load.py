"""tf.saved_model.load: the objects of a SavedModel. Its files may come from anywhere: they are checked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.checkpoint.bundle import BundleReader, data_paths, exists
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.graph import the_graph
from penstock.errors import DataLossError
from penstock.graph.attrs import declared_attrs, read_dtype, read_shape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.import_functions import Functions as Library
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.graph.scopes import init_scope
from penstock.graph.shape import TensorShape
from penstock.graph.tensor_proto import make_ndarray
from penstock.ops.array.creation import zeros
from penstock.saved_model.asset import Asset
from penstock.saved_model.functions import Functions, LoadedFunction
from penstock.saved_model.messages import asset_path, read_meta_graph, variables_prefix
from penstock.saved_model.structures import decode, decode_signature
from penstock.trackable.base import Trackable
from penstock.trackable.containers import AutoTrackable, ListWrapper, wrap
from penstock.train.restoration import Restoration, read_object_graph
from penstock.variables.eager import EagerVariable
from penstock.variables.variable import Variable


@dataclass
class LoadOptions:
    """Options of `load`.

    With `experimental_skip_checkpoint` all variables are zero; with `allow_partial_checkpoint` those are that the
    checkpoint lacks. The other options of TensorFlow are accepted without effect.
    """

    allow_partial_checkpoint: bool = False
    experimental_io_device: str | None = None
    experimental_skip_checkpoint: bool = False
    experimental_variable_policy: Any = None
    experimental_load_function_aliases: bool = False


class LoadedObject(AutoTrackable):
    """An object of a SavedModel: it has the attributes that were saved, and calls its `__call__` if it has one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        called = vars(self).get("__call__")
        if called is None:
            raise TypeError("This object of a SavedModel cannot be called: no function `__call__` was saved with it.")
        return called(*args, **kwargs)


class LoadedResource(AutoTrackable):
    """A resource of a SavedModel, such as a table, which functions of the model use."""

    resource_handle: Tensor


class SignatureMap(Trackable, Mapping[str, ConcreteFunction]):
    """The signatures of a SavedModel, by name: `loaded.signatures["serving_default"](x=tensor)`."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = dict(found)

    def __getitem__(self, key: str) -> ConcreteFunction:
        item = self._found[key]
        return item.function if isinstance(item, BareFunction) else item

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"_SignatureMap({list(self._found)})"


class BareFunction(Trackable):
    """A concrete function of a SavedModel that is built when it is first used."""

    def __init__(self, functions: Functions, saved: Any) -> None:
        self._functions = functions
        self._saved = saved

    @property
    def function(self) -> ConcreteFunction:
        saved = self._saved
        return self._functions.bare(
            saved.concrete_function_name, saved.argument_keywords, saved.allowed_positional_arguments
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Loader:
    """Makes the objects of a meta graph."""

    def __init__(self, directory: str, meta_graph: Any, options: LoadOptions) -> None:
        self._directory = directory
        self._options = options
        self._meta = meta_graph
        self._nodes = list(meta_graph.object_graph_def.nodes)
        saved = meta_graph.object_graph_def.concrete_functions
        self._library = meta_graph.graph_def.library.function
        self._functions = Functions(self._library, saved, self._bound)
        self._constants = {node.name: node for node in meta_graph.graph_def.node if node.op == "Const"}
        self._objects: dict[int, Any] = {}
        for number, node in enumerate(self._nodes):
            self._check(number, node)
        for entry in saved.values():
            if any(not 0 <= i < len(self._nodes) for i in entry.bound_inputs):
                raise DataLossError(f"A function of the SavedModel in '{directory}' uses an object that is not there.")

    def _check(self, number: int, node: Any) -> None:
        if any(not 0 <= child.node_id < len(self._nodes) for child in node.children):
            raise DataLossError(
                f"Object {number} of the SavedModel in '{self._directory}' has children that are not there."
            )

    def root(self) -> Any:
        """The root, with variables restored and tables filled."""
        if not self._nodes:
            raise ValueError(
                f"The SavedModel in '{self._directory}' has no objects: it was written by TensorFlow 1. Use "
                "tf.compat.v1.import_graph_def with its graph, and a tf.compat.v1.train.Saver."
            )
        if not self._options.experimental_skip_checkpoint:
            self._check_size()
        with init_scope():
            for number, node in enumerate(self._nodes):
                self._objects[number] = self._make(node)
            # Tuples are made of their items, so that they come when these are there; they may be in one another.
            for number, node in enumerate(self._nodes):
                if _identifier(node) == "trackable_tuple_wrapper":
                    self._objects[number] = self._tuple(number, ())
            for number, node in enumerate(self._nodes):
                self._connect(self._objects[number], node)
            root = self._objects[0]
            if not self._options.experimental_skip_checkpoint:
                self._restore(root)
            self._fill_tables()
        return root

    def _check_size(self) -> None:
        """Raises an error if the variables take more memory than the files that are to have their values."""
        declared = 0
        for node in self._nodes:
            if node.WhichOneof("kind") == "variable":
                sizes = [max(0, dim.size) for dim in node.variable.shape.dim]
                dtype = read_dtype(node.variable.dtype)
                declared += math.prod(sizes) * (1 if dtype.name == "string" else dtype.size)
        paths = data_paths(variables_prefix(self._directory))
        if declared > sum(os.path.getsize(path) for path in paths) and not self._options.allow_partial_checkpoint:
            raise DataLossError(
                f"The variables of the SavedModel in '{self._directory}' take {declared} bytes, more than its files."
            )

    # Making objects

    def _make(self, node: Any) -> Any:
        match node.WhichOneof("kind"):
            case "variable":
                return self._variable(node.variable)
            case "asset":
                return self._asset(node.asset.asset_file_def_index)
            case "constant":
                return self._constant(node.constant.operation)
            case "function":
                return self._function(node.function)
            case "bare_concrete_function":
                return BareFunction(self._functions, node.bare_concrete_function)
            case "resource":
                return self._resource(node)
        match _identifier(node):
            case "trackable_list_wrapper":
                return ListWrapper()
            case "trackable_dict_wrapper":
                return wrap({})
            case "signature_map":
                return SignatureMap({})
        return LoadedObject()

    def _variable(self, saved: Any) -> Any:
        dtype, shape = read_dtype(saved.dtype), read_shape(saved.shape)
        sizes = [size or 0 for size in shape.as_list()] if shape.rank is not None else []
        return EagerVariable(
            _zeros(sizes, dtype), trainable=saved.trainable, name=saved.name or None, dtype=dtype, shape=shape
        )

    def _asset(self, index: int) -> Asset:
        files = self._meta.asset_file_def
        if not 0 <= index < len(files):
            raise DataLossError(f"The SavedModel in '{self._directory}' has no asset {index}.")
        return Asset(asset_path(self._directory, files[index].filename))

    def _constant(self, operation: str) -> Tensor:
        node = self._constants.get(operation)
        if node is None:
            raise DataLossError(f"The SavedModel in '{self._directory}' has no constant '{operation[:100]}'.")
        return convert_to_tensor(make_ndarray(node.attr["value"].tensor))

    def _function(self, saved: Any) -> LoadedFunction:
        spec = saved.function_spec
        signature = decode_signature(spec.fullargspec, spec.is_method)
        specs = decode(spec.input_signature)
        name = saved.concrete_functions[0] if saved.concrete_functions else "function"
        return LoadedFunction(name, self._functions, list(saved.concrete_functions), signature, specs)

    def _resource(self, node: Any) -> LoadedResource:
        """A resource: the node in its creating function says which one."""
        creator = next((c.node_id for c in node.children if c.local_name == "_create_resource"), None)
        names = [] if creator is None else list(self._nodes[creator].function.concrete_functions)
        proto = self._functions.names.get(names[0]) if names else None
        for inner in proto.node_def if proto is not None else ():
            op_def = registered(inner.op)
            if op_def is not None and "shared_name" in op_def.attrs and not inner.input:
                attrs = declared_attrs(inner.op, op_def, inner.attr, Library(self._library, the_graph()), 0)
                operation = the_graph().add_op(op_def, [], attrs, [read_dtype(20)], inner.op)
                found = LoadedResource()
                found.resource_handle = operation.outputs[0]
                return found
        raise NotImplementedError(
            f"A resource of the SavedModel in '{self._directory}' is of a kind that is not known."
        )

    def _tuple(self, number: int, above: tuple[int, ...]) -> Any:
        if number in above:
            raise DataLossError(f"A tuple of the SavedModel in '{self._directory}' contains itself.")
        found = {}
        for child in self._nodes[number].children:
            inner = child.node_id
            is_tuple = _identifier(self._nodes[inner]) == "trackable_tuple_wrapper"
            found[child.local_name] = self._tuple(inner, (*above, number)) if is_tuple else self._objects[inner]
        size = 1 + max((int(name) for name in found if name.isdecimal() and len(name) < 6), default=-1)
        return tuple(found.get(str(i)) for i in range(size))

    def _connect(self, value: Any, node: Any) -> None:
        children = {child.local_name: self._objects[child.node_id] for child in node.children}
        if isinstance(value, SignatureMap):
            value._found.update(children)
        elif isinstance(value, ListWrapper):
            size = 1 + max((int(name) for name in children if name.isdecimal() and len(name) < 6), default=-1)
            value.extend(children.get(str(i)) for i in range(size))
        elif isinstance(value, dict):
            value.update(children)
        elif isinstance(value, (LoadedObject, LoadedResource)):
            for name, child in children.items():
                setattr(value, name, child)

    # Values

    def _bound(self, number: int) -> Any:
        """The variable or tensor that an object is to functions."""
        value = self._objects[number]
        if isinstance(value, Asset):
            return value.asset_path
        if isinstance(value, LoadedResource):
            return value.resource_handle
        if isinstance(value, (Variable, Tensor)):
            return value
        raise NotImplementedError(f"A function of the SavedModel in '{self._directory}' uses {value!r}.")

    def _restore(self, root: Any) -> None:
        prefix = variables_prefix(self._directory)
        if not exists(prefix):
            if any(node.WhichOneof("kind") == "variable" for node in self._nodes):
                raise DataLossError(f"The variables of the SavedModel in '{self._directory}' are missing.")
            return
        reader = BundleReader(prefix)
        graph = read_object_graph(reader)
        if graph is None:
            raise DataLossError(f"'{prefix}' has no object graph.")
        restoration = Restoration(reader, graph)
        restoration.bind(0, root)
        restored = {id(value) for value in restoration.bound_objects}
        for value in self._objects.values():
            is_missing = isinstance(value, Variable) and id(value) not in restored
            if is_missing and not self._options.allow_partial_checkpoint:
                raise DataLossError(f"'{prefix}' has no value for the variable '{value.name}'.")

    def _fill_tables(self) -> None:
        for value in list(self._objects.values()):
            initialize = vars(value).get("_initialize") if isinstance(value, LoadedResource) else None
            if isinstance(initialize, (LoadedFunction, BareFunction)):
                initialize()


def _identifier(node: Any) -> str:
    is_user_object = node.WhichOneof("kind") in ("user_object", None)
    return str(node.user_object.identifier) if is_user_object else ""


def _zeros(sizes: list[int], dtype: DType) -> Any:
    return zeros(TensorShape(sizes), dtype)


def load(export_dir: Any, tags: Any = None, options: LoadOptions | None = None) -> Any:
    """Loads a SavedModel: its objects with variables, functions and signatures.

    >>> loaded = tf.saved_model.load("/tmp/model")
    >>> loaded.signatures["serving_default"](x=tf.constant([[1.0, 2.0]]))
    """
    directory = os.fspath(export_dir)
    meta_graph = read_meta_graph(directory, tags)
    root = Loader(directory, meta_graph, options or LoadOptions()).root()
    if isinstance(root, AutoTrackable):
        root.tensorflow_version = meta_graph.meta_info_def.tensorflow_version
        if "signatures" not in vars(root):
            root.signatures = SignatureMap({})
    return root
