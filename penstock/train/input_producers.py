"""Producers of names, indices and rows: queues that queue runners fill for a number of epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.ops.array.gathering import gather
from penstock.ops.array.passthrough import identity
from penstock.ops.array.ranges import range as range_
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.array.reshaping import size
from penstock.ops.debugging.assertion import Assert
from penstock.ops.io import summary
from penstock.ops.io.files import matching_files
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import greater
from penstock.ops.queue.queues import FIFOQueue
from penstock.ops.random.stateful import random_shuffle
from penstock.train.queue_runner import QueueRunner, add_queue_runner
from penstock.variables.updates import count_up_to
from penstock.variables.variable import Variable


def limit_epochs(tensor: TensorLike, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """`tensor` `num_epochs` times, then OutOfRangeError. The count is a local variable.

    >>> names = tf.train.limit_epochs(names, num_epochs=2)
    """
    if num_epochs is None:
        return convert_to_tensor(tensor)
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    with name_scope(name, "limit_epochs", [tensor]) as scope:
        zero = convert_to_tensor(0, dtype=dt.int64)
        epochs = Variable(zero, name="epochs", trainable=False, collections=[GraphKeys.LOCAL_VARIABLES])
        with control_dependencies([count_up_to(epochs, num_epochs)]):
            return identity(tensor, name=scope)


def input_producer(
    input_tensor: TensorLike,
    element_shape: ShapeLike = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Any:
    """A queue of the rows of `input_tensor`, filled by a queue runner, `num_epochs` times or for ever."""
    with name_scope(name, "input_producer", [input_tensor]) as scope:
        rows = convert_to_tensor(input_tensor, name="input_tensor")
        element = rows.shape[1:].merge_with(TensorShape(element_shape))
        if not element.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be specified."
            )
        if shuffle:
            rows = random_shuffle(rows, seed=seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(
            capacity=capacity, dtypes=[rows.dtype.base_dtype], shapes=[element], shared_name=shared_name, name=scope
        )
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        if summary_name is not None:
            summary.scalar(summary_name, cast(queue.size(), dt.float32) * (1.0 / capacity))
        return queue


def string_input_producer(
    string_tensor: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> Any:
    """A queue of strings, such as names of files for a reader.

    >>> queue = tf.train.string_input_producer(["a.tfrecord", "b.tfrecord"], num_epochs=1)
    """
    message = "string_input_producer requires a non-null input tensor"
    if not isinstance(string_tensor, Tensor) and not list(string_tensor):
        raise ValueError(message)
    with name_scope(name, "input_producer", [string_tensor]) as scope:
        names = convert_to_tensor(string_tensor, dtype=dt.string)
        with control_dependencies([Assert(greater(size(names), 0), [message])]):
            names = identity(names)
        fullness = f"fraction_of_{capacity}_full"
        return input_producer(names, [], num_epochs, shuffle, seed, capacity, shared_name, fullness, scope, cancel_op)


def range_input_producer(
    limit: TensorLike,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """A queue of the numbers below `limit`."""
    with name_scope(name, "input_producer", [limit]) as scope:
        return input_producer(
            range_(limit), [], num_epochs, shuffle, seed, capacity, shared_name, f"fraction_of_{capacity}_full", scope
        )


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each of the tensors, the same in all, chosen again for each step.

    >>> image, label = tf.train.slice_input_producer([images, labels])
    """
    with name_scope(name, "input_producer", list(tensor_list)):
        tensors: list[Any] = [convert_to_tensor(t) for t in tensor_list]
        if not tensors:
            raise ValueError("Expected at least one tensor in slice_input_producer().")
        rows: Any = shape_of(tensors[0])
        queue = range_input_producer(rows[0], num_epochs, shuffle, seed, capacity, shared_name)
        index = queue.dequeue()
        return [gather(tensor, index) for tensor in tensors]


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Variable:
    """The files that match a pattern, found once and kept in a local variable.

    >>> names = tf.train.match_filenames_once("/data/*.tfrecord")
    """
    with name_scope(name, "matching_filenames", [pattern]) as scope:
        found = matching_files(pattern)
        return Variable(
            found, trainable=False, name=scope, validate_shape=False, collections=[GraphKeys.LOCAL_VARIABLES]
        )
