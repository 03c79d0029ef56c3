"""Arrays in memory, which go to the device once."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from .._types import Key
from ._data import size_of
from ._feed import Feed, Source
from ._loop import Epoch, Part, Recipe
from ._shuffle import Shuffle


class InMemory(Source):
    """Each epoch is every example once, in an order of the key and the epoch."""

    def __init__(
        self, recipe: Recipe, data: tuple, batch_size: int, epochs: int, key: Key
    ):
        """Have the data on the device; the last of `epochs` prepares no other."""
        data = recipe.layout.replicated(data)
        shuffle = Shuffle(data, batch_size, key)
        self._epoch = functools.partial(
            Epoch, recipe, data, batch_size=shuffle.batch_size
        )
        self._last = epochs - 1
        self.plan = shuffle.plan

        @functools.lru_cache(maxsize=2)
        def order_of(number: int) -> jax.Array:
            return recipe.layout.replicated(shuffle.order(number))

        self._order_of = order_of

    def epoch(self, number: int, step: int, done: int) -> Feed:
        """The epoch, which shuffles the next one while it runs."""
        epoch = self._epoch(order=self._order_of(number))
        shuffle_next = functools.partial(self._order_of, min(number + 1, self._last))
        return MemoryFeed(epoch, shuffle_next)


class MemoryFeed(Feed):
    """An epoch of arrays on the device; `meanwhile` is done during its last steps."""

    def __init__(self, epoch: Epoch, meanwhile: Callable[[], Any]):
        """Take each batch from the epoch."""
        self._epoch = epoch
        self.recipe = epoch.recipe
        self.steps = epoch.steps
        self._meanwhile = meanwhile

    def ended(self, at: int) -> bool:
        """Whether that many steps are all."""
        return at == self.steps

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """All of them as one part."""
        yield Part(self._epoch, start, stop)
        if start < stop == self.steps:
            self._meanwhile()

    def again(self, i: int) -> Part:
        """The step, from the same arrays."""
        return Part(self._epoch, i, i + 1)

    def rows(self, start: int, stop: int) -> int:
        """As many as the epoch's order has of them."""
        size = self._epoch.batch_size
        return min(size_of(self._epoch.data), stop * size) - start * size
