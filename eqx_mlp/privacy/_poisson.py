"""Batches in which each example is or is not, independently of all others."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from .._types import Key
from ..train._order import Order

# A draw is larger than the capacity with less than this probability.
OVERFLOW = 1e-40
# What sets these draws apart from other uses of the key.
TAG = 0x706F6973


def capacity(expected: float | int, rows: int) -> int:
    """How many rows a batch must have so that almost surely no draw needs more.

    By Chernoff, Pr[Binomial(n, q) >= k] <= exp(-n KL(k/n || q)) for k/n > q.
    """
    q = expected / rows

    def exponent(k: int) -> float:
        p = k / rows
        rest = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0
        return rows * (p * math.log(p / q) + rest)

    low, high = math.ceil(expected), rows
    if q >= 1 or exponent(rows) < -math.log(OVERFLOW):
        return rows
    while low < high:  # the least k that is exceeded so rarely
        middle = (low + high) // 2
        if middle > expected and exponent(middle) >= -math.log(OVERFLOW):
            high = middle
        else:
            low = middle + 1
    return low


class Poisson(Order):
    """Poisson sampling: each example is in each batch with probability q, by itself.

    An epoch has as many batches as one of fixed size would. Draws are a function of the
    key and the epoch's number, so a run that goes on sees the draws of the one that
    never stopped. They come from NumPy's PCG64 on the host, as gaps between examples
    that are in: of independent trials in a row, those are geometric, so an epoch's
    draws cost as much as it has examples, not as it has trials.

    A batch has `width` rows. A draw that needs more has probability below 1e-40 and
    loses its last examples; `epsilon` adds what that costs to delta.

    Args:
        rows: how many examples there are, n.
        expected_batch_size: n q, above 0 and at most n.
        key: where the draws come from.

    >>> import jax
    >>> sampled = Poisson(1000, 10, jax.random.key(0))
    >>> sampled.steps, sampled.width, sampled.counts(0)[:4].tolist()
    (100, 77, [14, 16, 10, 12])
    """

    def __init__(self, rows: int, expected_batch_size: float | int, key: Key):
        self.rows = rows
        self.steps = math.ceil(rows / expected_batch_size)
        self.width = capacity(expected_batch_size, rows)
        self.batch_size = max(1, round(expected_batch_size))
        self._rate = expected_batch_size / rows
        if jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        self._seed = [int(word) for word in np.asarray(key).ravel()]
        self._drawn: Any = functools.lru_cache(maxsize=1)(self._draw)

    def order(self, number: int) -> Int[np.ndarray, " padded"]:
        """The examples drawn in each of an epoch's batches, each filled with zeros."""
        return self._drawn(number)[0]

    def counts(self, number: int) -> Int[np.ndarray, " steps"]:
        """How many were drawn for each batch."""
        return self._drawn(number)[1]

    def _draw(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([*self._seed, number, TAG])
        trials, mean = self.steps * self.rows, self.steps * self.rows * self._rate
        inside = np.zeros(0, np.int64)
        last = -1
        while last < trials:
            gaps = rng.geometric(self._rate, int(mean + 6 * math.sqrt(mean)) + 16)
            inside = np.concatenate([inside, last + np.cumsum(gaps)])
            last = int(inside[-1])
        step, example = np.divmod(inside[inside < trials], self.rows)
        counts = np.bincount(step, minlength=self.steps)
        place = np.arange(step.size) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = place < self.width
        order = np.zeros((self.steps, self.width), np.int32)
        order[step[kept], place[kept]] = example[kept]
        return order.ravel(), np.minimum(counts, self.width).astype(np.int32)
