"""Inner products of rows: what the Gram form is made of."""

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from ..._dtypes import promote
from ..._types import PerExample
from .._norm import sum_dtype
from ._form import divided, largest
from ._side import Side

# The left and the right side of a part, as arrays in shape.
Sides = tuple[Array, Array]


def common(sides: Iterable[Side]) -> Any:
    """One dtype to compute with: that of the vectors, float32 or wider."""
    dtypes = [sum_dtype(side.raw.dtype) for side in sides if not side.is_places]
    return functools.reduce(promote, dtypes)


def over_largest(sides: list[Side], dtype: Any) -> tuple[list, PerExample]:
    """One side of all parts divided by the example's largest entry, and that entry.

    A unit vector counts as an entry of 1, and is left as it is.
    """
    batch, real = sides[0].shape[0], jnp.finfo(dtype).dtype
    arrays = [s.array() if s.is_places else s.array().astype(dtype) for s in sides]
    tops = [
        jnp.ones(batch, real) if s.is_places else largest(x)
        for x, s in zip(arrays, sides, strict=True)
    ]
    top = functools.reduce(jnp.maximum, tops)
    top = jnp.where(jnp.isfinite(top) & (top > 0), top, jnp.ones_like(top))
    return [
        x if s.is_places else divided(x, top)
        for x, s in zip(arrays, sides, strict=True)
    ], top


def products_summed(p: Sides, q: Sides) -> PerExample:
    """sum_ts (l_t . conj l_s)(r_t . conj r_s) between two parts of an example."""
    left, right = (inner(a, b) for a, b in zip(p, q, strict=True))
    if left.dtype == bool:
        return jnp.sum(jnp.where(left, right.real, 0), axis=(1, 2, 3))
    return jnp.sum((left * right).real, axis=(1, 2, 3))


def pairs_summed(p: Sides, q: Sides) -> Float[Array, "batch other"]:
    """The same between a part of each example and one of each other example."""

    def one(p: Sides, q: Sides) -> Array:
        p, q = jax.tree.map(lambda x: x[None], (p, q))
        return products_summed(p, q)[0]

    return jax.vmap(jax.vmap(one, in_axes=(None, 0)), in_axes=(0, None))(p, q)


def inner(a: Array, b: Array) -> Shaped[Array, "batch group s t"]:
    """a_s . conj b_t for all pairs of rows; for two unit vectors whether they agree."""
    if a.ndim == 3 and b.ndim == 3:
        return jnp.expand_dims(a, 3) == jnp.expand_dims(b, 2)
    if a.ndim == 3:
        return jnp.swapaxes(inner(b, a).conj(), 2, 3)
    if b.ndim == 3:
        return jnp.take_along_axis(a, jnp.expand_dims(b, 2), axis=3)
    return jnp.einsum("bgsv,bgtv->bgst", a, b.conj(), precision="highest")
