"""Where batches come from: a source for a run, and a feed for each of its epochs."""

import abc
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._batches import Part, Recipe
from ._state import TrainState


class StreamError(RuntimeError):
    """A stream of batches ended early, raised, or gave what does not fit.

    `state` is the state after the last update, to go on from or to save.
    """

    state: TrainState


class Feed(abc.ABC):
    """The batches of one epoch."""

    recipe: Recipe
    # How many there are, where that is known.
    steps: int | None
    # How many a call may have at most.
    most: int = sys.maxsize
    # Why there is no next batch, though there should be one.
    error: StreamError | None = None

    @abc.abstractmethod
    def ended(self, at: int) -> bool:
        """Whether all is done once step number `at` would be next."""

    @abc.abstractmethod
    def parts(self, start: int, stop: int) -> Iterator[Part]:
        """Steps number `start` to `stop - 1`, or up to the end or an error.

        What is done between parts is done while the device works.
        """

    @abc.abstractmethod
    def again(self, i: int) -> Part:
        """Step number `i` alone, one of those that `parts` gave last."""

    @abc.abstractmethod
    def rows(self, start: int, stop: int) -> int:
        """How many examples these steps have, if `parts` gave them last."""


class Plan(NamedTuple):
    """What is known beforehand of a run's epochs, None where it is not.

    `about` is what a run that goes on must have in common with its checkpoint, `rows`
    the examples of an epoch.
    """

    about: dict[str, Any]
    steps: int | None
    rows: int | None
    batch_size: int | None


class Source(abc.ABC):
    """The data of one run."""

    plan: Plan

    @abc.abstractmethod
    def epoch(self, number: int, step: int, done: int) -> Feed:
        """Epoch `number` from its step number `done` on, after `step` updates."""
