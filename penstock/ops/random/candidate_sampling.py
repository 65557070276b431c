"""Samplers of classes: they choose a few candidates to stand for all wrong classes of a large vocabulary."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.graph.opdef import OpDef, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.types import Array
from penstock.ops.random import philox
from penstock.ops.random.stateful import seeds

_SAMPLER = "int64 -> sampled_candidates: int64, true_expected_count: float32, sampled_expected_count: float32"
_LARGEST_VOCABULARY = 2**24  # lines read from a vocabulary file

Probability = Callable[[Array], Array]


class Candidates(NamedTuple):
    """The result of a sampler: classes, and the expected counts of the true and the sampled ones in a sample."""

    sampled_candidates: Any
    true_expected_count: Any
    sampled_expected_count: Any


def _shape(op: Operation) -> list[TensorShape]:
    rows = op.input_list[0].shape.with_rank(2).as_list()[0]
    count, true = op.attrs["num_sampled"], op.attrs["num_true"]
    if count < 1 or true < 1:
        raise ValueError(f"num_sampled and num_true must be positive, received {count} and {true}")
    return [TensorShape.of((count,)), TensorShape.of((rows, true)), TensorShape.of((count,))]


def _check(true_classes: Array, num_true: int, num_sampled: int, unique: bool, range_max: int) -> None:
    if true_classes.ndim != 2 or true_classes.shape[1] != num_true:
        raise ValueError(f"true_classes must be a matrix with num_true = {num_true} columns, got {true_classes.shape}")
    if unique and num_sampled > range_max:
        raise ValueError(f"Sampler's range is too small: {num_sampled} different ones of {range_max} classes")


def _uniform(key: Array, count: int) -> Array:
    """Numbers in [0, 1), float64: a vocabulary may have more classes than float32 has numbers there."""
    return (philox.wide_words(key, count) >> np.uint64(11)).astype(jnp.float64) * 2.0**-53


def _drawn(
    draw: Callable[[Array, int], Array], key: Array, count: int, unique: bool, range_max: int
) -> tuple[Array, Array]:
    """`count` classes, and the number of draws: more than `count` if repetitions were dropped."""
    if not unique:
        return draw(key, count), jnp.asarray(count)

    def more(state: Any) -> Array:
        return state[2] < count

    def a_round(state: Any) -> Any:
        chosen, seen, found, tries, key = state
        batch = draw(key, count)
        order = jnp.argsort(batch, stable=True)
        ordered = batch[order]
        repeats = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] == ordered[:-1]])
        new = ~seen[batch] & ~jnp.zeros(count, bool).at[order].set(repeats)
        place = found + jnp.cumsum(new) - 1
        taken = new & (place < count)
        chosen = chosen.at[jnp.where(taken, place, count)].set(batch, mode="drop")
        seen = seen.at[jnp.where(taken, batch, range_max)].set(True, mode="drop")
        # The last round ends with the draw that completes the sample.
        used = jnp.where(place[-1] + 1 >= count, jnp.argmax(place + 1 >= count) + 1, count)
        return chosen, seen, jnp.minimum(place[-1] + 1, count), tries + used, key.at[1].add(np.uint64(count))

    start = (jnp.zeros(count, jnp.int64), jnp.zeros(range_max, bool), jnp.asarray(0), jnp.asarray(0), jnp.asarray(key))
    chosen, _, _, tries, _ = lax.while_loop(more, a_round, start)
    return chosen, tries


def _expected(p: Any, tries: Any, unique: bool) -> Any:
    """The expected count of a class of probability `p` in the sample: at most 1 if the sample is unique."""
    module = jnp if isinstance(tries, jnp.ndarray) else np
    count = -module.expm1(tries * module.log1p(-p)) if unique else p * tries
    return count.astype(np.float32)


def _sample(
    true_classes: Array,
    draw: Callable[[Array, int], Array],
    probability: Probability,
    key: Array,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
) -> tuple[Array, Array, Array]:
    _check(true_classes, num_true, num_sampled, unique, range_max)
    chosen, tries = _drawn(draw, key, num_sampled, unique, range_max)
    chosen, tries = jnp.asarray(chosen, jnp.int64), jnp.asarray(tries, jnp.float64)
    return (chosen, _expected(probability(true_classes), tries, unique), _expected(probability(chosen), tries, unique))


@op("UniformCandidateSampler", _SAMPLER, random=True, no_gradient=True, shape=_shape)
def uniform_candidate_sampler_op(
    true_classes: Array,
    *,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int = 0,
    seed2: int = 0,
    key: Array,
) -> tuple[Array, Array, Array]:
    def draw(key: Array, count: int) -> Array:
        return jnp.minimum((_uniform(key, count) * range_max).astype(jnp.int64), range_max - 1)

    def probability(classes: Array) -> Array:
        return jnp.full(classes.shape, 1 / range_max)

    return _sample(true_classes, draw, probability, key, num_true, num_sampled, unique, range_max)


@op("LogUniformCandidateSampler", _SAMPLER, random=True, no_gradient=True, shape=_shape)
def log_uniform_candidate_sampler_op(
    true_classes: Array,
    *,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int = 0,
    seed2: int = 0,
    key: Array,
) -> tuple[Array, Array, Array]:
    """P(class) = log((class + 2) / (class + 1)) / log(range_max + 1): Zipf's law, for classes by falling frequency."""
    log_range = np.log1p(range_max)

    def draw(key: Array, count: int) -> Array:
        return jnp.clip(jnp.exp(_uniform(key, count) * log_range).astype(jnp.int64) - 1, 0, range_max - 1)

    def probability(classes: Array) -> Array:
        return jnp.log((classes + 2.0) / (classes + 1.0)) / log_range

    return _sample(true_classes, draw, probability, key, num_true, num_sampled, unique, range_max)


@op("FixedUnigramCandidateSampler", _SAMPLER, random=True, no_gradient=True, shape=_shape)
def fixed_unigram_candidate_sampler_op(
    true_classes: Array,
    *,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: list[float] = [],  # noqa: B006
    seed: int = 0,
    seed2: int = 0,
    key: Array,
) -> tuple[Array, Array, Array]:
    """P(class) in proportion to a frequency, from `unigrams` or a file, to the power of `distortion`."""
    weights = _weights(vocab_file, tuple(unigrams), distortion, num_reserved_ids, num_shards, shard)
    if len(weights) != range_max:
        raise ValueError(f"range_max is {range_max}, but there are {len(weights)} frequencies and reserved ids")
    if unique and np.count_nonzero(weights) < num_sampled:
        raise ValueError(f"Sampler's range is too small: {num_sampled} of {np.count_nonzero(weights)} classes")
    shares = weights / weights.sum()
    upto = jnp.asarray(np.cumsum(shares))
    last = int(np.flatnonzero(weights)[-1])

    def draw(key: Array, count: int) -> Array:
        return jnp.minimum(jnp.searchsorted(upto, _uniform(key, count), side="right"), last)

    def probability(classes: Array) -> Array:
        known = (classes >= 0) & (classes < range_max)
        return jnp.where(known, jnp.asarray(shares)[jnp.clip(classes, 0, range_max - 1)], 0.0)

    return _sample(true_classes, draw, probability, key, num_true, num_sampled, unique, range_max)


@functools.lru_cache(maxsize=8)
def _weights(
    vocab_file: str, unigrams: tuple[float, ...], distortion: float, reserved: int, shards: int, shard: int
) -> np.ndarray:
    if bool(vocab_file) == bool(unigrams):
        raise ValueError("exactly one of vocab_file and unigrams must be given")
    if not 0 <= shard < shards:
        raise ValueError(f"shard must be in [0, num_shards = {shards}), received {shard}")
    given = np.array(_frequencies(vocab_file) if vocab_file else unigrams, np.float64) ** distortion
    weights = np.concatenate([np.zeros(reserved), given])
    weights[np.arange(len(weights)) % shards != shard] = 0
    if not weights.sum() > 0 or not np.isfinite(weights).all():
        raise ValueError("the frequencies must be finite and not all zero")
    return weights


def _frequencies(vocab_file: str) -> list[float]:
    """The last comma-separated field of each line."""
    try:
        with open(vocab_file, encoding="utf-8") as lines:
            found = [float(line.rstrip("\n").rsplit(",", 1)[-1]) for line in lines if line.strip()]
    except OSError as error:
        raise NotFoundError(f"vocab_file {vocab_file!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgumentError(f"vocab_file {vocab_file!r}: lines must end in a number") from error
    if len(found) > _LARGEST_VOCABULARY:
        raise InvalidArgumentError(f"vocab_file {vocab_file!r} has over {_LARGEST_VOCABULARY} lines")
    return found


@op("AllCandidateSampler", _SAMPLER, stateful=True, no_gradient=True, shape=_shape)
def all_candidate_sampler_op(
    true_classes: Array, *, num_true: int, num_sampled: int, unique: bool, seed: int = 0, seed2: int = 0
) -> tuple[Array, Array, Array]:
    _check(true_classes, num_true, num_sampled, unique, num_sampled)
    ones = functools.partial(jnp.ones, dtype=jnp.float32)
    return jnp.arange(num_sampled, dtype=jnp.int64), ones(true_classes.shape), ones(num_sampled)


class _Learned:
    """Frequencies of the classes seen so far; each starts at 1."""

    kind = "CandidateSampler"

    def __init__(self, range_max: int, seeds: tuple[int, int]) -> None:
        self.counts = np.ones(range_max)
        self.random = np.random.default_rng(seeds if any(seeds) else None)
        self.lock = threading.Lock()

    def sample(self, true_classes: np.ndarray, count: int, unique: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with self.lock:
            upto = np.cumsum(self.counts)
            chosen: list[int] = []
            seen: set[int] = set()
            tries = 0
            while len(chosen) < count:
                for each in np.searchsorted(upto, self.random.random(count) * upto[-1], side="right").tolist():
                    tries += 1
                    if not unique or each not in seen:
                        seen.add(each)
                        chosen.append(each)
                    if len(chosen) == count:
                        break
            shares = self.counts / upto[-1]
            np.add.at(self.counts, true_classes.reshape(-1), 1)
        picked = np.array(chosen, np.int64)
        times = np.float64(tries if unique else count)
        return picked, _expected(shares[true_classes], times, unique), _expected(shares[picked], times, unique)


def _learned(name: str) -> OpDef:
    @op(name, _SAMPLER, host=True, stateful=True, no_gradient=True, shape=_shape)
    def sampler(
        true_classes: np.ndarray,
        *,
        num_true: int,
        num_sampled: int,
        unique: bool,
        range_max: int,
        seed: int = 0,
        seed2: int = 0,
        resource: Any,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        try:
            _check(true_classes, num_true, num_sampled, unique, range_max)
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from error
        if true_classes.size and not 0 <= true_classes.min() <= true_classes.max() < range_max:
            raise InvalidArgumentError(f"true_classes must be in [0, {range_max}), got {true_classes}")
        state: _Learned = resource(lambda _: _Learned(range_max, (seed, seed2)))
        return state.sample(true_classes, num_sampled, unique)

    return sampler


learned_unigram_candidate_sampler_op = _learned("LearnedUnigramCandidateSampler")
thread_unsafe_unigram_candidate_sampler_op = _learned("ThreadUnsafeUnigramCandidateSampler")


# TensorFlow's functions.


def uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Candidates from [0, range_max), all equally likely.

    >>> sampled, true_counts, sampled_counts = tf.nn.uniform_candidate_sampler(labels, 1, 64, True, 10000)
    """
    return Candidates(
        *uniform_candidate_sampler_op(
            true_classes,
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            name=name,
            **seeds(seed),
        )
    )


def log_uniform_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Candidates by Zipf's law: for vocabularies sorted by falling frequency.

    >>> sampled, true_counts, sampled_counts = tf.nn.log_uniform_candidate_sampler(labels, 1, 64, True, 10000)
    """
    return Candidates(
        *log_uniform_candidate_sampler_op(
            true_classes,
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            name=name,
            **seeds(seed),
        )
    )


def learned_unigram_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Candidates drawn as often as they were true classes in the steps so far.

    >>> sampled, true_counts, sampled_counts = tf.nn.learned_unigram_candidate_sampler(labels, 1, 64, True, 10000)
    """
    return Candidates(
        *learned_unigram_candidate_sampler_op(
            true_classes,
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            name=name,
            **seeds(seed),
        )
    )


def fixed_unigram_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Any = (),
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Candidates by given frequencies, from a file (the last field of each line) or a list.

    >>> tf.nn.fixed_unigram_candidate_sampler(labels, 1, 64, False, 10000, unigrams=counts, distortion=0.75)
    """
    return Candidates(
        *fixed_unigram_candidate_sampler_op(
            true_classes,
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            vocab_file=vocab_file,
            distortion=distortion,
            num_reserved_ids=num_reserved_ids,
            num_shards=num_shards,
            shard=shard,
            unigrams=[float(u) for u in unigrams],
            name=name,
            **seeds(seed),
        )
    )


def all_candidate_sampler(
    true_classes: TensorLike,
    num_true: int,
    num_sampled: int,
    unique: bool,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Every class from 0 to num_sampled - 1: the exact loss, to compare samplers with.

    >>> tf.nn.all_candidate_sampler(labels, 1, 1000, True)
    """
    return Candidates(
        *all_candidate_sampler_op(
            true_classes, num_true=num_true, num_sampled=num_sampled, unique=unique, name=name, **seeds(seed)
        )
    )
