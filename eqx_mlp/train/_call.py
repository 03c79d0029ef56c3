"""What ran in one compiled call, for those who look between calls."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..data import Batch
from ._batches import Recipe
from ._state import TrainState


class Replayed(NamedTuple):
    """One step done again: its batch, its loss, or each member's, the state after it.

    The state's arrays are valid until the next step is done.
    """

    batch: Batch
    loss: float | np.ndarray
    state: TrainState


class Call(NamedTuple):
    """Steps that ran in one compiled call.

    `epoch` counts from 0; `step` is the number of updates done before the call, and
    `step_loss` holds the loss at each of its steps. `replay(state)` does the same steps
    again one by one, by the same program, from a copy of the state they began with.
    """

    epoch: int
    step: int
    step_loss: Float[np.ndarray, "steps ..."]
    recipe: Recipe
    replay: Callable[[TrainState], Iterator[Replayed]]
