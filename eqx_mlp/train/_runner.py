"""An epoch in few compiled calls, with host work only between them."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ._call import Call, Replayed
from ._data import size_of
from ._loop import Epoch, EpochLoop
from ._progress import Progress
from ._state import TrainState, copied

# How long one compiled call should take: host work once a call is then nothing beside
# the steps, and the bar still moves.
CALL_SECONDS = 1.0


class EpochResult(NamedTuple):
    """The state after an epoch, its values by name, and each step's loss."""

    state: TrainState
    values: dict[str, Any]
    step_loss: Float[np.ndarray, " steps"]


class Runner:
    """Runs epochs, and learns how many steps fit into one call."""

    def __init__(
        self, bar: Progress, on_call: Callable[[TrainState, Call], None] | None = None
    ):
        """Report to `bar`, and to `on_call` after each compiled call."""
        self._bar = bar
        self._on_call = on_call
        self._pace = 1.0
        self._shapes: Any = None
        self.compile_seconds: float | None = None

    def run(
        self,
        epoch: Epoch,
        number: int,
        state: TrainState,
        done: int,
        meanwhile: Callable[[], Any],
    ) -> EpochResult:
        """Run the epoch's steps from number `done` on, giving up `state`'s buffers.

        `meanwhile` is host work for later, done while the last steps run.
        """
        started = time.perf_counter()
        updates = int(state.step) - done  # before the epoch
        loop = EpochLoop(epoch, state, self._shapes)
        self._shapes = loop.shapes
        if self.compile_seconds is None:
            # No step at all: what this call takes is tracing and compiling.
            loop.run(done, done)
            # Nothing was traced where an earlier run has compiled the same.
            epoch.recipe.guard.expect(state=loop.state, data=epoch.data)
            self.compile_seconds = time.perf_counter() - started
            started = time.perf_counter()
        n, at = size_of(epoch.data), done
        while at < loop.steps:
            to = at + max(1, int(self._pace))
            if loop.steps - to < self._pace / 2:  # no call for a small rest
                to = loop.steps
            called = time.perf_counter()
            loop.run(at, to, meanwhile if to == loop.steps else None)
            self._pace = (to - at) * CALL_SECONDS / (time.perf_counter() - called)
            if self._bar.on:
                rows = min(n, to * epoch.batch_size) - at * epoch.batch_size
                self._bar.advance(number, rows, loop.numbers)
            if self._on_call is not None:
                again = functools.partial(_replay, epoch, loop.shapes, at, to)
                loss = loop.step_loss[at:to]
                call = Call(number, updates + at, loss, epoch.recipe, again)
                self._on_call(loop.state, call)
            at = to
        values = loop.values | {"seconds": time.perf_counter() - started}
        return EpochResult(loop.state, values, loop.step_loss[done:])


def _replay(
    epoch: Epoch, shapes: Any, at: int, to: int, state: TrainState
) -> Iterator[Replayed]:
    loop = EpochLoop(epoch, copied(state), shapes)
    for i in range(at, to):
        loop.run(i, i + 1)
        yield Replayed(epoch.batch(i), float(loop.step_loss[i]), loop.state)
