"""Euclidean norms over trees, exact where squares would over- or underflow."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, PyTree

from .._dtypes import promote, wide
from .._known import is_known
from .._types import PerExample
from ._batch import rows_like


def row_norms(rows: PyTree[Inexact[Array, "batch ..."]]) -> PerExample:
    """The norm of each example's leaves taken as one vector, in float32 or wider.

    Everything is divided by the example's largest magnitude before squaring, so float16
    rows of norm 500 and float32 rows of norm 1e-25 come out right. A row with a NaN has
    norm NaN, one with an infinity has norm infinity.
    """
    leaves = jax.tree.leaves(rows)
    dtype = promote(*(wide(leaf.dtype) for leaf in leaves))
    leaves = [_real(leaf).astype(dtype) for leaf in leaves]
    largest = jnp.zeros(leaves[0].shape[0], dtype)
    for x in leaves:
        # Not the maximum of magnitudes, which would need an array for them.
        above = jnp.max(x, axis=_own_axes(x), initial=0)
        below = jnp.min(x, axis=_own_axes(x), initial=0)
        largest = jnp.maximum(largest, jnp.maximum(above, -below))
    usable = jnp.isfinite(largest) & (largest > 0)
    scale = jnp.where(usable, largest, 1)
    squares = jnp.zeros_like(scale)
    for x in leaves:
        squares = squares + _squares(x / jax.lax.expand_dims(scale, _own_axes(x)))
    return jnp.where(usable, scale * jnp.sqrt(squares), largest)


def each_row_norms(
    arrays: list[Inexact[Array, "batch ..."]],
) -> list[PerExample]:
    """`row_norms` of each array on its own, at the price of one pass over each.

    Squares are taken as they are and kept where none of them, for no row of any array,
    came near the ends of the range; otherwise all is done again by `row_norms`.
    """
    if not arrays:
        return []
    dtype = promote(*(wide(x.dtype) for x in arrays))
    squares = jnp.stack([_squares(_real(x).astype(dtype)) for x in arrays])
    limits = jnp.finfo(dtype)
    # What n squares lose by underflow, n * tiny, is then below the rounding of the sum.
    size = max(x.size // max(x.shape[0], 1) for x in arrays)
    low, high = size * limits.tiny / limits.eps, limits.max / 4
    safe = jnp.all((squares >= low) & (squares <= high))

    def direct() -> Array:
        return jnp.sqrt(squares)

    def careful() -> Array:
        return jnp.stack([row_norms(x).astype(dtype) for x in arrays])

    if is_known(safe):
        return list(direct() if safe else careful())
    return list(jax.lax.cond(safe, direct, careful))


def _squares(x: Float[Array, "batch ..."]) -> PerExample:
    return jnp.sum(jnp.square(x), axis=_own_axes(x))


def _real(x: Inexact[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x
    return jnp.stack([x.real, x.imag], axis=1)


def _own_axes(rows: Inexact[Array, "batch ..."]) -> tuple[int, ...]:
    return tuple(range(1, rows.ndim))


def clip_factors(norm: PerExample, l2_clip_norm: Any) -> PerExample:
    """min(1, C / norm): 1 for a zero norm, 0 for one that is not finite."""
    clip = jnp.asarray(l2_clip_norm, norm.dtype)
    too_long = norm > clip
    factor = jnp.where(too_long, clip / jnp.where(too_long, norm, 1), 1)
    return jnp.where(jnp.isfinite(norm), factor, 0)


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which gradients are added up: float32, complex64 or wider."""
    return promote(dtype, wide(dtype))


def weighted_sum(
    factor: PerExample, rows: Array, dtype: Any, silence: bool = True
) -> Array:
    """sum_b factor_b * rows_b, where with `silence` a factor of 0 silences a NaN."""
    if silence:
        rows = jnp.where(rows_like(factor != 0, rows), rows, jnp.zeros_like(rows))
    return jnp.tensordot(
        factor.astype(dtype), rows.astype(dtype), axes=1, precision="highest"
    )
