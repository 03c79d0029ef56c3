"""An epoch in few compiled calls, with host work only between them."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from ._call import Call, Replayed
from ._callback import Callback
from ._data import size_of
from ._loop import Epoch, EpochLoop, plain
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


class Runner:
    """Runs epochs, and learns how many steps fit into one call."""

    def __init__(
        self,
        bar: Progress,
        callbacks: Sequence[Callback],
        between: Between,
        every: int | None = None,
    ):
        """Report to `bar`, then `callbacks`, then `between`, after each call.

        A call also ends at each update that `every` divides.
        """
        self._bar = bar
        self._callbacks = callbacks
        self._between = between
        self._every = every
        self._pace = 1.0
        self._shapes: Any = None

    def run(
        self,
        epoch: Epoch,
        number: int,
        state: TrainState,
        begun: UnderWay,
        meanwhile: Callable[[], Any],
    ) -> EpochResult:
        """Run the rest of an epoch, giving up `state`'s buffers.

        `meanwhile` is host work for later, done while the last steps run.
        """
        started = time.perf_counter()
        compile_seconds = 0.0
        first, at, earlier, so_far = begun
        loop = EpochLoop(epoch, state, self._shapes, so_far)
        if self._shapes is None:
            # No step at all: what this call takes is tracing and compiling.
            loop.run(at, at)
            # Nothing was traced where an earlier run has compiled the same.
            epoch.recipe.guard.expect({"state": loop.state, "data": epoch.data})
            compile_seconds = time.perf_counter() - started
            started = time.perf_counter()
        self._shapes = loop.shapes
        n, before = size_of(epoch.data), number * loop.steps

        def seconds() -> float:
            return earlier + time.perf_counter() - started

        while at < loop.steps:
            to = at + max(1, int(self._pace))
            if loop.steps - to < self._pace / 2:  # no call for a small rest
                to = loop.steps
            if self._every is not None:
                to = min(to, at + self._every - (before + at) % self._every)
            called = time.perf_counter()
            loop.run(at, to, meanwhile if to == loop.steps else None)
            self._pace = (to - at) * CALL_SECONDS / (time.perf_counter() - called)
            if self._bar.on:
                rows = min(n, to * epoch.batch_size) - at * epoch.batch_size
                self._bar.advance(number, rows, loop.numbers)
            if self._callbacks:
                again = functools.partial(_replay, epoch, loop.shapes, at, to)
                loss = loop.step_loss[at:to]
                call = Call(number, before + at, loss, epoch.recipe, again)
                for callback in self._callbacks:
                    callback.on_call(loop.state, call)
            at = to
            if at < loop.steps:
                under_way = UnderWay(first, at, seconds(), loop.so_far)
                self._between(before + at, loop.state, under_way)
        values = loop.values | {"seconds": seconds()}
        return EpochResult(loop.state, values, loop.step_loss[first:], compile_seconds)


def _replay(
    epoch: Epoch, shapes: Any, at: int, to: int, state: TrainState
) -> Iterator[Replayed]:
    loop = EpochLoop(epoch, copied(state), shapes)
    for i in range(at, to):
        loop.run(i, i + 1)
        yield Replayed(epoch.batch(i), plain(loop.step_loss[i]), loop.state)
