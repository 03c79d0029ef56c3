"""Stop when a value has stopped improving."""

import math
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..._checked import checked
from .._callback import Callback
from .._leaves import placed_like
from .._state import TrainState, copied

# By what a value is multiplied so that less is better.
SIGNS = {"min": 1, "max": -1}


def _require(
    self: Any,
    monitor: Any = "val_loss",
    *,
    patience: Any = None,
    min_delta: Any = 0.0,
    mode: Any = "min",
    **_: Any,
) -> None:
    integer = isinstance(patience, int | np.integer) and not isinstance(patience, bool)
    if not integer or patience < 1:
        raise ValueError(
            "EarlyStopping: patience is how many epochs in a row may bring nothing, "
            f"an integer >= 1, got {patience!r}"
        )
    if isinstance(min_delta, bool) or not (
        isinstance(min_delta, int | float) and 0 <= min_delta < math.inf
    ):
        raise ValueError(f"EarlyStopping: min_delta must be >= 0, got {min_delta!r}")
    if mode not in SIGNS:
        raise ValueError(f"EarlyStopping: mode must be 'min' or 'max', got {mode!r}")


class EarlyStopping(Callback):
    """Ends a run once a value has not improved for `patience` epochs in a row.

    Args:
        monitor: the name in the history, such as "val_loss" or "val_accuracy".
        patience: epochs without improvement after which the run ends.
        min_delta: a value improves only if it is better than the best so far by more.
        mode: whether "min" or "max" is better.
        restore_best: whether `fit` gives back the state after the best epoch, model and
            optimiser alike, in place of the last one. The best state is held in a copy.

    A value that is NaN is no improvement. A run that ends for another reason gives back
    the best state too; the history is always that of the whole run.

    Raises:
        ValueError: an argument out of range; in `fit`, a name that is not in the
            history or is not one number an epoch.

    >>> stop = EarlyStopping("val_accuracy", mode="max", patience=3)
    """

    @checked(_require)
    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int,
        min_delta: float | int = 0.0,
        mode: str = "min",
        restore_best: bool = True,
    ):
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.mode = mode
        self.restore_best = restore_best
        self._forget()

    def _forget(self) -> None:
        self._value = math.inf  # the best one, signed so that less is better
        self._waited = 0
        self._best: TrainState | None = None

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Forget an earlier run."""
        self._forget()

    def on_epoch(self, state: TrainState, history: Mapping[str, np.ndarray]) -> bool:
        """Whether the value has not improved for long enough."""
        value = SIGNS[self.mode] * self._last(history)
        if value < self._value - self.min_delta:
            self._value, self._waited = value, 0
            if self.restore_best:
                self._best = copied(state)
        else:
            self._waited += 1
        return self._waited >= self.patience

    def on_end(
        self, state: TrainState, history: Mapping[str, np.ndarray]
    ) -> TrainState | None:
        """The state after the best epoch."""
        return self._best

    def save_state(self) -> dict[str, Any]:
        """The best value, the epochs since, and the best state's arrays."""
        arrays = jax.tree.leaves(eqx.filter(self._best, eqx.is_array))
        return {"value": self._value, "waited": self._waited, "best": arrays}

    def load_state(self, saved: Any, state: TrainState) -> None:
        """Take back what `save_state` gave."""
        self._value, self._waited = saved["value"], saved["waited"]
        if saved["best"] and self.restore_best:
            arrays, static = eqx.partition(state, eqx.is_array)
            best = jax.tree.unflatten(jax.tree.structure(arrays), saved["best"])
            self._best = eqx.combine(jax.tree.map(placed_like, best, arrays), static)

    def _last(self, history: Mapping[str, np.ndarray]) -> float:
        columns = {
            name: values
            for name, values in history.items()
            if values.ndim == 1 and name != "step_loss"
        }
        if self.monitor not in columns:
            raise ValueError(
                "EarlyStopping: monitor must be one number an epoch: "
                f"{', '.join(columns)}; got {self.monitor!r}. What begins with val_ "
                "needs validation="
            )
        return float(columns[self.monitor][-1])
