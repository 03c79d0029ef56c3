"""Euclidean norms over trees, exact where squares would over- or underflow."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, PyTree

from .._dtypes import promote, wide
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
    magnitudes = [jnp.abs(leaf).astype(dtype) for leaf in leaves]
    largest = jnp.zeros(leaves[0].shape[0], dtype)
    for m in magnitudes:
        largest = jnp.maximum(largest, jnp.max(m, axis=_own_axes(m), initial=0))
    usable = jnp.isfinite(largest) & (largest > 0)
    scale = jnp.where(usable, largest, 1)
    squares = jnp.zeros_like(scale)
    for m in magnitudes:
        scaled = m / jax.lax.expand_dims(scale, _own_axes(m))
        squares = squares + jnp.sum(jnp.square(scaled), axis=_own_axes(m))
    return jnp.where(usable, scale * jnp.sqrt(squares), largest)


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


def weighted_sum(factor: PerExample, rows: Array, dtype: Any) -> Array:
    """sum_b factor_b * rows_b, where a factor of 0 silences even a NaN."""
    rows = jnp.where(rows_like(factor != 0, rows), rows, jnp.zeros_like(rows))
    return jnp.tensordot(
        factor.astype(dtype), rows.astype(dtype), axes=1, precision="highest"
    )
