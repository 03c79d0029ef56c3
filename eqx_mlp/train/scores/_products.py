"""Products of each example's gradient with those of a few others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..._keys import with_key
from ..._types import Loss, Model, Trainable
from ...per_example._dot import against
from ...per_example._loss import split_trainable, value_of_params
from ...per_example._method import ROUTES
from ...per_example._vmap import examples_of
from .._step import Transform
from ._stream import Score, transformed_batch


class Products(Score):
    """`[batch, others]`, with the backward pass of the others done once a call."""

    others: tuple
    loss: Loss
    method: str
    trainable: Trainable
    transform: Transform | None
    normalize: bool

    def of_model(self, model: Model) -> Callable[..., Array]:
        """By the products of `per_example_grad_dot`."""
        others = transformed_batch(
            self.transform, jax.tree.map(jnp.asarray, self.others)
        )
        rows = examples_of(others, None, None).rows
        params, rest = split_trainable(model, self.trainable)
        of_params = value_of_params(self.loss, rest, False)
        route = ROUTES[self.method](of_params, params, rows)
        _, of_rows = against(route, rows, self.normalize)
        return lambda *batch: of_rows(examples_of(batch, None, None).rows)[1]

    def cause(self, model: Model, *example: Any) -> None:
        """The loss's own checks, of the example and of the others."""
        with_key(self.loss, model, *example)
        others = transformed_batch(
            self.transform, jax.tree.map(jnp.asarray, self.others)
        )
        for i in range(len(jax.tree.leaves(others)[0])):
            with_key(self.loss, model, *jax.tree.map(lambda x, i=i: x[i], others))
