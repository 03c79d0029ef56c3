"""The gradient of a matrix that multiplied rows: a sum of outer products, unformed.

Where y_t = W x_t for rows t, an example's gradient is G = sum_t d_t x_t^T. The two
sides are equals here, l and r: G = sum_t l_t r_t^T. With one row |G| = |l| |r|. With
more, |G|^2 = sum_ts (l_t . l_s)(r_t . r_s): the Gram form, T^2 (L + R) multiplications,
against T L R to form G itself: Gram is cheaper while T < L R / (L + R).

A row of an embedding is the same with l_t = the unit vector of the index: l_t . l_s is
1 where the indices agree, and l_t . x is an entry of x. So a table that is both
embedding and output projection joins as more rows.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact, Int, Shaped

from ..._types import PerExample
from .._norm import row_norms, sum_dtype, weighted_sum
from ._form import Form, divided, largest, scaled, silenced

# One side of the rows: vectors, or for unit vectors the place of the 1.
Vectors = Inexact[Array, "batch group row _"]
Places = Int[Array, "batch group row"]
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
# Formed gradients may take this many bytes before the Gram form is preferred.
MEMORY = 2**28


class Rows(Form):
    """G[b, group] = sum over rows of left x right.

    `parts` holds pairs of sides; the rows of all of them add up. `axes` says which axes
    of the value are groups (independent products), left side and right side.
    """

    def __init__(
        self,
        parts: list[tuple[Vectors | Places, Vectors]],
        axes: Axes,
        shape: tuple[int, ...],
        precision: Any = None,
    ) -> None:
        self.parts = parts
        self.axes = axes
        self.shape = shape
        self.precision = precision

    @property
    def row_count(self) -> int:
        """Rows of an example in one group."""
        return sum(right.shape[2] for _, right in self.parts)

    def side_size(self, side: int) -> int:
        """How many entries the groups (0), a left (1) or a right vector (2) have."""
        return math.prod(self.shape[axis] for axis in self.axes[side])

    def multiplications(self) -> tuple[int, int]:
        """What a group of one example costs: by the Gram form, and formed."""
        t, left, right = self.row_count, self.side_size(1), self.side_size(2)
        vectors = sum(r.shape[2] for x, r in self.parts if not is_places(x))
        gram = t * t * right + t * vectors * left
        formed = vectors * left * right + (t - vectors) * right + left * right
        return gram, formed

    @property
    def route(self) -> str:
        """The product for one row, else the cheaper one that fits into memory."""
        if self.row_count == 1:
            return "|a||d|"
        gram, formed = self.multiplications()
        batch, t = self.parts[0][1].shape[0], self.row_count
        entries = self.side_size(1) * self.side_size(2)
        too_big = 4 * batch * self.side_size(0) * entries > MEMORY and t * t < entries
        return "Gram" if gram <= formed or too_big else "formed"

    def norms(self) -> PerExample:
        """By the route."""
        if self.route == "|a||d|":
            return self.product_norms()
        return self.gram_norms() if self.route == "Gram" else row_norms(self.dense())

    def product_norms(self) -> PerExample:
        """|l r^T| = |l| |r| in each group, then over the groups."""
        ((left, right),) = self.parts
        batch, groups = right.shape[:2]
        norm = row_norms(right.reshape(batch * groups, right.shape[3]))
        if not is_places(left):
            other = row_norms(left.reshape(batch * groups, left.shape[3]))
            norm = norm * other.astype(norm.dtype)
        return norm if groups == 1 else row_norms(norm.reshape(batch, groups))

    def gram_norms(self) -> PerExample:
        """sqrt sum_ts (l_t . l_s)(r_t . r_s), each side divided by its largest entry.

        Rounding may take the sum below 0 where the rows cancel: it is kept at 0.
        """
        dtype = common(side for part in self.parts for side in part)
        lefts, left_top = over_largest([left for left, _ in self.parts], dtype)
        rights, right_top = over_largest([right for _, right in self.parts], dtype)
        pairs = itertools.combinations_with_replacement(range(len(lefts)), 2)
        squares = functools.reduce(
            jnp.add,
            (
                (1 if i == j else 2) * products_summed(lefts, rights, i, j)
                for i, j in pairs
            ),
        )
        return left_top * right_top * jnp.sqrt(jnp.maximum(squares, 0))

    @functools.cached_property
    def formed(self) -> Inexact[Array, "batch ..."]:
        """The gradients themselves, in float32 or wider, with the value's axes."""
        size = self.side_size(1)
        return self.as_value(
            functools.reduce(jnp.add, (outer(*p, size) for p in self.parts)), batch=True
        )

    def dense(self) -> Inexact[Array, "batch ..."]:
        """The gradients themselves."""
        return self.formed

    def weighted_sum(self, factor: PerExample) -> Inexact[Array, "..."]:
        """One matrix product over examples and rows: sum_bt l_bt (c_b r_bt)^T."""
        if self.route == "formed":
            return weighted_sum(factor, self.formed, self.formed.dtype)
        size = self.side_size(1)
        sums = (
            summed_outer(factor, left, right, size, self.precision)
            for left, right in self.parts
        )
        return self.as_value(functools.reduce(jnp.add, sums), batch=False)

    def as_value(
        self, x: Inexact[Array, "... group left right"], batch: bool
    ) -> Inexact[Array, "..."]:
        """Groups and sides put back as the axes of the value."""
        order = [axis for side in self.axes for axis in side]
        lead = x.shape[: int(batch)]
        x = x.reshape(*lead, *(self.shape[axis] for axis in order))
        back = [int(batch) + order.index(axis) for axis in range(len(order))]
        return x.transpose(*range(len(lead)), *back)

    def joined(self, other: "Rows") -> "Rows | None":
        """The sum of both, or None where their sides are not the same axes."""
        if self.axes != other.axes:
            return None
        kinds: dict[bool, list] = {}
        for part in (*self.parts, *other.parts):
            kinds.setdefault(is_places(part[0]), []).append(part)
        parts = [
            (stacked([left for left, _ in same]), stacked([right for _, right in same]))
            for same in kinds.values()
        ]
        return Rows(parts, self.axes, self.shape, self.precision or other.precision)


def is_places(side: Vectors | Places) -> bool:
    """Whether a side is unit vectors given by the place of their 1."""
    return jnp.issubdtype(side.dtype, jnp.integer)


def stacked(sides: list) -> Vectors | Places:
    """Rows of several uses, one after the other."""
    if len(sides) == 1:
        return sides[0]
    if not is_places(sides[0]):
        dtype = common(sides)
        sides = [side.astype(dtype) for side in sides]
    return jnp.concatenate(sides, axis=2)


def common(sides: Iterable[Vectors | Places]) -> Any:
    """One dtype to compute with: that of the vectors, float32 or wider."""
    dtypes = [sum_dtype(side.dtype) for side in sides if not is_places(side)]
    return functools.reduce(jnp.promote_types, dtypes)


def over_largest(sides: list, dtype: Any) -> tuple[list, PerExample]:
    """One side of all parts divided by the example's largest entry, and that entry."""
    vectors = [side.astype(dtype) for side in sides if not is_places(side)]
    real = jnp.finfo(dtype).dtype
    top = functools.reduce(
        jnp.maximum, map(largest, vectors), jnp.zeros(sides[0].shape[0], real)
    )
    top = jnp.where(top > 0, top, jnp.ones_like(top))
    return [
        side if is_places(side) else divided(side.astype(dtype), top) for side in sides
    ], top


def products_summed(lefts: list, rights: list, i: int, j: int) -> PerExample:
    """sum_ts (l_t . conj l_s)(r_t . conj r_s) between the parts i and j."""
    left, right = inner(lefts[i], lefts[j]), inner(rights[i], rights[j])
    if left.dtype == bool:
        return jnp.sum(jnp.where(left, right.real, 0), axis=(1, 2, 3))
    return jnp.sum((left * right).real, axis=(1, 2, 3))


def inner(a: Vectors | Places, b: Vectors | Places) -> Shaped[Array, "batch group s t"]:
    """a_s . conj b_t for all pairs of rows; for two unit vectors whether they agree."""
    if is_places(a) and is_places(b):
        return jnp.expand_dims(a, 3) == jnp.expand_dims(b, 2)
    if is_places(a):
        return jnp.swapaxes(inner(b, a).conj(), 2, 3)
    if is_places(b):
        return jnp.take_along_axis(a, jnp.expand_dims(b, 2), axis=3)
    return jnp.einsum("bgsv,bgtv->bgst", a, b.conj(), precision="highest")


def outer(
    left: Vectors | Places, right: Vectors, size: int
) -> Inexact[Array, "batch group left right"]:
    """sum_t l_t r_t^T of each example and group."""
    dtype = common((left, right))
    right = right.astype(dtype)
    if not is_places(left):
        return jnp.einsum(
            "bgtl,bgtr->bglr", left.astype(dtype), right, precision="highest"
        )
    add = functools.partial(jax.ops.segment_sum, num_segments=size)
    return jax.vmap(jax.vmap(add))(right, left)


def summed_outer(
    factor: PerExample,
    left: Vectors | Places,
    right: Vectors,
    size: int,
    precision: Any,
) -> Inexact[Array, "group left right"]:
    """sum_bt c_b l_bt r_bt^T of each group."""
    if is_places(left):
        add = functools.partial(jax.ops.segment_sum, num_segments=size)
        rows, places = scaled(factor, right), left
        groups = rows.shape[1]
        n = rows.shape[0] * rows.shape[2]
        rows = jnp.moveaxis(rows, 1, 0).reshape(groups, n, rows.shape[3])
        return jax.vmap(add)(rows, jnp.moveaxis(places, 1, 0).reshape(groups, n))
    dtype = common((left, right))
    left, right = left.astype(dtype), right.astype(dtype)
    if left.shape[3] < right.shape[3]:
        left, right = scaled(factor, left), silenced(factor, right)
    else:
        left, right = silenced(factor, left), scaled(factor, right)
    return jnp.einsum("bgtl,bgtr->glr", left, right, precision=precision)
