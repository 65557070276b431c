"""Ops for lookups in tables that are split into shards. Passes put them in place of many small ops.

`_DealIds`, `_JoinShards` and `_RowsOfShard` stand for one lookup, with `_SpreadRows` and `_SumRows` if an id may
be in it twice. `_PlanLookups`, `_CombineLookups` and `_SpreadLookups` stand for several at once, with the sums or means
of their rows: a step of a model with many features spends its time on the number of ops, not on their work.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.checks import require_in_range
from penstock.graph.opdef import op
from penstock.kernel.types import INDEX, INDEX32, Array
from penstock.memory import aligned_empty
from penstock.ops.math.segments import check_sorted
from penstock.ops.sparse.segments import check_pairs, divided_by_counts
from penstock.row_sums import distinct_and_ranks, spread_by_runs, sums_of_runs


@dataclass(frozen=True)
class _Keys:
    """Ids of one lookup as numbers that sort by shard and row."""

    values: np.ndarray
    first: list[int]  # the least number of each shard, and the limit of all
    low: int  # what is added to a number, less the first of its shard, to get a row

    @classmethod
    def of(cls, ids: np.ndarray, shards: int, table_rows: int) -> _Keys:
        """The keys of ids. The table has contiguous shards ("div"); if `table_rows` is 0, row i is in shard i % n."""
        if table_rows:
            require_in_range(ids, table_rows, "ids")
            return cls(ids, _first_rows(shards, table_rows), 0)
        row = ids // shards
        low, high = (int(row.min()), int(row.max())) if row.size else (0, 0)
        first = [i * (high - low + 1) for i in range(shards + 1)]
        return cls(ids.astype(np.int64) % shards * first[1] + (row - low), first, low)


@functools.cache
def _first_rows(shards: int, table_rows: int) -> list[int]:
    """The first row of each contiguous shard of a table, and the number of rows."""
    each, extra = divmod(table_rows, shards)
    return [i * each + min(i, extra) for i in range(shards + 1)]


@op("_DealIds", "T -> y: T, idx: int32, rows: N*T, places: N*int32", host=True, no_gradient=True, T=INDEX)
def deal_ids(ids: Array, *, N: int, table_rows: int) -> Any:
    """The distinct ids, the place of each id among them, and for each shard of the table their rows and places.

    The distinct ids are in the order of shards and rows, so each shard has consecutive places and rising rows.
    """
    wanted = np.asarray(ids)
    keys = _Keys.of(wanted.reshape(-1), N, table_rows)
    first = keys.first
    distinct, idx = distinct_and_ranks(keys.values, first[-1])
    ends = distinct.searchsorted(first).tolist()
    rows = [
        (distinct[begin:end] + (keys.low - start)).astype(wanted.dtype, copy=False)
        for begin, end, start in zip(ends, ends[1:], first, strict=False)
    ]
    if not table_rows:
        distinct = np.concatenate([row * N + i for i, row in enumerate(rows)])
    places = np.arange(len(distinct), dtype=np.int32)
    found = distinct.astype(wanted.dtype, copy=False)
    return found, idx.reshape(wanted.shape), *rows, *[places[begin:end] for begin, end in itertools.pairwise(ends)]


@op("_JoinShards", "N*T -> rows: T", host=True, no_gradient=True)
def join_shards(pieces: list[Array]) -> Array:
    """The rows that were looked up for the distinct ids of `_DealIds`, of all shards, in the order of the ids."""
    rows = [np.asarray(piece) for piece in pieces]
    length = sum(map(len, rows))
    # Aligned memory is read by compiled code without a copy.
    joined: np.ndarray = np.concatenate(rows, out=aligned_empty((length, *rows[0].shape[1:]), rows[0].dtype))
    return joined


@op("_RowsOfShard", "T, int32 -> rows: T", host=True, no_gradient=True)
def rows_of_shard(values: Array, places: Array) -> Array:
    """The rows at the places that `_DealIds` gives for a shard: these follow each other."""
    rows, count = np.asarray(values), len(places)
    first = int(places[0]) if count else 0
    if first + count > len(rows):
        raise InvalidArgumentError(f"There are {len(rows)} rows, places {first} to {first + count - 1} were asked for.")
    return rows[first : first + count]


@op("_SpreadRows", "T, int32 -> rows: T", host=True, no_gradient=True)
def spread_rows(rows: Array, idx: Array) -> Array:
    """For each id its row among those of the distinct ids."""
    found, places = np.asarray(rows), np.asarray(idx)
    if places.size and int(places.max()) >= len(found):
        raise InvalidArgumentError(f"There are {len(found)} rows, row {int(places.max())} was asked for.")
    spread = aligned_empty((*places.shape, *found.shape[1:]), found.dtype)  # compiled code reads it without a copy
    return np.take(found, places, axis=0, out=spread, mode="clip")  # which it writes directly, unlike "raise"


@op("_SumRows", "T, int32 -> sums: T", host=True, no_gradient=True)
def sum_rows(values: Array, idx: Array) -> Array:
    """For each distinct id the sum of the rows of its places: what `_SpreadRows` does, backwards."""
    rows, places = np.asarray(values), np.asarray(idx).reshape(-1)
    if len(rows) != len(places):
        raise InvalidArgumentError(f"There are {len(rows)} rows for {len(places)} ids.")
    count = int(places.max()) + 1 if places.size else 0
    return spread_by_runs(rows, np.arange(len(places) + 1, dtype=np.int32), places, count)


@dataclass(frozen=True)
class LookupPlan:
    """Several lookups as one: the distinct rows of all, and which of them each segment of ids picks."""

    picked: np.ndarray  # for each id its row among the distinct rows of all lookups
    ends: np.ndarray  # the ends of the segments among the ids
    row_ends: list[int]  # of each shard of each lookup among the distinct rows
    segment_ends: list[int]  # of each lookup among the segments


@op(
    "_PlanLookups",
    "M*T, M*Tsegmentids -> rows: K*T, plan: variant",
    host=True,
    no_gradient=True,
    T=INDEX,
    Tsegmentids=INDEX32,
)
def plan_lookups(
    ids: list[Array], segment_ids: list[Array], *, N: int, table_rows: list[int], stands_for: list[str]
) -> Any:
    """The rows that lookups need of each of N shards, those of the first lookup first, and what follows from them.

    Errors name the nodes that this stands for: those that deal ids out, then those that sum rows.
    """
    lookups, sums = stands_for[: len(ids)], stands_for[len(ids) :]
    keys: list[np.ndarray] = []
    first, lows = [0], list[int]()
    for each, segment, rows, total in zip(ids, segment_ids, table_rows, sums, strict=True):
        _blaming(total, check_pairs, each, segment)
        found = _Keys(each, _first_rows(N, rows), 0) if rows else _Keys.of(each, N, rows)
        base = first[-1]
        keys.append(found.values)
        first += [base + start for start in found.first[1:]]
        lows += [found.low - start for start in first[-N - 1 : -1]]
    ends = [0, *itertools.accumulate(map(len, ids))]
    every = np.concatenate(keys).astype(np.int64, copy=False)
    # One look at all ids, and only if it finds one that may be too large, or negative, a look at those of each lookup.
    if every.size and every.view(np.uint64).max() >= min(table_rows):
        for each, rows, lookup in zip(ids, table_rows, lookups, strict=True):
            if rows:
                _blaming(lookup, require_in_range, each, rows, "ids")
    for begin, end, base in zip(ends, ends[1:], first[::N], strict=False):
        every[begin:end] += base
    distinct, picked = distinct_and_ranks(every, first[-1])
    row_ends = distinct.searchsorted(first).tolist()
    rows_of_shards = [
        (distinct[begin:end] + low).astype(ids[0].dtype, copy=False)
        for begin, end, low in zip(row_ends, row_ends[1:], lows, strict=False)
    ]
    segments, segment_ends = _joined_segments(segment_ids, sums)
    run_ends = np.zeros(segment_ends[-1] + 1, np.int32)
    run_ends[1:] = np.cumsum(np.bincount(segments, minlength=segment_ends[-1]))
    return *rows_of_shards, LookupPlan(picked, run_ends, row_ends, segment_ends)


def _joined_segments(segment_ids: list[Array], sums: list[str]) -> tuple[np.ndarray, list[int]]:
    """The segment of each id of all lookups, one lookup after the other, and the ends of each lookup's segments."""
    joined: np.ndarray = np.concatenate(segment_ids)
    ends, at, are_sorted = [0], 0, True
    for each in segment_ids:
        if len(each):
            joined[at : at + len(each)] += ends[-1]
            are_sorted = are_sorted and each[0] >= 0
            at += len(each)
        ends.append(ends[-1] + (int(each[-1]) + 1 if len(each) else 0))
    if not are_sorted or np.count_nonzero(joined[1:] < joined[:-1]):
        for each, total in zip(segment_ids, sums, strict=True):
            _blaming(total, check_sorted, each)
    return joined, ends


def _blaming(name: str, check: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function, whose errors name a node."""
    try:
        return check(*arguments)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(None, name, error.message) from error


@op("_CombineLookups", "variant, K*T -> output: M*T", host=True, no_gradient=True)
def combine_lookups(plan: LookupPlan, pieces: list[Array], *, power: float) -> Any:
    """The sums of the rows of each segment of ids over a power of their number, for each lookup."""
    combined = divided_by_counts(sums_of_runs(np.concatenate(pieces), plan.ends, plan.picked), plan.ends, power)
    return [combined[begin:end] for begin, end in itertools.pairwise(plan.segment_ends)]


@op("_SpreadLookups", "variant, M*T -> rows: K*T", host=True, no_gradient=True)
def spread_lookups(plan: LookupPlan, grads: list[Array], *, power: float, row_shape: list[int]) -> Any:
    """The gradients of the rows that were looked up, from those of the segments: the rows of each shard."""
    sizes = [end - begin for begin, end in itertools.pairwise(plan.segment_ends)]
    for grad, size in zip(grads, sizes, strict=True):
        if len(grad) < size:
            raise InvalidArgumentError(f"Segment id {size - 1} out of range [0, {len(grad)}).")
    values = np.concatenate([grad[:size] for grad, size in zip(grads, sizes, strict=True)])
    values = divided_by_counts(values, plan.ends, power)
    rows = spread_by_runs(values, plan.ends, plan.picked, plan.row_ends[-1]).reshape(-1, *row_shape)
    return [rows[begin:end] for begin, end in itertools.pairwise(plan.row_ends)]
