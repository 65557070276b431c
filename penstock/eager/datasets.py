"""Datasets of eager execution: descriptions that are made at once, and can be made again in another process.

The tensor of such a dataset keeps the operation that made it, and so all operations that describe it.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto.graph_pb2 import GraphDef

from penstock.checkpoint import crc
from penstock.data import specs
from penstock.data.dataset import Dataset
from penstock.data.functions import copied
from penstock.eager.tensor import EagerTensor
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.graph.dtype import variant
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.importer import import_graph_def
from penstock.graph.opdef import OpDef, grouped


@functools.cache
def makes_dataset(op_def: OpDef) -> bool:
    """Tells if an op type describes a dataset, or packs a component of its elements; it runs nothing."""
    outputs = op_def.outputs
    plain = op_def.host and not op_def.stateful and not op_def.wants & {"ctx", "functions", "resource"}
    of_datasets = op_def.kernel.__module__.startswith(("penstock.data.", "penstock.ops.ragged.row_ops"))
    return plain and of_datasets and len(outputs) == 1 and outputs[0].type is variant


def make(op_def: OpDef, inputs: Sequence[EagerTensor], attrs: dict[str, Any]) -> Any:
    """The description that an op makes: its kernel is called without a step, which costs more than the kernel."""
    values = [t._value if t.dtype is variant else t._array() for t in inputs]
    settings = {k: v for k, v in attrs.items() if k in op_def.wants}
    try:
        return op_def.kernel(*grouped(op_def, attrs, values), **settings)
    except (ValueError, IndexError) as error:
        raise InvalidArgumentError(None, op_def.name, f"{op_def.name}: {error}") from error


def described(dataset: Dataset) -> Dataset:
    """An eager dataset as one that nodes of the default graph make, so that the graph can be sent to another task.

    >>> with tf.Graph().as_default():
    ...     dataset = described(dataset)
    """
    if not dataset._variant_tensor.graph.is_eager:
        return dataset
    made: Dataset = dataset.carried_by(copied(dataset._variant_tensor, get_default_graph(), handles=True))
    return made


def serialized(dataset: Dataset) -> bytes:
    """A dataset as bytes: a graph that makes it, and the structure of its elements.

    What it takes from eager tensors goes along by value. It is made again by `deserialized`, in any process; functions
    of Python (`from_generator`, `py_function`) run only in the process that made them.

    >>> deserialized(serialized(tf.data.Dataset.range(3)))
    """
    graph = Graph()
    with graph.as_default():
        name = described(dataset)._variant_tensor.name
    definition: bytes = graph.as_graph_def().SerializeToString()
    told = {"tensor": name, "spec": specs.encoded(dataset.element_spec), "crc": crc.masked(definition)}
    head = json.dumps(told).encode()
    return struct.pack("<I", len(head)) + head + definition


def deserialized(data: bytes) -> Dataset:
    """The dataset that `serialized` wrote. With eager execution it is made at once, else in the default graph."""
    try:
        (size,) = struct.unpack_from("<I", data)
        head = json.loads(data[4 : 4 + size])
        spec, name = specs.decoded(head["spec"]), str(head["tensor"])
        if crc.masked(data[4 + size :]) != head["crc"]:
            raise ValueError("the checksum is wrong")
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise DataLossError(f"These {len(data)} bytes are not a dataset: {error}.") from error
    definition = GraphDef.FromString(data[4 + size :])
    graph = Graph()
    with graph.as_default():
        import_graph_def(definition, name="")
    return Dataset(copied(graph.get_tensor_by_name(name), get_default_graph()), spec)
