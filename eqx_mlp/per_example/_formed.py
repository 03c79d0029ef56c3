"""The reference route: `vmap` of `grad`, every gradient formed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._types import PerExample
from ._norm import careful_norms, sum_dtype, weighted_sum
from ._route import Gradients, Route


class Formed(Route):
    """The loss with a gradient for each row."""

    def __init__(self, f: Callable[..., tuple[Any, Any]], params: PyTree, rows: Any):
        self.params = params
        self.grad = jax.vmap(
            jax.value_and_grad(f, has_aux=True), in_axes=(None, *(0 for _ in rows))
        )

    def backward(self, rows: Any) -> tuple[PerExample, Any, Gradients]:
        """Loss, auxiliary output and gradient of each row."""
        (value, aux), grads = self.grad(self.params, *rows)
        return value, aux, FormedGradients(grads)

    def zero_sums(self, group_of: tuple[int, ...]) -> PyTree:
        """Zeros like the parameters."""
        return jax.tree.map(
            lambda p: jnp.zeros(p.shape, sum_dtype(p.dtype)), self.params
        )

    def finish(self, sums: PyTree, group_of: tuple[int, ...]) -> PyTree:
        """Already there."""
        return sums


class FormedGradients(Gradients):
    """A gradient for each example, parameter by parameter."""

    def __init__(self, grads: PyTree) -> None:
        self.leaves, self.tree = jax.tree.flatten(grads)

    def norms(self) -> list[PerExample | None]:
        """From the entries."""
        return list(careful_norms(self.leaves))

    def weighted_sums(
        self, factors: list[PerExample], group_of: tuple[int, ...], finite: Any
    ) -> PyTree:
        """One product of factors and rows for each parameter."""
        sums = [
            weighted_sum(factors[group], leaf, sum_dtype(leaf.dtype))
            for group, leaf in zip(group_of, self.leaves, strict=True)
        ]
        return jax.tree.unflatten(self.tree, sums)
