"""The seeds of a dataset's iterations, and the random words that follow from them, as in TensorFlow."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

from penstock import philox


class Epochs:
    """Deals out the seeds of one dataset's iterations. It belongs to the dataset, not to an iterator of it."""

    def __init__(self) -> None:
        self._count = 0
        self._own = secrets.randbits(63), secrets.randbits(63)
        self._lock = threading.Lock()

    @property
    def state(self) -> tuple[int, int, int]:
        """The number of iterations so far, and the seeds of a dataset that was given none."""
        with self._lock:
            return self._count, *self._own

    @state.setter
    def state(self, state: tuple[int, int, int]) -> None:
        with self._lock:
            self._count, self._own = state[0], (state[1], state[2])

    def words(self, seed: int, seed2: int, renewed: bool = False) -> Iterator[int]:
        """The random words of the next iteration: the same each time, or `renewed`.

        Then its seeds are the next two words of a generator with the given ones. Zeros stand for no seeds.
        """
        if (seed, seed2) == (0, 0):
            seed, seed2 = self._own
        if renewed:
            with self._lock:
                number, self._count = self._count, self._count + 1
            pairs = philox.words(seed & philox.WORD, number // 2, seed2 & philox.WORD, 1).tolist()
            seed, seed2 = pairs[2 * (number % 2) :][:2]
        return philox.stream(seed, seed2)
