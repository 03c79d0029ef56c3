"""The reference route: `vmap` of `grad`, every gradient formed."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .._types import PerExample
from ._norm import row_norms, scaled, sum_dtype, weighted_sum
from ._products import added_up, products_of_rows, sum_of_squares
from ._route import Gradients, Route


def vmap_of_grad(
    f: Callable[..., tuple[Any, Any]], params: PyTree, rows: Any
) -> "Formed":
    """The loss with a gradient for each row."""
    grad = jax.vmap(
        jax.value_and_grad(f, has_aux=True), in_axes=(None, *(0 for _ in rows))
    )

    def rows_of(*rows: Any) -> tuple[PerExample, Any, PyTree]:
        (value, aux), grads = grad(params, *rows)
        return value, aux, grads

    return Formed(rows_of, params)


class Formed(Route):
    """A tree for each row, formed: its gradient, or any other.

    `rows_of(*rows) -> (value, aux, trees)`, where one tree has the shapes of `like`.
    """

    def __init__(self, rows_of: Callable[..., tuple], like: PyTree):
        self.rows_of = rows_of
        self.like = like

    def backward(self, rows: Any) -> tuple[PerExample, Any, Gradients]:
        """Loss, auxiliary output and tree of each row."""
        value, aux, trees = self.rows_of(*rows)
        return value, aux, FormedGradients(trees)

    def zero_sums(self, group_of: tuple[int, ...]) -> PyTree:
        """Zeros like one tree."""
        return jax.tree.map(lambda x: jnp.zeros(x.shape, sum_dtype(x.dtype)), self.like)

    def finish(self, sums: PyTree, group_of: tuple[int, ...]) -> PyTree:
        """Already there."""
        return sums


class FormedGradients(Gradients):
    """A gradient for each example, parameter by parameter."""

    def __init__(self, grads: PyTree) -> None:
        self.leaves, self.tree = jax.tree.flatten(grads)

    def norms(self, then_sum: bool) -> Sequence[PerExample | None]:
        """From the entries."""
        return row_norms(self.leaves)

    def weighted_sums(
        self, factors: list[PerExample], group_of: tuple[int, ...], finite: Any
    ) -> PyTree:
        """One product of factors and rows for each parameter."""
        sums = [
            weighted_sum(factors[group], leaf, silence=finite is not True)
            for group, leaf in zip(group_of, self.leaves, strict=True)
        ]
        return jax.tree.unflatten(self.tree, sums)

    def second_moments(self, factor: PerExample) -> PyTree:
        """One product of factors and squares for each parameter."""
        sums = [sum_of_squares(factor, leaf) for leaf in self.leaves]
        return jax.tree.unflatten(self.tree, sums)

    def products(
        self, other: Any, factor: PerExample, other_factor: Float[Array, " other"]
    ) -> Float[Array, "batch other"]:
        """One matrix product for each parameter."""
        pairs = zip(self.leaves, other.leaves, strict=True)
        return added_up(
            products_of_rows(scaled(factor, x), scaled(other_factor, y))
            for x, y in pairs
        )
