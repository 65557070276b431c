"""DatasetBase: a dataset as a tensor that describes it, and the structure of its elements."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from penstock.data import iterator, structure
from penstock.data.functions import Traced, trace
from penstock.data.options import Options
from penstock.data.structure import Carried, DatasetSpec
from penstock.graph.graph import executing_eagerly_outside_functions
from penstock.graph.opdef import OpDef
from penstock.graph.operation import Tensor


class DatasetBase(Carried):
    """The common part of the methods of `tf.data.Dataset`."""

    iterator_class: ClassVar[Any]  # the iterator of eager execution, set by its module, which is above this one

    def __init__(self, variant_tensor: Tensor, element_spec: Any, options: Options | None = None) -> None:
        self._variant_tensor = variant_tensor
        self._spec = element_spec
        self._options = options

    def carried_by(self, variant_tensor: Tensor) -> Any:
        return DatasetSpec.dataset_class(variant_tensor, self._spec, self._options)

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element."""
        return self._spec

    @property
    def output_types(self) -> Any:
        return iterator.get_legacy_output_types(self)

    @property
    def output_shapes(self) -> Any:
        return iterator.get_legacy_output_shapes(self)

    @property
    def output_classes(self) -> Any:
        return iterator.get_legacy_output_classes(self)

    def __repr__(self) -> str:
        if not executing_eagerly_outside_functions():
            return f"<{type(self).__name__} shapes: {self.output_shapes}, types: {self.output_types}>"
        kind = type(self).__name__
        if type(self) is DatasetSpec.dataset_class:
            # The name of TensorFlow's class for what this op makes.
            kind = "_" + re.sub(r"V\d+$", "", self._variant_tensor.op.type).replace("Const", "VariantDataset")
        return f"<{kind} element_spec={self._spec!r}>"

    def __iter__(self) -> Any:
        if not executing_eagerly_outside_functions():
            raise RuntimeError(
                "dataset.__iter__() is only supported when eager execution is enabled; in a graph, use "
                "tf.data.make_one_shot_iterator(dataset).get_next()."
            )
        return self.iterator_class(self)

    def options(self) -> Options:
        """The options of this dataset and of its inputs."""
        return self._options or Options()

    def with_options(self, options: Options, name: str | None = None) -> Any:
        """The same elements, with these options set."""
        return DatasetSpec.dataset_class(self._variant_tensor, self._spec, self.options().merge(options))

    def _made(self, op: OpDef, *inputs: Any, spec: Any = None, **attrs: Any) -> Any:
        """Applies a dataset op to this dataset."""
        spec = self._spec if spec is None else spec
        attrs["Toutput_types" if "Toutput_types" in op.attrs else "output_types"] = structure.types_of(spec)
        variant = op(self._variant_tensor, *inputs, output_shapes=structure.shapes_of(spec), **attrs)
        return DatasetSpec.dataset_class(variant, spec, self._options)

    def _datasets(self, function: Any, name: str) -> tuple[Traced, Any]:
        """Traces a function from elements to datasets; returns it and the structure of the datasets' elements."""
        traced = trace(function, name, self._spec)
        if not isinstance(traced.spec, DatasetSpec):
            # TensorFlow raises an AttributeError too.
            raise AttributeError(
                f"`map_func` of {name} must return a `Dataset` object, received {traced.result!r:.200}."
            )
        return traced, traced.spec.element_spec
