"""One side of a sum of outer products, and such sums."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Shaped

from ..._dtypes import promote
from ..._types import PerExample
from .._norm import sum_dtype
from ._form import scaled, silenced

# How many columns are worked on at once where an example is not finite.
SILENCED_COLUMNS = 64


@dataclasses.dataclass(frozen=True)
class Side:
    """Vectors `[batch, group, row, size]`, or `[batch, group, row]` places of a 1.

    Kept as the array they came in, and brought into that shape where they are used:
    XLA would make a second array of a reshaped one that enters a branch.
    """

    raw: Shaped[Array, "batch ..."]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_places(self) -> bool:
        """Whether these are unit vectors, given by the place of their 1."""
        return len(self.shape) == 3

    def array(self) -> Shaped[Array, "batch group row ..."]:
        """In shape."""
        return self.raw.transpose(self.order).reshape(self.shape)

    @staticmethod
    def of(array: Shaped[Array, "batch group row ..."]) -> "Side":
        """An array that is in shape already."""
        return Side(array, tuple(range(array.ndim)), array.shape)

    @staticmethod
    def stacked(sides: "list[Side]") -> "Side":
        """Rows of several uses, one after the other."""
        if len(sides) == 1:
            return sides[0]
        arrays = [side.array() for side in sides]
        if not sides[0].is_places:
            dtypes = (sum_dtype(x.dtype) for x in arrays)
            dtype = functools.reduce(promote, dtypes)
            arrays = [x.astype(dtype) for x in arrays]
        return Side.of(jnp.concatenate(arrays, axis=2))


def outer(
    left: Side, right: Side, size: int, dtype: Any
) -> Inexact[Array, "batch group left right"]:
    """sum_t l_t r_t^T of each example and group."""
    r = right.array().astype(dtype)
    if left.is_places:
        add = functools.partial(jax.ops.segment_sum, num_segments=size)
        return jax.vmap(jax.vmap(add))(r, left.array())
    return jnp.einsum(
        "bgtl,bgtr->bglr", left.array().astype(dtype), r, precision="highest"
    )


def summed_outer(
    factor: PerExample,
    left: Side,
    right: Side,
    size: int,
    dtype: Any,
    precision: Any,
    silence: bool,
) -> Inexact[Array, "group left right"]:
    """sum_bt c_b l_bt r_bt^T of each group."""
    if left.is_places:
        y = right.array().astype(dtype)
        y = scaled(factor, silenced(factor, y) if silence else y)
        add = functools.partial(jax.ops.segment_sum, num_segments=size)
        batch, groups, rows, width = y.shape
        y = jnp.moveaxis(y, 1, 0).reshape(groups, batch * rows, width)
        places = jnp.moveaxis(left.array(), 1, 0).reshape(groups, batch * rows)
        return jax.vmap(add)(y, places)
    if left.shape[3] < right.shape[3]:
        product = functools.partial(jnp.einsum, "bgtx,bgty->gxy", precision=precision)
        return scaled_product(factor, left, right, product, 2, dtype, silence)
    product = functools.partial(jnp.einsum, "bgty,bgtx->gxy", precision=precision)
    return scaled_product(factor, right, left, product, 1, dtype, silence)


def scaled_product(
    factor: PerExample,
    small: Side,
    large: Side,
    product: Callable[[Any, Any], Any],
    axis: int,
    dtype: Any,
    silence: bool,
) -> Inexact[Array, "group left right"]:
    """product(factor * small, large), where `large` makes up `axis` of the result.

    To silence both sides takes a copy of each. That of the larger one is made a few
    columns at a time: memory is bounded before it is known whether one is needed.
    """
    x = small.array().astype(dtype)
    x = scaled(factor, silenced(factor, x) if silence else x)
    if not silence:
        return product(x, large.array().astype(dtype))
    n = large.shape[3]
    size = min(n, SILENCED_COLUMNS)

    def add(k: Any, out: Array) -> Array:
        start = jnp.minimum(k * size, n - size)
        some = jax.lax.dynamic_slice_in_dim(large.array(), start, size, 3)
        new = product(x, silenced(factor, some).astype(dtype))
        return jax.lax.dynamic_update_slice_in_dim(out, new, start, axis)

    sides = (small.shape[3], n) if axis == 2 else (n, small.shape[3])
    zeros = jnp.zeros((small.shape[1], *sides), dtype)
    return jax.lax.fori_loop(0, -(-n // size), add, zeros)
