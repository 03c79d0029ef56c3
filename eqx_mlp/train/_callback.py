"""What runs between compiled calls, on the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._call import Call
from ._state import TrainState


class Callback:
    """Called by `fit` at its start, between compiled calls, after epochs, at its end.

    Override what is needed. `history` holds what `FitResult.history` will, so far. The
    state's arrays are only valid until the method returns, since the next steps reuse
    their memory; copy what is to be kept.

    >>> class Print(Callback):
    ...     def on_epoch(self, state, history):
    ...         print(len(history["loss"]), history["loss"][-1])
    """

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Before the first step."""

    def on_call(self, state: TrainState, call: Call) -> None:
        """After the steps of one compiled call, which takes about a second."""

    def measure(self, state: TrainState) -> Mapping[str, Any]:
        """Values after an epoch, to stand in the history and the logs by their names.

        Each epoch must give the same names.
        """
        return {}

    def on_epoch(
        self, state: TrainState, history: Mapping[str, np.ndarray]
    ) -> bool | None:
        """After each epoch and its validation; True ends the run."""

    def on_end(
        self, state: TrainState, history: Mapping[str, np.ndarray]
    ) -> TrainState | None:
        """After the last epoch; a state to give back in place of this one, or None."""

    def save_state(self) -> Any:
        """What a checkpoint keeps of this callback; None is nothing.

        Arrays, numbers, strings, booleans and None, in lists and in dicts with string
        keys. Of a model, save its arrays: a checkpoint holds no code. They may be the
        callback's own arrays: they are copied before the next step.
        """
        return None

    def load_state(self, saved: Any, state: TrainState) -> None:
        """Take back what `save_state` gave, where a run goes on from a checkpoint.

        Called after `on_start`, with the state the run goes on from, whose model has
        the structure that saved arrays belong to. Arrays come back as NumPy arrays, but
        for typed keys, and tuples as lists.
        """


def require_callbacks(callbacks: Any) -> None:
    """Raise a ValueError unless `callbacks` is a sequence of `Callback`s."""
    if not isinstance(callbacks, Sequence) or not all(
        isinstance(callback, Callback) for callback in callbacks
    ):
        raise ValueError(
            "fit: callbacks must be a list of eqx_mlp.Callback instances, got "
            f"{callbacks!r}: subclass Callback and override on_epoch, say"
        )
