"""The variable store of a graph: `get_variable` finds variables in it by name, or creates them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, init_scope, name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.ops.array.slicing import slice as slice_of
from penstock.variables import initializers
from penstock.variables.creation import resource_variables_enabled
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.slices import SaveSliceInfo
from penstock.variables.variable import Variable

_KEY = ("__variable_store",)  # not a string, so that users do not see it among the collections


def variable_store() -> VariableStore:
    """The store of the default graph."""
    found = get_default_graph().get_collection_ref(_KEY)
    if not found:
        found.append(VariableStore())
    store: VariableStore = found[0]
    return store


class PartitionInfo:
    """Information for the initializer of a partition: the whole shape, and the partition's position in it."""

    def __init__(self, full_shape: Sequence[int], var_offset: Sequence[int]) -> None:
        self.full_shape, self.var_offset = list(full_shape), list(var_offset)

    def single_offset(self, shape: Sequence[int]) -> int:
        """The offset along the axis that is partitioned."""
        return self.var_offset[self.single_slice_dim(shape) or 0]

    def single_slice_dim(self, shape: Sequence[int]) -> int | None:
        """The axis that is partitioned, or None."""
        differing = [i for i, (whole, part) in enumerate(zip(self.full_shape, shape, strict=True)) if whole != part]
        if len(differing) > 1:
            raise ValueError(f"Sliced along {len(differing)} axes: {self.full_shape} against {list(shape)}.")
        return differing[0] if differing else None


class VariableStore:
    """Variables by full name, whole and partitioned."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.partitioned: dict[str, PartitionedVariable] = {}

    def get_variable(
        self,
        name: str,
        shape: Any,
        dtype: Any,
        custom_getter: Callable[..., Any] | None,
        constraint: Any,
        **settings: Any,
    ) -> Any:
        """The variable of that name, through `custom_getter` if there is one."""
        if custom_getter is None:
            return self._get(name=name, shape=shape, dtype=dtype, constraint=constraint, **settings)
        if not callable(custom_getter):
            raise ValueError(f"Passed a custom_getter which is not callable: {custom_getter!r}")
        if _accepts(custom_getter, "constraint"):
            settings["constraint"] = constraint
        return custom_getter(getter=self._get, name=name, shape=shape, dtype=dtype, **settings)

    def _get(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = dt.float32,
        initializer: Any = None,
        regularizer: Any = None,
        reuse: Any = None,
        trainable: bool | None = None,
        collections: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        validate_shape: bool = True,
        use_resource: bool | None = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
    ) -> Any:
        dtype = as_dtype(dtype).base_dtype
        made_with = {
            "trainable": trainable,
            "collections": collections,
            "caching_device": caching_device,
            "validate_shape": validate_shape,
            "use_resource": use_resource,
            "constraint": constraint,
            "synchronization": synchronization,
            "aggregation": aggregation,
        }
        is_scalar = isinstance(shape, (list, tuple)) and not shape
        if partitioner is not None and not is_scalar:
            if not callable(partitioner):
                raise ValueError(f"Partitioner must be callable, but received: {partitioner}")
            with name_scope(None):
                return self._get_partitioned(
                    name, shape, dtype, initializer, regularizer, reuse, partitioner, made_with
                )
        if reuse is True and partitioner is None and name in self.partitioned:
            return self._get_partitioned(name, shape, dtype, initializer, regularizer, reuse, None, made_with)
        if f"{name}/part_0" in self.variables:
            raise ValueError(
                "No partitioner was provided, but a partitioned version of the variable was found: "
                f"{name}/part_0. Perhaps a variable of the same name was already created with partitioning?"
            )
        return self._get_single(name, shape, dtype, initializer, regularizer, reuse, None, made_with)

    # One variable

    def _get_single(
        self,
        name: str,
        shape: Any,
        dtype: DType,
        initializer: Any,
        regularizer: Any,
        reuse: Any,
        partition_info: PartitionInfo | None,
        made_with: dict[str, Any],
    ) -> Variable:
        from_value = initializer is not None and not callable(initializer)
        if shape is not None and from_value:
            raise ValueError("If initializer is a constant, do not specify shape.")
        wanted = as_shape(shape)
        if name in self.variables:
            return self._found(name, wanted, dtype, reuse)
        if reuse is True:
            raise ValueError(
                f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you mean to set "
                "reuse=tf.AUTO_REUSE in VarScope?"
            )
        if initializer is None:
            if shape is None:
                raise ValueError(
                    f"Variable {name} did not get an initializer, so its `shape` argument must be specified."
                )
            initializer = default_initializer(name, dtype)
        value: Any = initializer
        if not from_value:
            if inspect.isclass(initializer):
                initializer = initializer()
            if wanted.is_fully_defined():
                arguments: dict[str, Any] = {"dtype": dtype}
                if _accepts(initializer, "partition_info", by_name_only=True):
                    arguments["partition_info"] = partition_info
                value = functools.partial(initializer, wanted.as_list(), **arguments)
            elif _needs_arguments(initializer):
                raise ValueError(
                    "The initializer passed is not valid. It should be a callable with no arguments and no `shape` "
                    "be provided, or one that takes a shape, and `shape` be fully defined; received shape "
                    f"{wanted} for variable {name}."
                )
        if made_with["use_resource"] is None:
            made_with = {**made_with, "use_resource": resource_variables_enabled()}
        given = dtype if wanted.is_fully_defined() and not from_value else None
        variable: Variable = Variable(initial_value=value, name=name, dtype=given, **made_with)
        self.variables[name] = variable
        if regularizer:
            with colocate_with(variable.op), name_scope(name + "/Regularizer/"), init_scope():
                loss = regularizer(variable)
            if loss is not None:
                get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    def _found(self, name: str, shape: TensorShape, dtype: DType, reuse: Any) -> Variable:
        if not reuse:
            raise ValueError(
                f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE in "
                "VarScope?"
            )
        found = self.variables[name]
        if not shape.is_compatible_with(found.shape):
            raise ValueError(
                f"Trying to share variable {name}, but specified shape {shape} and found shape {found.shape}."
            )
        if not dtype.is_compatible_with(found.dtype):
            raise ValueError(
                f"Trying to share variable {name}, but specified dtype {dtype.name} and found dtype {found.dtype.name}."
            )
        return found

    # Partitions

    def _get_partitioned(
        self,
        name: str,
        shape: Any,
        dtype: DType,
        initializer: Any,
        regularizer: Any,
        reuse: Any,
        partitioner: Any,
        made_with: dict[str, Any],
    ) -> PartitionedVariable:
        if name in self.variables:
            raise ValueError(
                "A partitioner was provided, but an unpartitioned version of the variable was found: "
                f"{name}. Perhaps a variable of the same name was already created without partitioning?"
            )
        whole = as_shape(shape)
        if isinstance(initializer, Tensor):
            whole = whole.merge_with(initializer.shape)
        partitions = None if reuse and partitioner is None else call_partitioner(partitioner, whole, dtype)
        if name in self.partitioned:
            return self._found_partitioned(name, whole, dtype, reuse, partitions)
        if reuse is True:
            raise ValueError(
                f"PartitionedVariable {name} does not exist, or was not created with tf.get_variable(). Did you mean "
                "to set reuse=False or reuse=tf.AUTO_REUSE in VarScope?"
            )
        assert partitions is not None
        axis, count = axis_and_count(partitions)
        self._check_parts(name, count)
        full_shape = [int(d) for d in whole]
        parts: list[Variable] = []
        for i, (offset, size) in enumerate(slices(full_shape, count, axis)):
            part_name = f"{name}/part_{i}"
            init, init_shape = initializer, size
            with name_scope(part_name + "/PartitionedInitializer"):
                if initializer is not None and not callable(initializer):
                    init = slice_of(convert_to_tensor(initializer, dtype=dtype), offset, size)
                    init_shape = None  # type: ignore[assignment]
            info = PartitionInfo(full_shape, offset)
            with name_scope(None):
                part = self._get_single(part_name, init_shape, dtype, init, regularizer, reuse, info, made_with)
            part._set_save_slice_info(SaveSliceInfo(name, full_shape, offset, size))
            parts.append(part)
        made = PartitionedVariable(name, whole, dtype, parts, partitions)
        self.partitioned[name] = made
        return made

    def _found_partitioned(
        self, name: str, shape: TensorShape, dtype: DType, reuse: Any, partitions: list[int] | None
    ) -> PartitionedVariable:
        if not reuse:
            raise ValueError(
                f"Partitioned variable with name {name} already exists. Did you mean to set reuse=True or "
                "reuse=tf.AUTO_REUSE in VarScope?"
            )
        found = self.partitioned[name]
        existing = found._get_partitions()
        for what, same, wanted, actual in (
            ("shape", shape.is_compatible_with(found.shape), shape, found.shape),
            ("dtype", dtype.is_compatible_with(found.dtype), dtype.name, found.dtype.name),
            ("partitions", partitions in (None, existing), partitions, existing),
        ):
            if not same:
                raise ValueError(
                    f"Trying to reuse partitioned variable {name}, but specified {what} {wanted} and found {what} "
                    f"{actual}."
                )
        return found

    def _check_parts(self, name: str, count: int) -> None:
        if f"{name}/part_0" not in self.variables:
            return
        last, next_one = f"{name}/part_{count - 1}", f"{name}/part_{count}"
        if last not in self.variables or next_one in self.variables:
            raise ValueError(
                f"Partitioner returned a different partitioning than what was already found: {count} shards, and "
                f"{name}/part_0 was found, but not exactly {count} parts up to {last}."
            )


def default_initializer(name: str, dtype: DType) -> Any:
    """The initializer of `get_variable` if none is given."""
    if dtype.is_floating:
        return initializers.GlorotUniform()
    if dtype.is_integer or dtype.is_bool or dtype is dt.string:
        return initializers.Zeros()
    raise ValueError(f"An initializer for variable {name} of {dtype!r} is required")


def call_partitioner(partitioner: Callable[..., Any], shape: TensorShape, dtype: DType) -> list[int]:
    """The number of pieces per axis, checked."""
    if not shape.is_fully_defined():
        raise ValueError(f"Shape of a new partitioned variable must be fully defined, but instead was {shape}.")
    if shape.rank is not None and shape.rank < 1:
        raise ValueError(f"A partitioned Variable must have rank at least 1, shape: {shape}")
    slicing = partitioner(shape=shape, dtype=dtype)
    if not isinstance(slicing, Sequence):
        raise ValueError(f"Partitioner must return a sequence, but saw: {slicing}")
    if len(slicing) != shape.rank:
        raise ValueError(
            f"Partitioner returned a partition list that does not match the Variable's rank: {slicing} vs. {shape}"
        )
    if any(p < 1 for p in slicing):
        raise ValueError(f"Partitioner returned zero partitions for some axes: {slicing}")
    if sum(p > 1 for p in slicing) > 1:
        raise ValueError(f"Can only slice a variable along one dimension: shape: {shape}, partitioning: {slicing}")
    return list(slicing)


def axis_and_count(partitions: Sequence[int]) -> tuple[int, int]:
    """The axis that is partitioned, and the number of pieces; the first axis if none is."""
    return next(((i, p) for i, p in enumerate(partitions) if p > 1), (0, 1))


def slices(shape: Sequence[int], count: int, axis: int) -> Iterator[tuple[list[int], list[int]]]:
    """Offset and shape of each of `count` pieces; if they do not divide evenly, the first ones are one longer."""
    size, extra = divmod(shape[axis], count)
    start = 0
    for i in range(count):
        offset, part = [0] * len(shape), list(shape)
        offset[axis], part[axis] = start, size + (i < extra)
        start += part[axis]
        yield offset, part


def _accepts(function: Any, parameter: str, by_name_only: bool = False) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == parameter or (not by_name_only and p.kind is p.VAR_KEYWORD) for p in parameters)


def _needs_arguments(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
