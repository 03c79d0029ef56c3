"""How arrays are gone through: every example once an epoch, batch by batch."""

import jax
import numpy as np
from jaxtyping import Int

from .._types import Key
from ..data import epoch_permutation
from ._data import padded, size_of
from ._feed import Plan


class Shuffle:
    """The order of each epoch, a function of the key and its number."""

    def __init__(self, data: tuple, batch_size: int, key: Key):
        """Of arrays with one leading axis of examples."""
        self._key = key
        self.rows = size_of(data)
        self.batch_size = min(batch_size, self.rows)
        self.steps = -(-self.rows // self.batch_size)
        arrays = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(data)]
        about = {"data": arrays, "batch_size": self.batch_size}
        self.plan = Plan(about, self.steps, self.rows, self.batch_size)

    def order(self, number: int) -> Int[np.ndarray, " padded"]:
        """The examples of an epoch, filled up to whole batches."""
        order = epoch_permutation(self._key, number, self.rows)
        return padded(order, self.batch_size)
