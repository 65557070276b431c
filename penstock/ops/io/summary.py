"""Summaries: ops that turn tensors into Summary protos for TensorBoard."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from tensorboard.compat.proto import summary_pb2

from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.opdef import op
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import REALS


@op("ScalarSummary", "string, T -> summary: string", host=True, no_gradient=True, shape=shapes.scalar, T=REALS)
def scalar_summary(tags: Any, values: Any) -> Any:
    if np.shape(tags) != np.shape(values):
        raise InvalidArgumentError(f"tags and values are not the same shape: {np.shape(tags)} != {np.shape(values)}")
    summary = summary_pb2.Summary()
    for tag, value in zip(np.ravel(tags), np.ravel(values), strict=True):
        summary.value.add(tag=tag.decode(), simple_value=float(value))
    return np.array(summary.SerializeToString(), object)


@functools.cache
def _bucket_limits() -> np.ndarray:
    """TensorFlow's buckets: powers of 1.1 from 1e-12 to 1e20, both signs."""
    positive = [1e-12]
    while positive[-1] < 1e20:
        positive.append(positive[-1] * 1.1)
    positive[-1] = np.finfo(np.float64).max
    return np.array([-v for v in reversed(positive)] + [0.0] + positive)


@op("HistogramSummary", "string, T -> summary: string", host=True, no_gradient=True, shape=shapes.scalar, T=REALS)
def histogram_summary(tag: Any, values: Any) -> Any:
    flat = np.ravel(values).astype(np.float64)
    if not np.isfinite(flat).all():
        raise InvalidArgumentError(f"Nan in summary histogram for: {np.ravel(tag)[0].decode()}")
    limits = _bucket_limits()
    counts = np.bincount(np.searchsorted(limits, flat, side="right"), minlength=len(limits))[: len(limits)]
    summary = summary_pb2.Summary()
    histogram = summary.value.add(tag=np.ravel(tag)[0].decode()).histo
    histogram.num = flat.size
    histogram.sum, histogram.sum_squares = float(flat.sum()), float((flat * flat).sum())
    histogram.min = float(flat.min()) if flat.size else float(np.finfo(np.float64).max)
    histogram.max = float(flat.max()) if flat.size else float(-np.finfo(np.float64).max)
    _fill_buckets(histogram, limits, counts)
    return np.array(summary.SerializeToString(), object)


def _fill_buckets(histogram: Any, limits: np.ndarray, counts: np.ndarray) -> None:
    """Fills the histogram's buckets; consecutive empty ones are written as one."""
    i = 0
    while i < len(counts):
        end, count = limits[i], counts[i]
        i += 1
        if count <= 0:
            while i < len(counts) and counts[i] <= 0:
                end = limits[i]
                i += 1
        histogram.bucket_limit.append(float(end))
        histogram.bucket.append(float(count))
    if not counts.any():
        del histogram.bucket_limit[:], histogram.bucket[:]
        histogram.bucket_limit.append(float(limits[-1]))
        histogram.bucket.append(0.0)


@op("MergeSummary", "N*string -> summary: string", host=True, no_gradient=True, shape=shapes.scalar)
def merge_summary(inputs: list[Any]) -> Any:
    merged = summary_pb2.Summary()
    seen: set[str] = set()
    for serialized in inputs:
        for text in np.ravel(serialized):
            for value in summary_pb2.Summary.FromString(text).value:
                if value.tag in seen:
                    raise InvalidArgumentError(f"Duplicate tag {value.tag} found in summary inputs")
                seen.add(value.tag)
                merged.value.add().CopyFrom(value)
    return np.array(merged.SerializeToString(), object)


def _clean(name: str) -> str:
    """A valid node name: other characters become '_'."""
    cleaned = re.sub(r"[^-/\w\.]", "_", name).lstrip("/")
    return cleaned


class summary_scope:
    """The name scope of a summary's nodes. It has the tag, and adds the summary to its collections.

    >>> with summary_scope("loss", "scalar", None, None, [loss]) as scope:
    ...     return scope.add(scalar_summary(scope.tag("tags"), loss, name=scope.name))
    """

    def __init__(self, name: str, default: str, family: str | None, collections: Any, values: list[Any]) -> None:
        self._family = family
        self._collections = [GraphKeys.SUMMARIES] if collections is None else collections
        cleaned = _clean(name)
        self._scope = name_scope(f"{_clean(family)}/{cleaned}" if family else cleaned, default, values)
        self.name = ""

    def __enter__(self) -> summary_scope:
        self.name = self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._scope.__exit__(*error)

    def tag(self, node_name: str) -> Tensor:
        """The tag as a constant node called `name`."""
        tag = self.name.rstrip("/")
        return convert_to_tensor(f"{self._family}/{tag}" if self._family else tag, name=node_name)

    def add(self, tensor: Tensor) -> Tensor:
        """Adds `tensor` to the collections and returns it."""
        get_default_graph().add_to_collections(self._collections, tensor)
        return tensor


def scalar(name: str, tensor: TensorLike, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of one number.

    >>> tf.summary.scalar("loss", loss)
    """
    with summary_scope(name, "scalar", family, collections, [tensor]) as scope:
        return scope.add(scalar_summary(scope.tag("tags"), tensor, name=scope.name))


def histogram(name: str, values: TensorLike, collections: Any = None, family: str | None = None) -> Tensor:
    """A summary of how values are distributed.

    >>> tf.summary.histogram("weights", w)
    """
    with summary_scope(name, "histogram_summary", family, collections, [values]) as scope:
        return scope.add(histogram_summary(scope.tag("tag"), values, name=scope.name))


def merge(inputs: TensorLike, collections: Any = None, name: str | None = None) -> Tensor:
    """One summary of several."""
    with name_scope(name, "Merge", inputs):
        tensor: Tensor = merge_summary(list(inputs), name=name)
    get_default_graph().add_to_collections(collections or [], tensor)
    return tensor


def merge_all(key: Any = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """One summary of all in a collection of the default graph, or None if there are none."""
    found = get_default_graph().get_collection(key, scope)
    return merge(found, name=name) if found else None
