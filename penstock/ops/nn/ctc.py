"""Connectionist temporal classification: the loss, and decoders for networks that are trained with it.

At each time a network gives the probabilities of all classes and of "blank". Many sequences of these stand for one
label sequence: classes that repeat count once, and blanks do not count.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.ops.array import arranging, passthrough, reshaping

_FLOATS = Types(dt.float32, dt.float64, default=dt.float32)
_NEVER = -np.inf  # the log of probability 0


def _batch(op: Operation) -> int | None:
    inputs = op.input_list[0].shape.with_rank(3).as_list()
    lengths = op.input_list[-1].shape.with_rank(1).as_list()[0]
    if inputs[1] is not None and lengths is not None and inputs[1] != lengths:
        raise ValueError(f"Dimensions must be equal, but are {inputs[1]} and {lengths}")
    return lengths if inputs[1] is None else inputs[1]


def _check_lengths(inputs: np.ndarray, lengths: np.ndarray, refusal: Any = FailedPreconditionError) -> None:
    if inputs.ndim != 3 or lengths.shape != inputs.shape[1:2]:
        raise InvalidArgumentError(
            f"inputs must be [time, batch, classes] and sequence_length have one number for each of the "
            f"batch, received shapes {inputs.shape} and {lengths.shape}"
        )
    if inputs.size == 0:
        raise InvalidArgumentError(f"inputs must not be empty, received shape {inputs.shape}")
    if (lengths > inputs.shape[0]).any() or (lengths < 0).any():
        raise refusal(
            None, None, f"sequence_length must be between 0 and {inputs.shape[0]} times, received {lengths.tolist()}"
        )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        shifted = logits - logits.max(-1, keepdims=True, initial=_NEVER)
        result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _as_sparse(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    places = [(b, i) for b, row in enumerate(rows) for i in range(len(row))]
    values = [value for row in rows for value in row]
    shape = [len(rows), max(map(len, rows), default=0)]
    return np.array(places, np.int64).reshape(-1, 2), np.array(values, np.int64), np.array(shape, np.int64)


def _once(row: Any) -> list[int]:
    """The row without repetitions."""
    return [int(value) for i, value in enumerate(row) if i == 0 or value != row[i - 1]]


# The loss.


def _loss_shape(op: Operation) -> list[TensorShape]:
    batch = _batch(op)
    inputs = op.input_list[0].shape.with_rank(3).as_list()
    return [TensorShape.of((batch,)), TensorShape.of((inputs[0], batch, inputs[2]))]


def _loss_gradient(op: Operation, d_loss: Any, _: Any) -> list[Any]:
    message = "Currently there is no way to take the second derivative of ctc_loss due to the fused gradient."
    gradient: Any = passthrough.prevent_gradient(op.outputs[1], message=message)
    return [reshaping.expand_dims(d_loss, -1) * gradient, None, None, None]


@op(
    "CTCLoss",
    "T, int64, int32, int32 -> loss: T, gradient: T",
    host=True,
    shape=_loss_shape,
    grad=_loss_gradient,
    T=_FLOATS,
)
def ctc_loss_op(
    inputs: np.ndarray,
    labels_indices: np.ndarray,
    labels_values: np.ndarray,
    sequence_length: np.ndarray,
    *,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The loss and its gradient with respect to the logits; the blank is the last class."""
    _check_lengths(inputs, sequence_length, InvalidArgumentError)
    times, batch, classes = inputs.shape
    labels = _labels(labels_indices, labels_values, batch, classes - 1)
    if preprocess_collapse_repeated:
        labels = [_once(row) for row in labels]
    skipped = np.zeros(batch, bool)
    for b, row in enumerate(labels):
        if len(row) > sequence_length[b]:
            if not ignore_longer_outputs_than_inputs:
                raise InvalidArgumentError(
                    f"Not enough time for target transition sequence (required: {len(row)}, available: "
                    f"{sequence_length[b]}) in batch entry {b}. ignore_longer_outputs_than_inputs=True skips such."
                )
            skipped[b], labels[b] = True, []
    log_p = _log_softmax(inputs.astype(np.float64))
    loss, posterior = _forward_backward(log_p, labels, sequence_length, ctc_merge_repeated)
    gradient = np.exp(log_p) - posterior
    gradient[np.arange(times)[:, None] >= sequence_length[None, :]] = 0
    gradient[:, skipped] = 0
    return np.where(skipped, 0, loss).astype(inputs.dtype), gradient.astype(inputs.dtype)


def _labels(indices: np.ndarray, values: np.ndarray, batch: int, blank: int) -> list[list[int]]:
    if indices.ndim != 2 or indices.shape[1] != 2 or values.shape != indices.shape[:1]:
        raise InvalidArgumentError(
            f"labels must be a SparseTensor of rank 2, received indices of shape {indices.shape} and "
            f"values of shape {values.shape}"
        )
    rows: list[list[int]] = [[] for _ in range(batch)]
    for b, value in zip(indices[:, 0].tolist(), values.tolist(), strict=True):
        if not 0 <= b < batch:
            raise InvalidArgumentError(f"labels of batch entry {b}, but the inputs have {batch} entries")
        if value < 0:
            raise InvalidArgumentError(f"All labels must be nonnegative integers, batch: {b} has {value}")
        if rows[b] and rows[b][-1] >= blank and value < blank:
            raise InvalidArgumentError(
                f"Saw a non-null label (index >= num_classes - 1) following a null label, batch: {b}, "
                f"labels: {[*rows[b], value]}, num_classes: {blank + 1}"
            )
        rows[b].append(value)
    if not all(rows):
        raise InvalidArgumentError(f"Labels length is zero in batch {rows.index([])}")
    # Labels from the blank on are padding at the end of a row.
    return [[value for value in row if value < blank] for row in rows]


def _forward_backward(
    log_p: np.ndarray, labels: list[list[int]], lengths: np.ndarray, merge: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The loss, and for each time the probability that each class was emitted then, given the labels."""
    times, batch, classes = log_p.shape
    states = 2 * max(map(len, labels), default=0) + 1
    path = np.full((batch, states), classes - 1)  # blank, first label, blank, second label, ...
    for b, row in enumerate(labels):
        path[b, 1 : 2 * len(row) : 2] = row
    last = np.array([2 * len(row) for row in labels], int)
    blank = path == classes - 1
    inside = np.arange(states)[None] <= last[:, None]
    stays = np.where(merge | blank, 0.0, _NEVER)
    skips = np.full((batch, states), _NEVER)
    skips[:, 2:] = np.where(blank[:, 2:] | (merge & (path[:, 2:] == path[:, :-2])), _NEVER, 0.0)
    emitted = np.take_along_axis(log_p, np.broadcast_to(path, (times, batch, states)), 2)
    emitted = np.where(inside, emitted, _NEVER)
    rows = np.arange(batch)
    with np.errstate(all="ignore"):
        forward = np.full((times, batch, states), _NEVER)
        forward[0, :, :2] = emitted[0, :, :2]
        for t in range(1, times):
            before = forward[t - 1]
            total = before + stays
            total[:, 1:] = np.logaddexp(total[:, 1:], before[:, :-1])
            total[:, 2:] = np.logaddexp(total[:, 2:], before[:, :-2] + skips[:, 2:])
            forward[t] = total + emitted[t]
        backward = np.full((times, batch, states), _NEVER)
        for t in reversed(range(times)):
            ends = lengths == t + 1
            backward[t, rows[ends], last[ends]] = 0
            backward[t, rows[ends], np.maximum(last[ends] - 1, 0)] = 0
            if t + 1 < times:
                after = backward[t + 1] + emitted[t + 1]
                total = after + stays
                total[:, :-1] = np.logaddexp(total[:, :-1], after[:, 1:])
                total[:, :-2] = np.logaddexp(total[:, :-2], after[:, 2:] + skips[:, 2:])
                backward[t] = np.where(ends[:, None], backward[t], total)
        both = forward + backward
        log_likelihood = np.logaddexp.reduce(both[0], axis=1)
        log_likelihood = np.where((lengths == 0) & (last == 0), 0.0, log_likelihood)
        share = np.where(log_likelihood[None, :, None] == _NEVER, 0, np.exp(both - log_likelihood[None, :, None]))
    posterior = np.zeros_like(log_p)
    np.add.at(posterior, (np.arange(times)[:, None, None], rows[None, :, None], path[None]), share)
    return -log_likelihood, posterior


# Decoders.


def _greedy_shape(op: Operation) -> list[TensorShape]:
    sparse = [TensorShape.of((None, 2)), TensorShape.of((None,)), TensorShape.of((2,))]
    return [*sparse, TensorShape.of((_batch(op), 1))]


@op(
    "CTCGreedyDecoder",
    "T, int32 -> decoded_indices: int64, decoded_values: int64, decoded_shape: int64, log_probability: T",
    host=True,
    shape=_greedy_shape,
    no_gradient=True,
    T=_FLOATS,
)
def ctc_greedy_decoder_op(
    inputs: np.ndarray, sequence_length: np.ndarray, *, merge_repeated: bool = False, blank_index: int = -1
) -> tuple[np.ndarray, ...]:
    _check_lengths(inputs, sequence_length)
    times, batch, classes = inputs.shape
    blank = blank_index + classes if blank_index < 0 else blank_index
    if not 0 <= blank < classes:
        raise InvalidArgumentError(f"blank_index must be in [0, {classes}), received {blank_index}")
    best = inputs.argmax(-1).reshape(times, batch)
    within = np.arange(times)[:, None] < sequence_length[None]
    score = -np.where(within, inputs.max(-1), 0).sum(0, dtype=inputs.dtype)
    rows = []
    for b in range(batch):
        row = best[: sequence_length[b], b].tolist()
        rows.append([value for value in (_once(row) if merge_repeated else row) if value != blank])
    return (*_as_sparse(rows), score[:, None].astype(inputs.dtype))


def _beam_shape(op: Operation) -> list[TensorShape]:
    paths = op.attrs["top_paths"]
    parts = [TensorShape.of((None, 2)), TensorShape.of((None,)), TensorShape.of((2,))]
    return [*(shape for shape in parts for _ in range(paths)), TensorShape.of((_batch(op), paths))]


@op(
    "CTCBeamSearchDecoder",
    "T, int32 -> decoded_indices: top_paths*int64, decoded_values: top_paths*int64, "
    "decoded_shape: top_paths*int64, log_probability: T",
    host=True,
    shape=_beam_shape,
    no_gradient=True,
    T=_FLOATS,
)
def ctc_beam_search_decoder_op(
    inputs: np.ndarray, sequence_length: np.ndarray, *, beam_width: int, top_paths: int, merge_repeated: bool = True
) -> list[np.ndarray]:
    _check_lengths(inputs, sequence_length)
    if not 0 < top_paths <= beam_width:
        raise InvalidArgumentError(
            f"top_paths must be positive and at most beam_width = {beam_width}, received {top_paths}"
        )
    log_p = _log_softmax(inputs.astype(np.float64))
    decoded: list[list[list[int]]] = [[] for _ in range(top_paths)]
    scores = np.zeros(inputs.shape[1:2] + (top_paths,), inputs.dtype)
    for b in range(inputs.shape[1]):
        found = _beam_search(log_p[: sequence_length[b], b], beam_width)[:top_paths]
        if len(found) < top_paths:
            raise InvalidArgumentError("Less leaves in the beam search than requested.")
        for k, (labels, score) in enumerate(found):
            decoded[k].append(_once(labels) if merge_repeated else labels)
            scores[b, k] = score
    parts = [_as_sparse(rows) for rows in decoded]
    return [*(part[i] for i in range(3) for part in parts), scores]


def _beam_search(log_p: np.ndarray, width: int) -> list[tuple[list[int], float]]:
    """The most likely label sequences with the logs of their probabilities, best first."""
    blank = log_p.shape[1] - 1
    prefixes: list[tuple[int, int]] = [(-1, -1)]  # each is (index of the prefix that it extends, last label)
    known = {(-1, -1): 0}
    beams = np.array([0])
    ends_blank, ends_label = np.array([0.0]), np.array([_NEVER])
    with np.errstate(all="ignore"):
        for now in log_p:
            last = np.array([prefixes[p][1] for p in beams])
            total = np.logaddexp(ends_blank, ends_label)
            stay_blank = total + now[blank]
            stay_label = np.where(last >= 0, ends_label + now[last], _NEVER)
            grown = total[:, None] + now[None, :blank]
            # A repeated label makes a longer sequence only after a blank.
            again = last >= 0
            grown[again, last[again]] = ends_blank[again] + now[last[again]]
            at = {int(p): i for i, p in enumerate(beams)}
            longer: dict[tuple[int, int], int] = {}
            for i, prefix in enumerate(beams):
                parent = at.get(prefixes[prefix][0])
                if parent is not None:
                    stay_label[i] = np.logaddexp(stay_label[i], grown[parent, last[i]])
                    longer[parent, int(last[i])] = i
            stay = np.logaddexp(stay_blank, stay_label)
            next_beams, next_blank, next_label = [], [], []
            for score, row, label in _best(stay, grown, total, longer, width):
                if label < 0:
                    next_beams.append(int(beams[row]))
                    next_blank.append(stay_blank[row])
                    next_label.append(stay_label[row])
                    continue
                key = (int(beams[row]), label)
                if key not in known:
                    known[key] = len(prefixes)
                    prefixes.append(key)
                next_beams.append(known[key])
                next_blank.append(_NEVER)
                next_label.append(score)
            beams = np.array(next_beams, int)
            ends_blank, ends_label = np.array(next_blank), np.array(next_label)
        total = np.logaddexp(ends_blank, ends_label)
    order = np.argsort(-total, kind="stable")
    return [(_spelled(prefixes, int(beams[i])), float(total[i])) for i in order]


def _best(
    stay: np.ndarray, grown: np.ndarray, total: np.ndarray, longer: dict[tuple[int, int], int], width: int
) -> list[tuple[float, int, int]]:
    """The best of the unchanged beams (label -1) and of those that are one label longer, as (score, beam, label).

    `longer` has the extensions that are beams already. As in TensorFlow, beams grow in the order of their scores. One
    that was pushed out, and whose score is too low to come back from the beam that it extends, does not grow any more.
    """
    heap = [(float(score), row, -1) for row, score in enumerate(stay)]
    heapq.heapify(heap)
    out, dead = set(), set()
    for row in np.argsort(-total, kind="stable").tolist():
        floor = heap[0][0] if len(heap) == width else _NEVER
        if row in dead or not total[row] > floor:
            continue
        for label in range(grown.shape[1]):
            score = float(grown[row, label])
            itself = longer.get((row, label))
            if itself is not None and itself not in out:
                continue
            if not score > (heap[0][0] if len(heap) == width else _NEVER):
                if itself is not None:
                    dead.add(itself)
            elif len(heap) < width:
                heapq.heappush(heap, (score, row, label))
            else:
                _, lost, kept = heapq.heapreplace(heap, (score, row, label))
                if kept < 0:
                    out.add(lost)
    return sorted((entry for entry in heap if entry[0] > _NEVER), key=lambda entry: -entry[0])


def _spelled(prefixes: list[tuple[int, int]], prefix: int) -> list[int]:
    labels = []
    while prefix > 0:
        prefix, label = prefixes[prefix]
        labels.append(label)
    return labels[::-1]


# TensorFlow's functions.


def ctc_loss(
    labels: TensorLike,
    inputs: TensorLike = None,
    sequence_length: TensorLike = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: TensorLike = None,
) -> Tensor:
    """Minus the log of the probability of each label sequence, given logits [time, batch, classes with blank last].

    >>> tf.nn.ctc_loss(sparse_labels, logits, sequence_length)
    """
    if not isinstance(labels, SparseTensor):
        raise TypeError(f"ctc_loss: labels must be a SparseTensor, received {type(labels).__name__}.")
    inputs = logits if inputs is None else inputs
    if not time_major:
        inputs = arranging.transpose(inputs, [1, 0, 2])
    loss: Tensor
    loss, _ = ctc_loss_op(
        inputs,
        labels.indices,
        labels.values,
        sequence_length,
        preprocess_collapse_repeated=preprocess_collapse_repeated,
        ctc_merge_repeated=ctc_merge_repeated,
        ignore_longer_outputs_than_inputs=ignore_longer_outputs_than_inputs,
    )
    return loss


def ctc_greedy_decoder(
    inputs: TensorLike, sequence_length: TensorLike, merge_repeated: bool = True, blank_index: int | None = None
) -> tuple[list[SparseTensor], Tensor]:
    """The labels of the most likely class at each time, and minus the sum of their logits.

    >>> [labels], score = tf.nn.ctc_greedy_decoder(logits, sequence_length)
    """
    indices, values, shape, score = ctc_greedy_decoder_op(
        inputs, sequence_length, merge_repeated=merge_repeated, blank_index=-1 if blank_index is None else blank_index
    )
    return [SparseTensor(indices, values, shape)], score


def ctc_beam_search_decoder(
    inputs: TensorLike,
    sequence_length: TensorLike,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """The `top_paths` most likely label sequences, by beam search, and the logs of their probabilities.

    With `merge_repeated`, repeated labels in a result appear once.

    >>> [labels], log_probability = tf.nn.ctc_beam_search_decoder(logits, sequence_length, merge_repeated=False)
    """
    indices, values, dense_shapes, scores = ctc_beam_search_decoder_op(
        inputs, sequence_length, beam_width=beam_width, top_paths=top_paths, merge_repeated=merge_repeated
    )
    paths = zip(indices, values, dense_shapes, strict=True)
    return [SparseTensor(*parts) for parts in paths], scores


def ctc_beam_search_decoder_v2(
    inputs: TensorLike, sequence_length: TensorLike, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """`ctc_beam_search_decoder` that keeps repeated labels.

    >>> [labels], log_probability = tf.nn.ctc_beam_search_decoder_v2(logits, sequence_length)
    """
    return ctc_beam_search_decoder(inputs, sequence_length, beam_width, top_paths, merge_repeated=False)
