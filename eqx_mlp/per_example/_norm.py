"""Euclidean norms over trees, exact where squares would over- or underflow."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact

from .._dtypes import promote, wide
from .._types import PerExample
from ._batch import rows_like
from ._choose import choose

# Rows of at most so many entries are as an activation, others as a formed gradient.
NARROW = 2**12


def joint_norm(parts: list[PerExample]) -> PerExample:
    """The norm of what has these norms, as careful as `row_norms`.

    Entry by entry, which compiles to one loop over the batch.
    """
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, parts))
    usable = jnp.isfinite(largest) & (largest > 0)
    scale = jnp.where(usable, largest, 1)
    squares = functools.reduce(jnp.add, (jnp.square(x / scale) for x in parts))
    return jnp.where(usable, scale * jnp.sqrt(jnp.where(usable, squares, 1)), largest)


@jax.custom_jvp
def row_norms(arrays: list[Inexact[Array, "batch ..."]]) -> list[PerExample]:
    """The norm of each row of each array, in float32 or wider, by one pass over each.

    Where some row's sum of squares is near an end of the range, all are taken again and
    such rows times a power of two: float16 rows of norm 500 and float32 rows of norm
    1e-25 come out right. A row with a NaN has norm NaN, with an infinity infinity.
    """
    dtype = promote(*(wide(x.dtype) for x in arrays))
    arrays = [_real(x).astype(dtype) for x in arrays]
    squares = [_squares(x) for x in arrays]
    size = max(x.size // max(x.shape[0], 1) for x in arrays)
    scales = [_into_range(s, size) for s in squares]
    marks = (jnp.where(c == 1, 0, jnp.full_like(c, jnp.inf)) for c in scales)
    safe = all_finite(functools.reduce(jnp.maximum, marks))
    again = lambda: [
        _squares(x * rows_like(c, x)) for x, c in zip(arrays, scales, strict=True)
    ]
    found = choose(safe, lambda: squares, again)
    return [jnp.sqrt(s) / c for s, c in zip(found, scales, strict=True)]


def all_finite(x: Float[Array, " n"]) -> Bool[Array, ""]:
    """Whether no entry of `x`, none below 0, is NaN or infinite."""
    return jnp.isfinite(jnp.max(x, initial=0))


def _into_range(squares: PerExample, size: int) -> PerExample:
    """What moves rows of so many entries from an end of the range to its middle.

    A power of two, which rounds nothing; 1 for rows that need not be moved.
    """
    limits = jnp.finfo(squares.dtype)
    # What n squares lose by underflow, n * tiny, is then below the rounding of the sum.
    low = size * limits.tiny / limits.eps
    up, down = 2.0 ** (limits.maxexp * 3 // 4), 2.0 ** -(limits.maxexp * 5 // 8)
    scale = jnp.where(squares < low, up, jnp.ones_like(squares))
    return jnp.where(squares == jnp.inf, down, scale)


@row_norms.defjvp
def _move_of_norms(primals: tuple, tangents: tuple) -> tuple:
    # d|x| = x . dx / |x|, and 0 at a zero row, where there is no derivative.
    (arrays,), (moves,) = primals, tangents
    norms = row_norms(arrays)

    def move(x: Array, dx: Array, norm: PerExample) -> PerExample:
        x, dx = _real(x).astype(norm.dtype), _real(dx).astype(norm.dtype)
        unit = x / rows_like(jnp.where(norm == 0, 1, norm), x)
        return jnp.sum(unit * dx, axis=_own_axes(x))

    return norms, [move(*row) for row in zip(arrays, moves, norms, strict=True)]


def _squares(x: Float[Array, "batch ..."]) -> PerExample:
    size = math.prod(x.shape[1:])
    old_cpu = jax.__version_info__ < (0, 10, 2) and jax.default_backend() == "cpu"
    if old_cpu and size <= NARROW:
        # Older XLA writes all squares to memory before it adds them up on a CPU, but
        # not those of narrow rows before it multiplies them by something.
        rows = jnp.square(x).reshape(x.shape[0], size)
        return jnp.matmul(rows, jnp.ones(size, x.dtype), precision="highest")
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


def scaled(
    factor: PerExample, rows: Inexact[Array, "batch ..."], silence: bool = False
) -> Inexact[Array, "batch ..."]:
    """factor_b rows_b in the dtype of sums; with `silence` 0 * NaN is 0."""
    dtype = sum_dtype(rows.dtype)
    rows, factor = rows.astype(dtype), rows_like(factor.astype(dtype), rows)
    return jnp.where(factor == 0, 0, factor * rows) if silence else factor * rows


def weighted_sum(
    factor: PerExample, rows: Inexact[Array, "batch ..."], silence: bool = False
) -> Inexact[Array, "..."]:
    """sum_b factor_b rows_b by one product; with `silence` 0 * NaN is 0."""
    dtype = sum_dtype(rows.dtype)
    if silence:
        rows = jnp.where(rows_like(factor != 0, rows), rows, jnp.zeros_like(rows))
    return jnp.tensordot(
        factor.astype(dtype), rows.astype(dtype), axes=1, precision="highest"
    )
