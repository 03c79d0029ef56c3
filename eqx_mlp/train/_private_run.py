"""A run of `fit` with a private gradient: what it must not do, and its account."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._callback import Callback
from ._data import size_of
from ._private import PrivateGradient, require_one_model
from ._state import TrainState
from ._stream import is_stream
from .callbacks import EarlyStopping

# Values of the validation data, which are not what is kept private.
VALIDATED = ("val_", "ema_val_")


class Account(Callback):
    """What is lost so far, for the history and the logs."""

    def __init__(self, gradient: PrivateGradient):
        """Ask the gradient."""
        self._gradient = gradient

    def measure(self, state: TrainState) -> Mapping[str, Any]:
        """After each epoch."""
        return self._gradient.spent(int(state.step))


def require_private_use(
    gradient: PrivateGradient,
    model_or_state: Any,
    data: Any,
    batch_size: Any,
    callbacks: Sequence[Callback],
    checkpoint: Any,
    metrics: Mapping[str, Any] | None,
) -> None:
    """Raise a ValueError where a run would not keep what the gradient promises."""
    if is_stream(data):
        raise ValueError(
            "fit: a private gradient draws its batches from arrays, and how a stream "
            "draws its own is unknown: give a tuple of arrays"
        )
    if batch_size not in (None, gradient.expected_batch_size):
        raise ValueError(
            f"fit: batch_size is {batch_size!r}, and the private gradient has an "
            f"expected_batch_size of {gradient.expected_batch_size!r}: leave out "
            "batch_size="
        )
    if isinstance(data, tuple) and size_of(data) != gradient.dataset_size:
        raise ValueError(
            f"fit: the data hold {size_of(data)} examples, and the private gradient "
            f"counts on dataset_size {gradient.dataset_size}: give it the number of "
            "examples it is trained on"
        )
    model = model_or_state
    require_one_model(model.model if isinstance(model, TrainState) else model)
    watched = {
        "EarlyStopping": [c.monitor for c in callbacks if isinstance(c, EarlyStopping)],
        "Checkpoints": [checkpoint.best] if checkpoint and checkpoint.best else [],
    }
    for owner, names in watched.items():
        for name in names:
            # A metric of the training examples may be called anything.
            if name in (metrics or {}) or not name.startswith(VALIDATED):
                raise ValueError(
                    f"fit: {owner} would choose by {name!r}, which is measured on the "
                    "training examples without noise: choose by a value of validation "
                    "data, such as 'val_loss'"
                )
