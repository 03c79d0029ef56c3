"""What `fit` writes into its loggers."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..nn import Ensemble
from ._call import Call
from ._callback import Callback
from ._state import TrainState
from .loggers import CSVLogger, JSONLogger, Logger
from .loggers._logger import Row


class Logging(Callback):
    """Rows for loggers: the losses of some steps, and each epoch's numbers."""

    def __init__(self, loggers: Sequence[Logger], every: int):
        """Log the loss of each step whose number `every` divides."""
        self._loggers = loggers
        self._every = every
        self._epoch = 0

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Have rows go that are later than the state."""
        for logger in self._loggers:
            logger.start(int(state.step))

    def on_call(self, state: TrainState, call: Call) -> None:
        """Write the losses of the call's steps."""
        self._epoch = call.epoch
        steps = range(call.step + 1, call.step + 1 + len(call.step_loss))
        self._write(
            [
                (step, _numbers("step_loss", loss))
                for step, loss in zip(steps, call.step_loss, strict=True)
                if step % self._every == 0
            ]
        )

    def on_epoch(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Write what the history holds of the epoch as one number, or one a member."""
        axes = {1, 2} if isinstance(state.model, Ensemble) else {1}
        row: dict[str, Any] = {"epoch": self._epoch + 1}
        for name, values in history.items():
            if name != "step_loss" and values.ndim in axes and values.size:
                row |= _numbers(name, values[-1])
        self._write([(int(state.step), row)])

    def on_end(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Have everything written."""
        for logger in self._loggers:
            logger.end()

    def _write(self, rows: Sequence[Row]) -> None:
        if rows:
            for logger in self._loggers:
                logger.write(rows)


def _numbers(name: str, value: Any) -> dict[str, float]:
    if np.ndim(value) == 0:
        return {name: value.item()}
    return {f"{name}/{i}": number.item() for i, number in enumerate(value)}


class _Plain(Logger):
    """Somebody else's logger."""

    def __init__(self, logger: Any):
        self._logger = logger

    def start(self, step: int) -> None:
        if callable(getattr(self._logger, "start", None)):
            self._logger.start(step)

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in rows:
            self._logger.log(step, dict(values))


def loggers_of(logger: Any) -> list[Logger]:
    """The loggers that `fit` was given as `logger=`.

    Raises:
        ValueError: something that is no logger.
    """
    match logger:
        case None:
            return []
        case list() | tuple():
            return [one for item in logger for one in loggers_of(item)]
        case Logger():
            return [logger]
        case str() | os.PathLike():
            is_table = os.fspath(logger).endswith(".csv")
            return [CSVLogger(logger) if is_table else JSONLogger(logger)]
    # Python's own loggers have a log(level, message).
    if isinstance(logger, logging.Logger) or not callable(getattr(logger, "log", None)):
        raise ValueError(
            "fit: logger must be a path, such as 'run.jsonl', an eqx_mlp.Logger, an "
            f"object with log(step, values), or a list of these, got {logger!r}"
        )
    return [_Plain(logger)]
