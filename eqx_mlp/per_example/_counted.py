"""How much each example counts in a mean over the batch, and how many that makes."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .._known import is_known
from .._types import PerExample, Scalar
from ._vmap import Examples


class Counted(NamedTuple):
    """Weights, their sum, and (sum w)^2 / sum w^2 (Kish, 1965): n for n equal ones.

    A weighted mean of independent gradients has the variance of one of them divided by
    `number`. Where no example counts, `total` is 1 and `number` 0.
    """

    weight: PerExample
    total: Scalar
    number: Scalar


def counted(owner: str, examples: Examples) -> Counted:
    """The weights of a batch, in float32 or wider."""
    if examples.size == 0:
        raise ValueError(f"{owner}: the batch is empty: a mean needs an example")
    dtype = jnp.result_type(float)
    weight = jnp.ones(examples.size, dtype)
    if examples.weight is not None:
        weight = jnp.asarray(examples.weight).astype(dtype)
    total, squares = jnp.sum(weight), jnp.sum(jnp.square(weight))
    number = jnp.square(total) / jnp.where(squares == 0, 1, squares)
    return Counted(weight, jnp.where(total == 0, 1, total), number)


def require_two(owner: str, number: Any) -> None:
    """Raise a ValueError where it is known that fewer than two examples count."""
    if is_known(number) and not jnp.all(number > 1):
        raise ValueError(
            f"{owner} needs the gradients of at least two examples that count, got "
            f"{number}: give a larger batch"
        )
