"""Arrays in memory, which go to the device once."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from ._batches import Epoch, Part, Recipe
from ._data import size_of
from ._feed import Feed, Source
from ._order import Order
from ._shuffle import plan_of


class InMemory(Source):
    """Each epoch is every example once, in an order of the key and the epoch."""

    def __init__(self, recipe: Recipe, data: tuple, order: Order, epochs: int):
        """Have the data on the device; the last of `epochs` prepares no other."""
        data = recipe.layout.replicated(data)
        self._epoch = functools.partial(Epoch, recipe, data, batch_size=order.width)
        self._batch_size = order.batch_size
        self._last = epochs - 1
        self.plan = plan_of(order, data)

        @functools.lru_cache(maxsize=2)
        def order_of(number: int) -> dict[str, Any]:
            drawn = {"order": order.order(number), "counts": order.counts(number)}
            return recipe.layout.replicated(drawn)

        self._order_of = order_of

    def epoch(self, number: int, step: int, done: int) -> Feed:
        """The epoch, which shuffles the next one while it runs."""
        epoch = self._epoch(**self._order_of(number))
        shuffle_next = functools.partial(self._order_of, min(number + 1, self._last))
        return MemoryFeed(epoch, shuffle_next, self._batch_size)


class MemoryFeed(Feed):
    """An epoch of arrays on the device; `meanwhile` is done during its last steps."""

    def __init__(self, epoch: Epoch, meanwhile: Callable[[], Any], batch_size: int):
        """Take each batch from the epoch; `batch_size` examples are the rule."""
        self._epoch = epoch
        self.recipe = epoch.recipe
        self.steps = epoch.steps
        self._meanwhile = meanwhile
        self._batch_size = batch_size

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
        """As many as an epoch has of them."""
        size = self._batch_size
        return min(size_of(self._epoch.data), stop * size) - start * size
