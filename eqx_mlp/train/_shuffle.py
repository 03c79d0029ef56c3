"""How arrays are gone through: every example once an epoch, batch by batch."""

import jax
import numpy as np
from jaxtyping import Int

from .._types import Key
from ..data import epoch_permutation
from ._data import padded, size_of
from ._feed import Plan
from ._order import Order


class Shuffle(Order):
    """The order of each epoch, a function of the key and its number."""

    def __init__(self, rows: int, batch_size: int, key: Key):
        """Of so many examples."""
        self._key = key
        self.rows = rows
        self.width = self.batch_size = min(batch_size, rows)
        self.steps = -(-rows // self.width)

    def order(self, number: int) -> Int[np.ndarray, " padded"]:
        """The examples of an epoch, filled up to whole batches."""
        order = epoch_permutation(self._key, number, self.rows)
        return padded(order, self.width)

    def counts(self, number: int) -> Int[np.ndarray, " steps"] | None:
        """The last batch may hold fewer."""
        if self.rows % self.width == 0:
            return None
        counts = np.full(self.steps, self.width, np.int32)
        counts[-1] = self.rows % self.width
        return counts


def plan_of(order: Order, data: tuple) -> Plan:
    """What is known beforehand of a run over arrays with one leading axis."""
    arrays = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(data)]
    about = {"data": arrays, "batch_size": order.batch_size}
    return Plan(about, order.steps, size_of(data), order.batch_size)
