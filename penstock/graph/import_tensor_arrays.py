"""Turns TensorArrays of old graphs into lists. TensorFlow 1 builds `map_fn`, `scan` and `dynamic_rnn` from them.

In those graphs a TensorArray is a resource that writes change; a float, the flow, keeps them in order. Here it is a
value, the list, which takes the place of the flow: a write returns a new list.
"""

from __future__ import annotations

import numpy as np
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.graph.attrs import read_shape
from penstock.graph.control_contexts import CONTROL_FLOW, split_name
from penstock.graph.dtype import int32, variant
from penstock.graph.tensor_proto import tensor_proto

_ARRAY = "TensorArrayV3"
# For each op type: the list op that replaces it, the positions of the inputs it takes, and the attr with the type.
_LIST_OPS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "TensorArrayWriteV3": ("TensorListSetItem", (3, 1, 2), "T"),
    "TensorArrayScatterV3": ("TensorListScatterIntoExistingList", (3, 2, 1), "T"),
    "TensorArrayReadV3": ("TensorListGetItem", (2, 1), "dtype"),
    "TensorArrayGatherV3": ("TensorListGather", (2, 1), "dtype"),
}
_READS = frozenset(("TensorArrayReadV3", "TensorArrayGatherV3"))  # these also need the shape of an item
_PASSES_ON = CONTROL_FLOW | {"Identity"}


def lists_for_tensor_arrays(nodes: dict[str, NodeDef]) -> dict[str, NodeDef]:
    """Replaces ops on TensorArrays by list ops; returns `nodes` unchanged if there are none."""
    arrays = {name: node for name, node in nodes.items() if node.op == _ARRAY}
    return _Rewriter(nodes, arrays).run() if arrays else nodes


class _Rewriter:
    def __init__(self, nodes: dict[str, NodeDef], arrays: dict[str, NodeDef]) -> None:
        self.nodes = nodes
        self.arrays = arrays
        self.result: dict[str, NodeDef] = {}

    def run(self) -> dict[str, NodeDef]:
        for name, node in self.nodes.items():
            self.result[name] = self._rewritten(node)
        self._retype()
        return self.result

    def _rewritten(self, node: NodeDef) -> NodeDef:
        if node.op == _ARRAY:
            return self._reserve(node)
        target = NodeDef()
        target.CopyFrom(node)
        del target.input[:]
        inputs = [self._flow(text) for text in node.input if not text.startswith("^")]
        if node.op in _LIST_OPS:
            array = self._array(node)
            target.op, positions, dtype = _LIST_OPS[node.op]
            if len(inputs) <= max(positions):
                raise ValueError(f"Node '{node.name}' ({node.op}) has {len(inputs)} inputs, too few.")
            inputs = [inputs[i] for i in positions]
            target.attr["element_dtype"].type = node.attr[dtype].type
            if node.op in _READS:
                inputs.append(self._item_shape(array, node))
            elif node.op == "TensorArrayWriteV3":
                target.attr["resize_if_index_out_of_bounds"].b = array.attr["dynamic_size"].b
        elif node.op == "TensorArraySizeV3":
            array = self._array(node)
            if array.attr["dynamic_size"].b or not array.input:
                target.op, inputs = "TensorListLength", inputs[1:]
            else:  # known at compile time, as ops that use the size often need
                target.op, inputs = "Identity", [array.input[0]]
                target.attr["T"].type = int32.as_datatype_enum
        elif node.op == "TensorArrayCloseV3":
            target.op, inputs = "NoOp", []
        target.input.extend([*inputs, *(text for text in node.input if text.startswith("^"))])
        return target

    def _reserve(self, node: NodeDef) -> NodeDef:
        target = NodeDef(name=node.name, op="TensorListReserve", device=node.device)
        target.input.extend([self._item_shape(node, node), *node.input])
        target.attr["element_dtype"].type = node.attr["dtype"].type
        target.attr["shape_type"].type = int32.as_datatype_enum
        return target

    def _flow(self, text: str) -> str:
        """The list itself, in place of a TensorArray's flow."""
        source, _ = split_name(text)
        return source if source in self.arrays else text

    def _array(self, node: NodeDef) -> NodeDef:
        """The TensorArray that a node uses. Its handle may pass through loops and branches."""
        found = node
        for _ in range(len(self.nodes)):
            source = split_name(found.input[0])[0] if found.input else ""
            if source in self.arrays:
                return self.arrays[source]
            if source not in self.nodes or self.nodes[source].op not in _PASSES_ON:
                break
            found = self.nodes[source]
        raise ValueError(f"Node '{node.name}' ({node.op}): its TensorArray is not in the GraphDef.")

    def _item_shape(self, array: NodeDef, node: NodeDef) -> str:
        """Adds a constant with the shape of an item, as far as `node` or the array gives it; returns its name."""
        known = [read_shape(n.attr["element_shape"].shape) for n in (node, array) if "element_shape" in n.attr]
        shape = next((s for s in known if s.rank is not None), None)
        value = np.int32(-1) if shape is None else np.array([-1 if d is None else d for d in shape.as_list()], np.int32)
        name = f"{node.name}/element_shape"
        while name in self.nodes:
            name += "_"
        constant = NodeDef(name=name, op="Const", device=node.device)
        constant.attr["dtype"].type = int32.as_datatype_enum
        constant.attr["value"].tensor.CopyFrom(tensor_proto(np.asarray(value), int32))
        self.result[name] = constant
        return name

    def _retype(self) -> None:
        """Sets the type of nodes that pass lists on to variant."""
        lists = {n for n, node in self.result.items() if node.op == "TensorListReserve" and n in self.arrays}
        lists |= {n for n, node in self.nodes.items() if node.op in ("TensorArrayWriteV3", "TensorArrayScatterV3")}
        consumers: dict[str, list[str]] = {}
        for name, node in self.result.items():
            if node.op in _PASSES_ON and node.input:
                for text in node.input[:2] if node.op in ("Merge", "RefMerge") else node.input[:1]:
                    consumers.setdefault(split_name(text)[0], []).append(name)
        waiting = list(lists)
        while waiting:
            for name in consumers.get(waiting.pop(), []):
                if name not in lists:
                    lists.add(name)
                    waiting.append(name)
                    self.result[name].attr["T"].type = variant.as_datatype_enum
