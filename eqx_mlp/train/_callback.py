"""What runs between epochs, on the host."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._state import TrainState


class Callback:
    """Called by `fit` at its start, after each epoch and at its end.

    Override what is needed. `history` holds what `FitResult.history` will, so far. The
    state's arrays are only valid until the method returns, since the next steps reuse
    their memory; copy what is to be kept.

    >>> class Print(Callback):
    ...     def on_epoch(self, state, history):
    ...         print(len(history["loss"]), history["loss"][-1])
    """

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Before the first step."""

    def on_epoch(
        self, state: TrainState, history: Mapping[str, np.ndarray]
    ) -> bool | None:
        """After each epoch and its validation; True ends the run."""

    def on_end(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """After the last epoch."""


def require_callbacks(callbacks: Any) -> None:
    """Raise a ValueError unless `callbacks` is a sequence of `Callback`s."""
    if not isinstance(callbacks, Sequence) or not all(
        isinstance(callback, Callback) for callback in callbacks
    ):
        raise ValueError(
            "fit: callbacks must be a list of eqx_mlp.Callback instances, got "
            f"{callbacks!r}: subclass Callback and override on_epoch, say"
        )
