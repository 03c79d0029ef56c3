"""Batches that come one by one, each sent to the device while the last is used."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from ..data import Batch
from ..distributed._together import together
from ._batches import OneBatch, Part, Recipe
from ._even import Even, UnfitBatch
from ._feed import Feed, Plan, Source, StreamError

# Batches, or a function of the number of updates done that gives those from there on.
Batches: TypeAlias = Iterable[Any] | Callable[[int], Iterable[Any]]

# How much a call may read: its batches are kept, on the host, so that they can be
# looked at again.
CALL_BYTES = 1 << 28


def is_stream(data: Any) -> bool:
    """Whether `data` gives batches, and is not itself arrays."""
    if isinstance(data, tuple | dict | str | bytes | np.ndarray | jax.Array):
        return False
    if isinstance(data, list) and any(hasattr(x, "shape") for x in data):
        return False  # the arrays themselves, for which a tuple is wanted
    return hasattr(data, "__iter__") or callable(data)


def is_function(data: Any) -> bool:
    """Whether a stream is one that begins at a step."""
    return not hasattr(data, "__iter__")


class Stream(Source):
    """Each epoch is one pass, or so many steps of a single one."""

    def __init__(
        self,
        recipe: Recipe,
        data: Batches,
        steps: int | None,
        batch_size: int | None,
        begun: int,
    ):
        """`steps` an epoch, if not passes; `begun` updates are behind the data."""
        self._recipe = recipe
        self._data: Any = data
        self._one_pass = steps is not None
        self._begun = begun
        shares = len(recipe.layout.processes)
        if batch_size is not None and batch_size % shares:
            raise ValueError(
                f"fit: batch_size must divide by the {shares} processes, each of which "
                f"streams its own part of a batch, got {batch_size}"
            )
        self._even = Even(batch_size and batch_size // shares)
        self._batches: Iterator[Batch] | None = None
        length = recipe.layout.everyones(_length(data) or 0).max()
        self._steps = (int(length) or None) if steps is None else steps
        about = {"data": "a stream", "batch_size": batch_size, "steps": steps}
        self.plan = Plan(about, self._steps, None, batch_size)
        if self._steps is None and begun:
            raise ValueError(
                f"fit: the state given has done {begun} updates, and the stream does "
                "not say how many batches a pass has: give steps=, or a stream that "
                "has a len()"
            )

    def epoch(self, number: int, step: int, done: int) -> Feed:
        """The next pass, or the next steps."""
        if self._steps is None and number > 0:
            self._steps = (step - done) // number
        if self._batches is None or not self._one_pass:
            behind = step - self._begun if self._one_pass else done
            own = self._from(step, behind)
            self._batches = together(own, self._recipe.layout)
        place = Place(number, step - done)
        return StreamFeed(
            self._recipe, self._batches, self._steps, self._one_pass, done, place
        )

    def _from(self, step: int, behind: int) -> Iterator[Batch]:
        if is_function(self._data):
            yield from map(self._even, self._data(step))
            return
        for i, item in enumerate(self._data):
            if i >= behind:
                yield self._even(item)
            elif i == 0:
                self._even(item)  # says how many rows a batch has


def _length(data: Any) -> int | None:
    try:
        return len(data) or None
    except TypeError:
        return None


class Place(NamedTuple):
    """Where a feed stands in its run."""

    epoch: int
    # Updates before the epoch.
    before: int


class StreamFeed(Feed):
    """An epoch of batches on the host, one of them always ahead on the device."""

    def __init__(
        self,
        recipe: Recipe,
        batches: Iterator[Batch],
        steps: int | None,
        goes_on: bool,
        at: int,
        place: Place,
    ):
        """`goes_on` is whether `batches` outlast the epoch; step `at` is the first."""
        self.recipe = recipe
        self._batches = batches
        self._goes_on = goes_on
        self._place = place
        self.steps = steps
        self._next: tuple[Batch, OneBatch] | None = None
        self._start = at
        self._kept: list[Batch] = []
        self._fetch(at)

    def ended(self, at: int) -> bool:
        """Whether no batch follows, and none should."""
        return self._next is None and self.error is None

    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """A part for each batch."""
        if start == stop and self._next is not None:
            yield Part(self._next[1], 0, 0)
        self._start, self._kept = start, []
        for i in range(start, stop):
            if self._next is None:
                return
            batch, on_device = self._next
            self._kept.append(batch)
            yield Part(on_device, 0, 1)
            self._fetch(i + 1)

    def again(self, i: int) -> Part:
        """The batch as it was kept."""
        return Part(self._on_device(self._kept[i - self._start]), 0, 1)

    def rows(self, start: int, stop: int) -> int:
        """Rows that are no padding, here and, by estimate, in other processes."""
        kept = self._kept[start - self._start : stop - self._start]
        return len(self.recipe.layout.processes) * sum(
            batch.size if batch.weight is None else int(np.count_nonzero(batch.weight))
            for batch in kept
        )

    def _on_device(self, batch: Batch) -> OneBatch:
        return OneBatch(self.recipe, self.recipe.layout.batch(batch))

    def _fetch(self, i: int) -> None:
        self._next = None
        if self._goes_on and i == self.steps:
            return  # it is the next epoch's, and there may be none
        try:
            batch = next(self._batches, None)
            wrong = self._wrong_length(i, batch is None)
            if wrong:
                self._fail(i, wrong, None)
            elif batch is not None:
                self._next = batch, self._on_device(batch)
                self.most = max(1, CALL_BYTES // _bytes_of(batch))
        except UnfitBatch as error:
            self._fail(i, str(error), error)
        except Exception as error:
            self._fail(i, f"the stream raised {error!r}", error)

    def _wrong_length(self, i: int, over: bool) -> str:
        if over and self.steps is None:
            return "" if i else "the stream is empty"
        if over == (i == self.steps):
            return ""
        if not over:
            return (
                f"the stream goes on, and a pass has {self.steps} batches: for passes "
                "of different lengths, say with steps= how many make an epoch"
            )
        return (
            f"the stream has ended, and an epoch has {self.steps} batches: a generator "
            "can be gone through only once, so for several passes give a list, a "
            "DataLoader, or a function that begins one at a step"
        )

    def _fail(self, i: int, what: str, cause: Exception | None) -> None:
        epoch, before = self._place
        self.error = StreamError(
            f"fit: batch {i + 1} of epoch {epoch + 1}, for update {before + i + 1}: "
            f"{what}. The state before that update is this error's .state"
        )
        self.error.__cause__ = cause


def _bytes_of(batch: Batch) -> int:
    return 1 + sum(x.nbytes for x in jax.tree.leaves(batch))
