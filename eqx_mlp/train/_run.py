"""A whole run: its epochs, and what comes between them."""

from collections.abc import Callable, Sequence

from ._callback import Callback
from ._feed import Source
from ._history import History
from ._progress import Progress
from ._runner import Runner, UnderWay
from ._saver import Saver
from ._state import TrainState


def run_epochs(
    state: TrainState,
    source: Source,
    epochs: int,
    *,
    validate: Callable[[TrainState], None],
    history: History,
    callbacks: Sequence[Callback],
    saver: Saver,
    progress: bool,
) -> TrainState:
    """Go on to the last epoch; gives the last state, or what a callback makes of it.

    `validate` adds to the history. The state's buffers are given up.
    """
    steps, rows, batch_size = source.plan[1:]
    done = int(state.step) % steps if steps else 0
    state, begun = saver.resume(state, UnderWay(done, done))
    for callback in callbacks:
        callback.on_start(state, history.arrays())
    saver.start(state)
    first = int(state.step) // steps if steps else history.epochs
    seen = begun.done * (batch_size or 0)
    with Progress(epochs, rows, first, seen, progress) as bar:
        runner = Runner(
            bar, callbacks, saver.between, saver.broken, saver.every, history.finite
        )
        for number in range(first, first if saver.ended else epochs):
            feed = source.epoch(number, int(state.step), begun.done)
            ran = runner.run(feed, number, state, begun)
            state, begun = ran.state, UnderWay()
            history.add(ran)
            validate(state)
            history.add_measured([c.measure(state) for c in callbacks])
            arrays = history.arrays() if callbacks else {}
            stop = any([c.on_epoch(state, arrays) for c in callbacks])
            saver.after_epoch(state, stop, last=stop or number == epochs - 1)
            if stop:
                break
    for callback in callbacks:
        given = callback.on_end(state, history.arrays())
        state = state if given is None else given
    return state
