"""One side of a sum of outer products, and such sums."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Shaped

from ..._dtypes import promote
from ..._types import PerExample
from .._norm import sum_dtype
from ._form import scaled, silenced

# The side of what is worked on at once where an example is not finite.
TILE = 128


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
    return scaled_product(factor, left, right, dtype, precision, silence)


def scaled_product(
    factor: PerExample,
    left: Side,
    right: Side,
    dtype: Any,
    precision: Any,
    silence: bool,
) -> Inexact[Array, "group left right"]:
    """sum_bt c_b l_bt r_bt^T, with the factor put on the smaller side.

    To silence both sides takes a copy of each. They are made a tile of the result at a
    time: memory is bounded before it is known whether one is needed.
    """
    product = functools.partial(jnp.einsum, "bgtl,bgtr->glr", precision=precision)
    left_size, right_size = left.shape[3], right.shape[3]
    if not silence:
        x, y = left.array().astype(dtype), right.array().astype(dtype)
        if left_size < right_size:
            return product(scaled(factor, x), y)
        return product(x, scaled(factor, y))
    rows, columns = min(left_size, TILE), min(right_size, TILE)
    down, across = -(-left_size // rows), -(-right_size // columns)

    def add(k: Any, out: Array) -> Array:
        # A last tile that would stick out is moved in, over what is there already.
        i = jnp.minimum(k // across * rows, left_size - rows)
        j = jnp.minimum(k % across * columns, right_size - columns)
        x = jax.lax.dynamic_slice_in_dim(left.array(), i, rows, 3)
        y = jax.lax.dynamic_slice_in_dim(right.array(), j, columns, 3)
        x, y = silenced(factor, x).astype(dtype), silenced(factor, y).astype(dtype)
        start = (jnp.zeros_like(i), i, j)
        return jax.lax.dynamic_update_slice(out, product(x, scaled(factor, y)), start)

    zeros = jnp.zeros((left.shape[1], left_size, right_size), dtype)
    return jax.lax.fori_loop(0, down * across, add, zeros)
