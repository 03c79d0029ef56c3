"""Arrays larger than memory, whose rows are read batch by batch."""

from collections.abc import Iterator

import jax
import numpy as np

from .._types import Key
from ..data import Batch
from ._feed import Feed, Source
from ._loop import Recipe
from ._shuffle import Shuffle
from ._stream import Place, StreamFeed


def is_mapped(data: tuple) -> bool:
    """Whether some array is mapped from a file, and so may not fit into memory."""
    return any(isinstance(x, np.memmap) for x in jax.tree.leaves(data))


class Gathered(Source):
    """The epochs of the same arrays in memory, gathered on the host."""

    def __init__(self, recipe: Recipe, data: tuple, batch_size: int, key: Key):
        """Nothing is read yet of arrays that are mapped."""
        self._recipe = recipe
        self._data = jax.tree.map(np.asarray, data)
        self._shuffle = Shuffle(self._data, batch_size, key)
        self.plan = self._shuffle.plan

    def epoch(self, number: int, step: int, done: int) -> Feed:
        """The epoch's batches from number `done` on."""
        batches = self._batches(number, done)
        place = Place(number, step - done)
        steps = self._shuffle.steps
        return StreamFeed(self._recipe, batches, steps, False, done, place)

    def _batches(self, number: int, done: int) -> Iterator[Batch]:
        rows, size = self._shuffle.rows, self._shuffle.batch_size
        order = self._shuffle.order(number)
        layout = self._recipe.layout
        whole = layout.whole(size)
        # Each process reads the rows of its own devices.
        row = np.arange(whole)[layout.own_rows(whole)]
        for start in range(done * size, order.size, size):
            counts = (row < size) & (start + row < rows)
            index = order[np.where(counts, start + row, 0)]
            example = jax.tree.map(lambda x, index=index: x[index], self._data)
            # As in memory: without weights where all batches are full.
            full = rows % size == 0 and whole == size
            yield Batch(example, None if full else counts.astype(np.float32))
