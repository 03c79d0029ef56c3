"""What a run of `fit` comes to."""

from typing import NamedTuple

import numpy as np

from .._display import mimebundle
from .._types import Model
from ._state import TrainState


class FitResult(NamedTuple):
    """What `fit` gives back: the last state, and how it came about.

    `history` maps names to NumPy arrays: "loss" and each metric, one value an epoch,
    with "val_" before them for the validation data, and "ema_val_" for those of the
    averaged weights of `with_ema`; "seconds", one an epoch, without compilation and
    validation; "step_loss", one a step; "compile_seconds", one number.
    """

    state: TrainState
    history: dict[str, np.ndarray]

    @property
    def model(self) -> Model:
        """The trained model."""
        return self.state.model

    def __repr__(self) -> str:
        epochs = len(self.history.get("seconds", ()))
        last = [
            f", {name}={column[-1]:.4g}"
            for name, column in self.history.items()
            if column.shape == (epochs,) and epochs and name != "step_loss"
        ]
        return f"FitResult({self.state!r}, epochs={epochs}{''.join(last)})"

    _repr_mimebundle_ = mimebundle
