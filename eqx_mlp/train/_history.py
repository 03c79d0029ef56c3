"""What a run measured, epoch by epoch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ._runner import EpochResult


class History:
    """Values by name, an entry an epoch."""

    def __init__(self, names: Sequence[str], validated: Iterable[str]) -> None:
        """Columns for `names`, and each with `prefix` and "val_" before it."""
        validation = [f"{prefix}val_{name}" for prefix in validated for name in names]
        self._own = [*names, "seconds", *validation]
        self._epochs: dict[str, list[Any]] = {name: [] for name in self._own}
        self._step_loss: list[np.ndarray] = []
        self._compile_seconds = 0.0

    @property
    def epochs(self) -> int:
        """How many epochs it holds."""
        return len(self._epochs["seconds"])

    @property
    def finite(self) -> bool:
        """Whether the losses of all their steps were finite."""
        return all(np.all(np.isfinite(step_loss)) for step_loss in self._step_loss)

    def add(self, ran: EpochResult) -> None:
        """Add an epoch."""
        self._step_loss.append(ran.step_loss)
        self._compile_seconds += ran.compile_seconds
        self._append(ran.values)

    def add_validation(self, prefix: str, values: dict[str, Any]) -> None:
        """Add an epoch's validation."""
        self._append({f"{prefix}val_{name}": value for name, value in values.items()})

    def add_measured(self, measured: Sequence[Mapping[str, Any]]) -> None:
        """Add what callbacks have measured after an epoch.

        An epoch in which a name was not measured, since the callback came or went while
        the run stood still, has NaN there.
        """
        values: dict[str, Any] = {}
        for its_own in measured:
            for name in its_own:
                if name in {*self._own, *values, "step_loss", "compile_seconds"}:
                    raise ValueError(
                        f"fit: the history has a {name!r} already, and a callback "
                        "measures another: give each a name of its own"
                    )
            values |= its_own
        earlier = self.epochs - 1
        for name, value in values.items():
            missing = [np.full(np.shape(value), np.nan)] * earlier
            self._epochs.setdefault(name, missing)
        for name in self._epochs.keys() - {*self._own, *values}:
            values[name] = np.full(np.shape(self._epochs[name][-1]), np.nan)
        self._append(values)

    def _append(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._epochs[name].append(value)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `FitResult.history` holds."""
        step_loss = self._step_loss or [np.zeros(0, np.float32)]
        return {name: np.asarray(values) for name, values in self._epochs.items()} | {
            "step_loss": np.concatenate(step_loss),
            "compile_seconds": np.asarray(self._compile_seconds),
        }

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `arrays` gave."""
        columns = dict(arrays)
        self._compile_seconds = float(columns.pop("compile_seconds"))
        self._step_loss = [columns.pop("step_loss")]
        self._epochs = {name: list(values) for name, values in columns.items()}
