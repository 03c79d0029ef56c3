"""An epoch in few compiled calls, with host work only between them."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from ._call import Call, Replayed
from ._callback import Callback
from ._cause import raise_loss_cause
from ._feed import Feed
from ._loop import EpochLoop, plain
from ._private import spent_of
from ._progress import Progress
from ._state import TrainState, copied

# How long one compiled call should take: host work once a call is then nothing beside
# the steps, and the bar still moves.
CALL_SECONDS = 1.0


class EpochResult(NamedTuple):
    """The state after an epoch, its values by name, and each step's loss."""

    state: TrainState
    values: dict[str, Any]
    step_loss: Float[np.ndarray, "steps ..."]
    compile_seconds: float


class UnderWay(NamedTuple):
    """How far an epoch has come: its steps number `first` to `done - 1` have run.

    `first` is not 0 where a state from the middle of an epoch began the run.
    """

    first: int = 0
    done: int = 0
    seconds: float = 0.0
    so_far: Any = None


# Called after each call but an epoch's last with the number of updates done. Its arrays
# are valid until it returns.
Between: TypeAlias = Callable[[int, TrainState, UnderWay], None]
# Called likewise where no further call can be made. Nothing is under way where the last
# epoch is whole.
Broken: TypeAlias = Callable[[int, TrainState, UnderWay | None], None]


class Runner:
    """Runs epochs, and learns how many steps fit into one call."""

    def __init__(
        self,
        bar: Progress,
        callbacks: Sequence[Callback],
        between: Between,
        broken: Broken = lambda *_: None,
        every: int | None = None,
        finite: bool = True,
    ):
        """Report to `bar`, then `callbacks`, then `between`, after each call.

        Where a stream breaks, `broken` takes the place of `between`. A call also ends
        at each update that `every` divides. `finite` is whether all losses so far were.
        """
        self._bar = bar
        self._callbacks = callbacks
        self._between = between
        self._broken = broken
        self._every = every
        self._finite = finite
        self._pace = 1.0
        self._shapes: Any = None

    def run(
        self, feed: Feed, number: int, state: TrainState, begun: UnderWay
    ) -> EpochResult:
        """Run the rest of an epoch, giving up `state`'s buffers.

        Raises:
            StreamError: the stream broke.
        """
        started = time.perf_counter()
        compile_seconds = 0.0
        first, at, earlier, so_far = begun
        before = int(state.step) - at
        self._require_whole(feed, before + at, state, begun if at else None)
        like = next(feed.parts(at, at), None)
        loop = EpochLoop(like, state, self._shapes, so_far)
        if self._shapes is None and like is not None:
            # No step at all: what this call takes is tracing and compiling.
            loop.run([like])
            # Nothing was traced where an earlier run has compiled the same.
            arguments = {"state": loop.state, "data": like.batches.data}
            feed.recipe.guard.expect(arguments)
            compile_seconds = time.perf_counter() - started
            started = time.perf_counter()
        self._shapes = loop.shapes

        def seconds() -> float:
            return earlier + time.perf_counter() - started

        while not feed.ended(at):
            # How fast it goes, no two processes find alike.
            to = feed.recipe.layout.leaders(self._until(feed, at, before))
            called = time.perf_counter()
            step_loss = loop.run(feed.parts(at, to))
            to = at + len(step_loss)
            self._pace = (to - at) * CALL_SECONDS / (time.perf_counter() - called)
            if self._bar.on:
                spent = spent_of(feed.recipe.gradient, before + to)
                self._bar.advance(number, feed.rows(at, to), loop.numbers | spent)
            if self._callbacks:
                again = functools.partial(_replay, feed, loop.shapes, at, to)
                call = Call(number, before + at, step_loss, feed.recipe, again)
                for callback in self._callbacks:
                    callback.on_call(loop.state, call)
            self._require_finite(feed, at, step_loss, loop.state)
            at = to
            if not feed.ended(at):
                under_way = UnderWay(first, at, seconds(), loop.so_far)
                self._require_whole(feed, before + at, loop.state, under_way)
                self._between(before + at, loop.state, under_way)
        values = loop.values | {"seconds": seconds()}
        return EpochResult(loop.state, values, loop.step_loss, compile_seconds)

    def _until(self, feed: Feed, at: int, before: int) -> int:
        pace = max(1, min(self._pace, feed.most))
        to = at + int(pace)
        if feed.steps is not None and feed.steps - to < pace / 2:
            to = feed.steps  # no call for a small rest
        if self._every is not None:
            to = min(to, at + self._every - (before + at) % self._every)
        return to

    def _require_whole(
        self, feed: Feed, step: int, state: TrainState, under_way: UnderWay | None
    ) -> None:
        if feed.error is not None:
            # A pass that goes on too long is not under way: there is nowhere to go on.
            if under_way is None or under_way.done != feed.steps:
                self._broken(step, state, under_way)
            feed.error.state = state
            raise feed.error

    def _require_finite(
        self, feed: Feed, at: int, step_loss: np.ndarray, state: TrainState
    ) -> None:
        # Of the first step that went wrong, the loss may say why.
        wrong = np.argwhere(~np.isfinite(step_loss))
        if self._finite and wrong.size:
            self._finite = False
            batch = feed.again(at + int(wrong[0, 0])).first
            local = feed.recipe.layout.local((state.model, batch, state.key))
            raise_loss_cause(feed.recipe, *local)


def _replay(
    feed: Feed, shapes: Any, at: int, to: int, state: TrainState
) -> Iterator[Replayed]:
    loop = EpochLoop(feed.again(at), copied(state), shapes)
    for i in range(at, to):
        part = feed.again(i)
        (loss,) = loop.run([part])
        yield Replayed(part.first, plain(loss), loop.state)
