"""The scores that there is a function of one example for."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from ..._keys import with_key
from ..._types import Loss, Model, Trainable
from ...per_example import per_example_grad_norm
from ._stream import Score


class Each(Score):
    """A function of one example, such as a loss or a metric that is one number."""

    metric: Callable[..., Any]

    def of_model(self, model: Model) -> Callable[..., Array]:
        """Mapped over the batch."""
        return jax.vmap(lambda *example: with_key(self.metric, model, *example))

    def cause(self, model: Model, *example: Any) -> None:
        """Its own checks."""
        with_key(self.metric, model, *example)


class GradNorm(Score):
    """The norm of each example's gradient."""

    loss: Loss
    method: str
    trainable: Trainable

    def of_model(self, model: Model) -> Callable[..., Array]:
        """As `per_example_grad_norm` finds it."""
        f = per_example_grad_norm(
            self.loss, method=self.method, trainable=self.trainable
        )
        return lambda *batch: f(model, *batch)

    def cause(self, model: Model, *example: Any) -> None:
        """The loss's own checks."""
        with_key(self.loss, model, *example)
