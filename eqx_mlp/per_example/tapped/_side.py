"""One side of a sum of outer products, and such sums."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Shaped

from ..._dtypes import promote
from ..._types import PerExample
from .._norm import scaled, sum_dtype


@dataclasses.dataclass(frozen=True)
class Side:
    """Vectors `[batch, group, row, size]`, or `[batch, group, row]` places of a 1.

    Kept as the array they came in, and brought into that shape where they are used:
    XLA would make a second array of a reshaped one that enters a branch.
    """

    raw: Shaped[Array, "batch ..."]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    silent: bool = False
    """Whether no example that counts for nothing has a NaN here."""

    @property
    def loud(self) -> int:
        """The number of entries where there may be one."""
        return 0 if self.silent or self.is_places else self.raw.size

    @property
    def is_places(self) -> bool:
        """Whether these are unit vectors, given by the place of their 1."""
        return len(self.shape) == 3

    def array(self) -> Shaped[Array, "batch group row ..."]:
        """In shape."""
        return self.raw.transpose(self.order).reshape(self.shape)

    def scaled(self, factor: PerExample, silence: bool) -> "Side":
        """Each example's vectors times its factor, in the dtype of sums."""
        raw = scaled(factor, self.raw, silence)
        return Side(raw, self.order, self.shape, silent=silence)

    def silenced(self) -> "Side":
        """With 0 for all that is not finite."""
        if not self.loud:
            return self
        raw = jnp.where(jnp.isfinite(self.raw), self.raw, jnp.zeros_like(self.raw))
        return Side(raw, self.order, self.shape, silent=True)

    def some(self, start: int, size: int) -> "Side":
        """`size` of the groups."""
        return Side.of(self.array()[:, start : start + size])

    @staticmethod
    def of(array: Shaped[Array, "batch group row ..."]) -> "Side":
        """An array that is in shape already."""
        return Side(array, tuple(range(array.ndim)), array.shape)

    @staticmethod
    def cut(
        array: Shaped[Array, "batch ..."],
        groups: Sequence[int],
        rows: Sequence[int],
        entries: Sequence[int],
    ) -> "Side":
        """An array whose axes fall into groups, rows and a vector's entries."""
        parts = (groups, rows, entries)
        order = (0, *(axis for part in parts for axis in part))
        sizes = (math.prod(array.shape[axis] for axis in part) for part in parts)
        return Side(array, order, (array.shape[0], *sizes))

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
    left: Side, right: Side, size: int, dtype: Any, precision: Any
) -> Inexact[Array, "group left right"]:
    """sum_bt l_bt r_bt^T of each group."""
    if left.is_places:
        y = right.array().astype(dtype)
        add = functools.partial(jax.ops.segment_sum, num_segments=size)
        batch, groups, rows, width = y.shape
        y = jnp.moveaxis(y, 1, 0).reshape(groups, batch * rows, width)
        places = jnp.moveaxis(left.array(), 1, 0).reshape(groups, batch * rows)
        return jax.vmap(add)(y, places)
    x, y = left.array().astype(dtype), right.array().astype(dtype)
    if x.shape[1] > 1:
        return jnp.einsum("bgtl,bgtr->glr", x, y, precision=precision)
    # With a batch axis of length 1 XLA would turn both sides round first.
    x, y = (side.reshape(-1, side.shape[3]) for side in (x, y))
    return jnp.einsum("nl,nr->lr", x, y, precision=precision)[None]
