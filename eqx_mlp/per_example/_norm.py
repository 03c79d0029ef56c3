"""Euclidean norms over trees, exact where squares would over- or underflow."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .._dtypes import promote, wide
from .._known import is_known
from .._types import PerExample
from ._batch import rows_like


def careful_norms(
    arrays: list[Inexact[Array, "batch ..."]],
) -> Float[Array, "array batch"]:
    """The norm of each row of each array, in float32 or wider.

    Rows are divided by their largest magnitude before squaring, so float16 rows of norm
    500 and float32 rows of norm 1e-25 come out right. A row with a NaN has norm NaN,
    one with an infinity has norm infinity.
    """
    dtype = promote(*(wide(x.dtype) for x in arrays))

    def norms(x: Array) -> PerExample:
        x = _real(x).astype(dtype)
        largest = jnp.max(jnp.abs(x), axis=_own_axes(x), initial=0)
        usable = jnp.isfinite(largest) & (largest > 0)
        scale = jnp.where(usable, largest, 1)
        root = jnp.sqrt(_squares(x / rows_like(scale, x)))
        return jnp.where(usable, scale * root, largest)

    return jnp.stack([norms(x) for x in arrays])


def joint_norm(parts: list[PerExample]) -> PerExample:
    """The norm of what has these norms, as careful as `careful_norms`.

    Entry by entry, which compiles to one loop over the batch.
    """
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, parts))
    usable = jnp.isfinite(largest) & (largest > 0)
    scale = jnp.where(usable, largest, 1)
    squares = functools.reduce(jnp.add, (jnp.square(x / scale) for x in parts))
    return jnp.where(usable, scale * jnp.sqrt(jnp.where(usable, squares, 1)), largest)


@jax.custom_jvp
def each_row_norms(
    arrays: list[Inexact[Array, "batch ..."]],
) -> Float[Array, "array batch"]:
    """The same at the price of one pass over each array.

    Squares are taken as they are and kept where none of them, for no row of any array,
    came near the ends of the range; otherwise all is done again with care.
    """
    dtype = promote(*(wide(x.dtype) for x in arrays))
    squares = jnp.stack([_squares(_real(x).astype(dtype)) for x in arrays])
    limits = jnp.finfo(dtype)
    # What n squares lose by underflow, n * tiny, is then below the rounding of the sum.
    size = max(x.size // max(x.shape[0], 1) for x in arrays)
    low, high = size * limits.tiny / limits.eps, limits.max / 4
    safe = jnp.all((squares >= low) & (squares <= high))
    if is_known(safe):
        return jnp.sqrt(squares) if safe else careful_norms(arrays)
    return jax.lax.cond(safe, lambda: jnp.sqrt(squares), lambda: careful_norms(arrays))


@each_row_norms.defjvp
def _move_of_norms(primals: tuple, tangents: tuple) -> tuple:
    # d|x| = x . dx / |x|, and 0 at a zero row, where there is no derivative.
    (arrays,), (moves,) = primals, tangents
    norms = each_row_norms(arrays)

    def move(x: Array, dx: Array, norm: PerExample) -> PerExample:
        x, dx = _real(x).astype(norm.dtype), _real(dx).astype(norm.dtype)
        unit = x / rows_like(jnp.where(norm == 0, 1, norm), x)
        return jnp.sum(unit * dx, axis=_own_axes(x))

    return norms, jnp.stack(
        [move(*row) for row in zip(arrays, moves, norms, strict=True)]
    )


def _squares(x: Float[Array, "batch ..."]) -> PerExample:
    return jnp.sum(jnp.square(x), axis=_own_axes(x))


def _real(x: Inexact[Array, "batch ..."]) -> Float[Array, "batch ..."]:
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x
    return jnp.stack([x.real, x.imag], axis=1)


def _own_axes(rows: Inexact[Array, "batch ..."]) -> tuple[int, ...]:
    return tuple(range(1, rows.ndim))


def clip_factors(norm: PerExample, l2_clip_norm: Any) -> PerExample:
    """min(1, C / norm): 1 for a zero norm, 0 for one that is not finite.

    Constants where a clipped sum is differentiated.
    """
    norm = jax.lax.stop_gradient(norm)
    clip = jnp.asarray(l2_clip_norm, norm.dtype)
    too_long = norm > clip
    factor = jnp.where(too_long, clip / jnp.where(too_long, norm, 1), 1)
    return jnp.where(jnp.isfinite(norm), factor, 0)


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which gradients are added up: float32, complex64 or wider."""
    return promote(dtype, wide(dtype))


def weighted_sum(
    factor: PerExample, rows: Inexact[Array, "batch ..."], silence: bool
) -> Inexact[Array, "..."]:
    """sum_b factor_b * rows_b, where with `silence` a factor of 0 silences a NaN."""
    dtype = sum_dtype(rows.dtype)
    if silence:
        rows = jnp.where(rows_like(factor != 0, rows), rows, jnp.zeros_like(rows))
    return jnp.tensordot(
        factor.astype(dtype), rows.astype(dtype), axes=1, precision="highest"
    )
