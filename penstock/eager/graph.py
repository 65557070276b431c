"""EagerGraph: a graph that runs each operation when it is made, and keeps none."""

from __future__ import annotations

import functools
import itertools
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.eager import datasets
from penstock.eager import iterators as __  # noqa: F401  the iterators of eager execution
from penstock.eager.repeated import Repeated, key_of
from penstock.eager.runtime import runtime
from penstock.eager.seeds import EagerSeeds
from penstock.eager.tensor import EagerOperation, EagerTensor, Handle
from penstock.graph.device import DeviceSpecV2
from penstock.graph.graph import Graph
from penstock.graph.hooks import eager_hooks, hooks
from penstock.graph.opdef import OpDef, op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import recorders
from penstock.ops.array.creation import zeros_like
from penstock.ops.control import eager_array  # noqa: F401  the TensorArrays of eager execution
from penstock.variables import eager as _  # noqa: F401  the variables of eager execution

_names = itertools.count()  # of resources: each has its own
PROCESS = f"{secrets.randbits(48):012x}"  # in names of resources: tasks of a cluster may outlive this process


class EagerGraph(Graph):
    """The default graph of eager execution. It has scopes and collections like any other, and no operations."""

    is_eager = True
    orders_effects = True
    equals_by_value = True
    shares_seeds = False

    def __init__(self) -> None:
        self._seeds = EagerSeeds()
        super().__init__()

    @property
    def seed(self) -> int | None:
        """The global seed. Setting it makes all random ops start again."""
        return self._seeds.seed

    @seed.setter
    def seed(self, seed: int | None) -> None:
        self._seeds.set(seed)
        runtime.restart_generators()

    def next_op_seed(self) -> int:
        """The seed of an op that has none of its own."""
        return self._seeds.next_op_seed()

    def add_op(
        self,
        op_def: OpDef,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        output_types: Sequence[Any],
        name: str,
        shapes: Callable[[Operation], None] | None = None,
    ) -> EagerOperation:
        for tensor in inputs:
            if not isinstance(tensor, EagerTensor):
                raise TypeError(
                    f"{op_def.name} takes {tensor!r}, which is a tensor of the graph {tensor.graph} and has no value "
                    "here: it belongs to a function or graph that was traced. Return it from there, or pass it as an "
                    "argument."
                )
        operation = EagerOperation(self, op_def, list(inputs), attrs, [])
        if self._scopes.gradients and op_def.name in self._scopes.gradients:
            attrs.setdefault("_gradient_op_type", self._scopes.gradients[op_def.name])
        device = self._device_for(operation)
        operation.device = device
        values = self._values(op_def, inputs, attrs, output_types, device)
        outputs = [EagerTensor(self, v, t, device) for v, t in zip(values, output_types, strict=True)]
        operation.outputs = [*outputs]
        if datasets.makes_dataset(op_def):
            outputs[0]._node = operation  # the way to make it again, elsewhere
        if values and isinstance(values[0], Handle):
            # The resource lives as long as its handle.
            weakref.finalize(operation.outputs[0], runtime.release, values[0]).atexit = False
        for recorder in recorders.items:
            recorder.record(operation)
        return operation

    def run_op(self, op_def: OpDef, inputs: list[Tensor], attrs: dict[str, Any], name: str) -> Operation:
        """Runs an operation whose inputs are tensors, with attrs as far as the program gives them."""
        scopes = self._scopes
        key = None if scopes.devices or scopes.gradients else key_of(op_def, inputs, attrs)
        known = None if key is None else runtime.repeated.get(key)
        if known is None:
            made: Operation = hooks.build_node(self, op_def, inputs, attrs, name)
            if key is not None:
                run = runtime.repeatable(op_def, inputs, made.attrs, made.device)
                if run is not None:
                    types = [t.dtype for t in made.outputs]
                    runtime.repeated.remember(key, Repeated(made.attrs, types, made.device, run), inputs)
            return made
        device = known.device
        outputs: list[Tensor] = [
            EagerTensor(self, v, t, device) for v, t in zip(known.run(inputs), known.types, strict=True)
        ]
        operation = EagerOperation(self, op_def, inputs, known.attrs, outputs)
        operation.device = device
        for recorder in recorders.items:
            recorder.record(operation)
        return operation

    def with_gradient(
        self, inputs: Sequence[Tensor], results: Sequence[Any], gradient: Callable[..., Sequence[Any]]
    ) -> list[Tensor]:
        """The results of a computation of `inputs` as tensors of their own, for which tapes call `gradient(*dys)`."""
        outputs: list[Tensor] = [EagerTensor(self, t._value, t.dtype, t._device) for t in results]
        operation = EagerOperation(self, op_of("IdentityN"), list(inputs), {"T": ()}, outputs)
        operation.gradient = lambda op, *dys: gradient(
            *[zeros_like(y) if dy is None else dy for dy, y in zip(dys, op.outputs, strict=True)]
        )
        for recorder in recorders.items:
            recorder.record(operation)
        return outputs

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` under the current scope: nothing is kept by name here, so that no name is taken."""
        return f"{self._scopes.name}/{name}" if self._scopes.name else name

    def _values(
        self, op_def: OpDef, inputs: Sequence[Any], attrs: dict[str, Any], types: Sequence[Any], device: str
    ) -> Sequence[Any]:
        if op_def.name == "Const":
            return [np.array(attrs["value"])]
        if _makes_handle(op_def, inputs, types):
            # The resource itself is made when an operation first uses it.
            is_kept = "_resource_name" in self._scopes.attrs
            return [Handle(op_def, {**attrs, **self._resource_name(op_def, attrs)}, device, is_kept)]
        if datasets.makes_dataset(op_def) and not any(isinstance(t._value, Handle) for t in inputs):
            return [datasets.make(op_def, inputs, attrs)]
        return runtime.run_op(op_def, inputs, attrs, types, device)

    def _resource_name(self, op_def: OpDef, attrs: dict[str, Any]) -> dict[str, str]:
        """The name of a new resource: its own, unless the scope gives one that a later process can find."""
        found = self._scopes.attrs.get("_resource_name")
        if found is not None:
            return {"container": self._scopes.container, "shared_name": found}
        given = attrs.get("shared_name") or attrs.get("name") or op_def.name
        return {"shared_name": f"{given}_{PROCESS}_{next(_names)}"}

    def _device_for(self, operation: EagerOperation) -> str:
        """The device of an operation: that of the resource that it uses, else the one that the scopes say."""
        for tensor in operation.input_list:
            if isinstance(tensor, EagerTensor) and isinstance(tensor._value, Handle):
                return tensor._value.device
        if not self._scopes.devices:
            return runtime.default_device
        wanted = DeviceSpecV2.from_string(self.scoped_device(operation))
        return DeviceSpecV2.from_string(runtime.default_device).make_merged_spec(wanted).to_string()


def _makes_handle(op_def: OpDef, inputs: Sequence[Any], types: Sequence[Any]) -> bool:
    return not inputs and "shared_name" in op_def.attrs and len(types) == 1 and types[0].name == "resource"


eager_hooks.with_gradient = EagerGraph.with_gradient
eager_hooks.run_op = EagerGraph.run_op


@functools.cache
def the_graph() -> EagerGraph:
    """The one graph of eager execution of this process."""
    return EagerGraph()
