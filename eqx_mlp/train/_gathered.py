"""Arrays larger than memory, whose rows are read batch by batch."""

from collections.abc import Iterator

import jax
import numpy as np

from ..data import Batch
from ._batches import Recipe
from ._feed import Feed, Source
from ._order import Order
from ._shuffle import plan_of
from ._stream import Place, StreamFeed


def is_mapped(data: tuple) -> bool:
    """Whether some array is mapped from a file, and so may not fit into memory."""
    return any(isinstance(x, np.memmap) for x in jax.tree.leaves(data))


class Gathered(Source):
    """The epochs of the same arrays in memory, gathered on the host."""

    def __init__(self, recipe: Recipe, data: tuple, order: Order):
        """Nothing is read yet of arrays that are mapped."""
        self._recipe = recipe
        self._data = jax.tree.map(np.asarray, data)
        self._order = order
        self.plan = plan_of(order, self._data)

    def epoch(self, number: int, step: int, done: int) -> Feed:
        """The epoch's batches from number `done` on."""
        batches = self._batches(number, done)
        place = Place(number, step - done)
        steps = self._order.steps
        return StreamFeed(self._recipe, batches, steps, False, done, place)

    def _batches(self, number: int, done: int) -> Iterator[Batch]:
        size = self._order.width
        order, counts = self._order.order(number), self._order.counts(number)
        layout = self._recipe.layout
        whole = layout.whole(size)
        # Each process reads the rows of its own devices.
        row = np.arange(whole)[layout.own_rows(whole)]
        for i in range(done, self._order.steps):
            here = row < (size if counts is None else counts[i])
            index = order[np.where(here, i * size + row, 0)]
            example = jax.tree.map(lambda x, index=index: x[index], self._data)
            # As in memory: without weights where all batches are full.
            full = counts is None and whole == size
            yield Batch(example, None if full else here.astype(np.float32))
