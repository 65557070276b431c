"""`tf.random.Generator`: a generator of random numbers whose state is a variable."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import init_scope, name_scope
from penstock.graph.shape import as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array import creation, joining, reshaping
from penstock.ops.math import arithmetic, casting, reduce
from penstock.ops.random import generator_ops, stateless
from penstock.ops.random.algorithms import Algorithm, algorithm_number, unknown_algorithm
from penstock.variables.variable import Variable

_FLOAT32, _INT64, _UINT64 = dt.float32, dt.int64, dt.uint64
_WORD = 1 << 64
_COUNTER_SIZES = {Algorithm.PHILOX.value: 2, Algorithm.THREEFRY.value: 1, Algorithm.AUTO_SELECT.value: 2}


def _state_size(alg: Any) -> int:
    if alg not in _COUNTER_SIZES:
        raise unknown_algorithm(alg)
    return _COUNTER_SIZES[alg] + 1  # and the key


def _signed(number: Any) -> Any:
    """A word of a state in the range of int64; tensors stay as they are."""
    return number - _WORD if isinstance(number, int) and number >= _WORD // 2 else number


def _as_state(value: Any) -> Any:
    """Words of a state as int64: an array if all are known, so that a variable can begin with it, else a tensor."""
    words = [_signed(v) for v in value] if isinstance(value, (list, tuple)) else _signed(value)
    if isinstance(words, (int, np.ndarray)) or (isinstance(words, list) and all(isinstance(w, int) for w in words)):
        return np.asarray(words, np.int64)
    return casting.cast(convert_to_tensor(words), _INT64)


def create_rng_state(seed: Any, alg: Any) -> Tensor:
    """The state of a generator, from a seed: an integer of any size, or a vector of int64.

    >>> tf.random.create_rng_state(1234, "philox")
    [1234, 0, 0]
    """
    return convert_to_tensor(_state_of_seed(seed, algorithm_number(alg)))


def _state_of_seed(seed: Any, alg: Any) -> Any:
    size = _state_size(alg)
    if isinstance(seed, int):
        return _as_state([seed >> 64 * i & _WORD - 1 for i in range(size)])
    given = _as_state(seed)
    if isinstance(given, np.ndarray):
        given = given.reshape(-1)[:size]
        return np.concatenate([np.zeros(size - len(given), np.int64), given])
    words: Any = reshaping.reshape(given, [-1])
    length: Any = reshaping.shape(words)
    missing = arithmetic.maximum(size - length[0], 0)
    state = joining.concat([creation.zeros([missing], _INT64), words[:size]], 0)
    state.set_shape([size])
    return state


class Generator:
    """Random numbers from a state, which changes with each call.

    >>> g = tf.random.Generator.from_seed(1234)
    >>> g.normal([2, 3])
    """

    def __init__(self, copy_from: Generator | None = None, state: Any = None, alg: Any = None) -> None:
        if copy_from is not None:
            if state is not None or alg is not None:
                raise ValueError("Generator takes either copy_from, or state and alg.")
            self._alg = copy_from.algorithm
            self._state_var = self._variable(copy_from.state.read_value())
            return
        if state is None or alg is None:
            raise ValueError("Generator needs both state and alg, or copy_from.")
        self._alg = algorithm_number(alg)
        given = state if isinstance(state, Variable) else _as_state(state)
        _check(given, self._alg)
        self._state_var = given if isinstance(given, Variable) else self._variable(given)

    @staticmethod
    def _variable(state: Any) -> Any:
        with name_scope("random_generator"):
            return Variable(state, dtype=_INT64, trainable=False, name="StateVar", use_resource=True)

    @classmethod
    def from_state(cls, state: Any, alg: Any) -> Generator:
        """A generator with a state: a counter of two numbers and a key, for Philox. A variable is used as it is."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_seed(cls, seed: Any, alg: Any = None) -> Generator:
        """A generator with the state that `create_rng_state` makes of a seed: `Generator.from_seed(1234)`."""
        number = Algorithm.PHILOX.value if alg is None else algorithm_number(alg)
        return cls(state=_state_of_seed(seed, number), alg=number)

    @classmethod
    def from_non_deterministic_state(cls, alg: Any = None) -> Generator:
        """A generator with a state that the operating system draws."""
        number = Algorithm.PHILOX.value if alg is None else algorithm_number(alg)
        return cls(state=generator_ops.non_deterministic_ints([_state_size(number)], dtype=_INT64), alg=number)

    @classmethod
    def from_key_counter(cls, key: Any, counter: Any, alg: Any) -> Generator:
        """A generator with a key, a number, and a counter: two numbers for Philox."""
        number = algorithm_number(alg)
        return cls(state=_joined(key, counter, number), alg=number)

    def reset(self, state: Any) -> None:
        """Sets the state."""
        value = _as_state(state)
        _check(value, self._alg)
        self._state_var.assign(value)

    def reset_from_seed(self, seed: Any) -> None:
        """Sets the state to the one that `from_seed` starts with."""
        self._state_var.assign(_state_of_seed(seed, self._alg))

    def reset_from_key_counter(self, key: Any, counter: Any) -> None:
        """Sets the state to a key and a counter."""
        self._state_var.assign(_joined(key, counter, self._alg))

    @property
    def state(self) -> Any:
        """The variable that holds the state."""
        return self._state_var

    @property
    def algorithm(self) -> Any:
        """The number of the algorithm."""
        return self._alg

    @property
    def key(self) -> Tensor:
        """The part of the state that does not change: generators of different keys have nothing in common."""
        found: Tensor = self._state_var.read_value()[-1]
        return found

    def skip(self, delta: TensorLike) -> Tensor:
        """Moves the state on as if `delta` numbers were drawn, and returns the state before."""
        number = casting.cast(self._alg, dt.int32)
        before: Tensor = generator_ops.rng_read_and_skip(self._state_var.handle, number, casting.cast(delta, _UINT64))
        return before

    def _key_and_counter(self, shape: Tensor) -> tuple[Tensor, Tensor]:
        state: Any = self.skip(reduce.reduce_prod(shape))
        size = _COUNTER_SIZES[self._alg]
        key, counter = state[size : size + 1], state[:size]
        return casting.bitcast(key, _UINT64), casting.bitcast(counter, _UINT64)

    def _draw(self, op: Any, shape: Tensor, *bounds: Any, **options: Any) -> Any:
        key, counter = self._key_and_counter(shape)
        return op(shape, key, counter, self._alg, *bounds, **options)

    def uniform(
        self,
        shape: ShapeLike,
        minval: TensorLike = 0,
        maxval: TensorLike = None,
        dtype: DTypeLike = _FLOAT32,
        name: str | None = None,
    ) -> Tensor:
        """Uniform numbers in [minval, maxval); integers of the whole range if both are None."""
        kind = as_dtype(dtype)
        if kind.is_integer and (minval is None) != (maxval is None):
            raise ValueError(
                f"For integer dtype {kind.name}, minval and maxval must be both `None` or both non-`None`; got "
                f"minval={minval} and maxval={maxval}"
            )
        if maxval is None and not kind.is_integer:
            maxval = 1
        with name_scope(name, "stateful_uniform", [shape, minval, maxval]) as scope:
            dims = _shape_tensor(shape)
            if minval is None:
                whole: Tensor = self._draw(stateless.stateless_random_uniform_full_int_v2, dims, dtype=kind, name=scope)
                return whole
            low = convert_to_tensor(minval, dtype=kind, name="min")
            high: Any = convert_to_tensor(maxval, dtype=kind, name="max")
            if kind.is_integer:
                found: Tensor = self._draw(stateless.stateless_random_uniform_int_v2, dims, low, high, name=scope)
                return found
            drawn = self._draw(stateless.stateless_random_uniform_v2, dims, dtype=kind)
            return arithmetic.add(drawn * (high - low), low, name=scope)

    def uniform_full_int(self, shape: ShapeLike, dtype: DTypeLike = _UINT64, name: str | None = None) -> Tensor:
        """Integers from the whole range of a type."""
        with name_scope(name, "stateful_uniform_full_int", [shape]) as scope:
            draw = stateless.stateless_random_uniform_full_int_v2
            found: Tensor = self._draw(draw, _shape_tensor(shape), dtype=as_dtype(dtype), name=scope)
            return found

    def normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = _FLOAT32,
        name: str | None = None,
    ) -> Tensor:
        """Normal numbers."""
        with name_scope(name, "stateful_normal", [shape, mean, stddev]) as scope:
            return self._scaled(stateless.stateless_random_normal_v2, shape, mean, stddev, dtype, scope)

    def truncated_normal(
        self,
        shape: ShapeLike,
        mean: TensorLike = 0.0,
        stddev: TensorLike = 1.0,
        dtype: DTypeLike = _FLOAT32,
        name: str | None = None,
    ) -> Tensor:
        """Normal numbers within two standard deviations of the mean."""
        with name_scope(name, "truncated_normal", [shape, mean, stddev]) as scope:
            return self._scaled(stateless.stateless_truncated_normal_v2, shape, mean, stddev, dtype, scope)

    def _scaled(self, op: Any, shape: Any, mean: Any, stddev: Any, dtype: Any, name: str) -> Tensor:
        dims = _shape_tensor(shape)
        mean = convert_to_tensor(mean, dtype=dtype, name="mean")
        stddev = convert_to_tensor(stddev, dtype=dtype, name="stddev")
        return arithmetic.add(self._draw(op, dims, dtype=as_dtype(dtype)) * stddev, mean, name=name)

    def binomial(
        self,
        shape: ShapeLike,
        counts: TensorLike,
        probs: TensorLike,
        dtype: DTypeLike = dt.int32,
        name: str | None = None,
    ) -> Tensor:
        """The number of successes in `counts` tries of probability `probs`. `shape` ends with the shape of these."""
        with name_scope(name, "binomial", [shape, counts, probs]) as scope:
            counts = convert_to_tensor(counts, name="counts")
            probs = convert_to_tensor(probs, name="probs")
            dims = _shape_tensor(shape)
            found: Tensor = generator_ops.stateful_random_binomial(
                self._state_var.handle, self._alg, dims, counts, probs, dtype=as_dtype(dtype), name=scope
            )
            return found

    def make_seeds(self, count: int = 1) -> Tensor:
        """Seeds for stateless ops, one in each column: [2, count]."""
        keys = self.uniform_full_int([count], _INT64)
        return joining.stack([keys, creation.zeros_like(keys)])

    def split(self, count: int = 1) -> list[Generator]:
        """New generators whose numbers have nothing in common with each other's or with this one's."""
        keys: Any = self.uniform_full_int([count], _INT64)
        zeros = [0] * _COUNTER_SIZES[self._alg]
        return [Generator.from_key_counter(keys[i], zeros, self._alg) for i in range(count)]


def _shape_tensor(shape: Any) -> Tensor:
    empty = isinstance(shape, (list, tuple)) and not shape
    return convert_to_tensor(shape, dtype=_INT64 if empty else None, name="shape")


def _check(state: Any, alg: Any) -> None:
    as_shape(state.shape).assert_is_compatible_with([_state_size(alg)])


def _joined(key: Any, counter: Any, alg: Any) -> Tensor:
    counter, key = convert_to_tensor(_as_state(counter)), convert_to_tensor(_as_state(key))
    counter.shape.assert_is_compatible_with([_state_size(alg) - 1])
    key.shape.assert_is_compatible_with([])
    return joining.concat([counter, reshaping.reshape(key, [1])], 0)


class _Global:
    """Holds the generator of `get_global_generator`."""

    generator: Generator | None = None


def get_global_generator() -> Generator:
    """The generator that a program shares. It starts with a state of its own, unless one was set."""
    if _Global.generator is None:
        with init_scope():
            _Global.generator = Generator.from_non_deterministic_state()
    return _Global.generator


def set_global_generator(generator: Generator) -> None:
    """Replaces the global generator: `tf.random.set_global_generator(tf.random.Generator.from_seed(1))`."""
    _Global.generator = generator
