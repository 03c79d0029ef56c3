"""Which learning rate the last update had."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, GetAttrKey

from ..._checked import checked
from .._callback import Callback
from .._loop import plain
from .._state import TrainState

NAME = "learning_rate"


def _require(self: Any, schedule: Any = None) -> None:
    if schedule is not None and not callable(schedule):
        raise ValueError(
            "LearningRate: schedule must be the optimiser's schedule, a function of "
            f"the step, got {schedule!r}: a rate that stays the same needs no readout"
        )


class LearningRate(Callback):
    """Adds the learning rate of each epoch's last update to the history and the logs.

    Args:
        schedule: the schedule that the optimiser was given, a function of the number of
            updates before. None: the rate is read from the optimiser's state, where
            `optax.inject_hyperparams` keeps it.

    The name is "learning_rate"; under `multi_transform` each label has its own, such as
    "learning_rate/head".

    Raises:
        ValueError: in `fit`, no schedule, and no rate in the optimiser's state.

    >>> import optax
    >>> optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=1e-3)
    >>> readout = LearningRate()
    """

    @checked(_require)
    def __init__(self, schedule: Callable[[Any], Any] | None = None):
        self.schedule = schedule

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """See before the run whether there is a rate to read."""
        self.measure(state)

    def measure(self, state: TrainState) -> dict[str, Any]:
        """The rate of the last update, by name."""
        if self.schedule is not None:
            last = max(int(state.step) - 1, 0)
            return {NAME: plain(self.schedule(last))}
        rates: dict[str, Any] = {}
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.opt_state)[0]:
            if tuple(path[-2:]) != (GetAttrKey("hyperparams"), DictKey(NAME)):
                continue
            labels = [str(key.key) for key in path[:-2] if isinstance(key, DictKey)]
            name = "/".join([NAME, *labels])
            if name in rates:
                raise ValueError(
                    f"LearningRate: the optimiser holds two rates named {name!r}: read "
                    "them apart in a callback's measure"
                )
            rates[name] = plain(leaf)
        if not rates:
            raise ValueError(
                "LearningRate: there is no learning rate in the optimiser's state: "
                "make the optimiser with optax.inject_hyperparams(optax.adam)("
                "learning_rate=...), or give its schedule: LearningRate(schedule)"
            )
        return rates
