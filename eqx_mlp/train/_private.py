"""What training must know of a gradient that keeps the examples private."""

import abc
import functools
from collections.abc import Callable
from typing import Any

from .._types import Key, Loss, Model, Trainable
from ..nn import Ensemble
from ._order import Order


class PrivateGradient(abc.ABC):
    """A gradient whose guarantee needs batches drawn its way, and counts the steps."""

    expected_batch_size: float | int
    dataset_size: int

    @abc.abstractmethod
    def __call__(
        self, loss: Loss, *, trainable: Trainable = None
    ) -> Callable[..., Any]:
        """The gradient of a batch, as `make_step` takes it."""

    @abc.abstractmethod
    def order(self, key: Key) -> Order:
        """How a run with this key draws its batches."""

    @abc.abstractmethod
    def spent(self, steps: int) -> dict[str, float]:
        """By name, what is lost after so many updates."""

    @property
    @abc.abstractmethod
    def about(self) -> dict[str, Any]:
        """What a run that goes on must have in common with its checkpoint."""


def spent_of(gradient: Any, steps: int) -> dict[str, float]:
    """What a private gradient has lost after so many updates; nothing of another."""
    return gradient.spent(steps) if isinstance(gradient, PrivateGradient) else {}


def is_private(owner: str, gradient: Any) -> bool:
    """Whether `gradient` is private, which it must not be in disguise."""
    if isinstance(gradient, functools.partial) and isinstance(
        gradient.func, PrivateGradient
    ):
        raise ValueError(
            f"{owner}: gradient= is private inside a functools.partial, which hides "
            "how its batches must be drawn: give the object itself"
        )
    return isinstance(gradient, PrivateGradient)


def require_one_model(model: Model) -> None:
    """Raise a ValueError for an ensemble, whose members would share their noise."""
    if isinstance(model, Ensemble):
        raise ValueError(
            "a private gradient trains one model: the members of an Ensemble would "
            "get the same noise, and their difference none. Train each by a call and "
            "with a key of its own, and add up what they spend"
        )
