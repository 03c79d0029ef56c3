"""Products and squares of rows, where every entry is there."""

import functools
from collections.abc import Iterable

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .._dtypes import promote
from .._types import PerExample
from ._norm import sum_dtype, weighted_sum


def squared(x: Inexact[Array, "..."]) -> Float[Array, "..."]:
    """|x|^2 in float32 or wider."""
    x = jnp.abs(x.astype(sum_dtype(x.dtype)))
    return x * x


def sum_of_squares(
    factor: PerExample, rows: Inexact[Array, "batch ..."]
) -> Float[Array, "..."]:
    """sum_b factor_b |rows_b|^2."""
    return weighted_sum(factor, squared(rows))


def products_of_rows(
    rows: Inexact[Array, "batch ..."], other: Inexact[Array, "other ..."]
) -> Float[Array, "batch other"]:
    """The product of each row with each other one, all entries as one real vector."""
    x, y = (a.reshape(a.shape[0], -1) for a in (rows, other))
    return jnp.matmul(x, y.conj().T, precision="highest").real


def added_up(
    products: Iterable[Float[Array, "batch other"]],
) -> Float[Array, "batch other"]:
    """The sum over parameters, in the widest of their dtypes."""

    def added(a: Array, b: Array) -> Array:
        dtype = promote(a.dtype, b.dtype)
        return a.astype(dtype) + b.astype(dtype)

    return functools.reduce(added, products)
