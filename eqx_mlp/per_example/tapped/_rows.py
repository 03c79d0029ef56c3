"""The gradient of a matrix that multiplied rows: a sum of outer products, unformed.

Where y_t = W x_t for rows t, an example's gradient is G = sum_t d_t x_t^T. Both sides
are equals here, l and r: G = sum_t l_t r_t^T. With one row |G| = |l| |r|. With more,
|G|^2 = sum_ts (l_t . l_s)(r_t . r_s), the Gram form: T^2 (L + R) multiplications,
against T L R to form G itself. For norms alone Gram is cheaper while T < L R / (L + R).
Where a sum follows, Gram takes the product T L R after all, and formed gradients only
a pass over their L R entries: then Gram is cheaper while T^2 < 2 L R / (L + R).

A row of an embedding is the same with l_t the unit vector of the index: l_t . l_s is 1
where the indices agree, and l_t . x is an entry of x. So a table that is both embedding
and output projection joins as more rows.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..._types import PerExample
from .._norm import row_norms, scaled, sum_dtype
from .._products import squared
from ._form import Cost, Dense, Form, Shared, divided
from ._gram import Sides, common, over_largest, pairs_summed, products_summed
from ._side import Side, outer, summed_outer

# How a value's axes fall apart: groups, left side, right side.
Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
Part = tuple[Side, Side]
# Formed gradients may take this many bytes before the Gram form is preferred.
MEMORY = 2**28


class Multiplications(NamedTuple):
    """The Gram form, the product that sums or forms, and a pass over what is formed."""

    gram: int
    product: int
    entries: int


class Rows(Form):
    """G[b, group] = sum over rows of left x right.

    `parts` holds pairs of sides; the rows of all of them add up. `axes` says which axes
    of the value are groups (independent products), left side and right side, counted in
    `split`: the value's shape, in which an axis may be two. `form` forms the gradients
    where that is cheaper by another way than by their rows.
    """

    def __init__(
        self,
        parts: list[Part],
        axes: Axes,
        shape: tuple[int, ...],
        precision: Any = None,
        split: tuple[int, ...] | None = None,
        form: Callable[[], Inexact[Array, "batch ..."]] | None = None,
    ) -> None:
        self.parts = parts
        self.axes = axes
        self.shape = shape
        self.split = shape if split is None else split
        self.precision = precision
        self.form = form
        self.formed: Any = None
        self.then_sum = True

    @property
    def row_count(self) -> int:
        """Rows of an example in one group."""
        return sum(right.shape[2] for _, right in self.parts)

    def side_size(self, side: int) -> int:
        """How many entries the groups (0), a left (1) or a right vector (2) have."""
        return math.prod(self.split[axis] for axis in self.axes[side])

    def multiplications(self) -> Multiplications:
        """What one example costs in one group."""
        t, left, right = self.row_count, self.side_size(1), self.side_size(2)
        vectors = sum(r.shape[2] for x, r in self.parts if not x.is_places)
        product = vectors * left * right + (t - vectors) * right
        return Multiplications(
            gram=t * t * right + t * vectors * left,
            product=product,
            entries=left * right,
        )

    @property
    def route(self) -> str:
        """The product for one row, else the cheaper one that fits into memory."""
        if self.row_count == 1:
            return "|a||d|"
        n = self.multiplications()
        gram, formed = n.gram, n.product + n.entries
        if self.then_sum:  # the sum of what has been formed is only a pass over it
            gram, formed = gram + n.product, formed + n.entries
        batch, t = self.parts[0][1].shape[0], self.row_count
        bytes_formed = 4 * batch * self.side_size(0) * n.entries
        too_big = bytes_formed > MEMORY and t * t < n.entries
        return "Gram" if gram <= formed or too_big else "formed"

    def measured(
        self, shared: Shared, then_sum: bool
    ) -> list[Inexact[Array, "batch ..."]]:
        """By the route: the one row's sides, the formed gradient, or nothing.

        |l r^T| = |l| |r|; where there are several groups, so many norms an example.
        """
        self.then_sum = then_sum
        if self.route == "Gram":
            return []
        if self.route == "formed":
            return [self.dense()]
        sides = [side for side in self.parts[0] if not side.is_places]
        batch, groups = sides[0].shape[:2]
        if groups == 1:
            return [side.raw for side in sides]
        flat = [s.array().reshape(batch * groups, s.shape[3]) for s in sides]
        norms = functools.reduce(jnp.multiply, row_norms(flat))
        return [norms.reshape(batch, groups)]

    def norms(self, measures: list[PerExample]) -> PerExample:
        """By the route."""
        if self.route == "Gram":
            return self.gram_norms()
        return functools.reduce(jnp.multiply, measures)

    def gram_norms(self) -> PerExample:
        """sqrt sum_ts (l_t . l_s)(r_t . r_s), each side divided by its largest entry.

        Rounding may take the sum below 0 where the rows cancel: it is kept at 0.
        """
        parts, top = self.over_largest()
        pairs = itertools.combinations_with_replacement(parts, 2)
        squares = functools.reduce(
            jnp.add,
            ((1 if p is q else 2) * products_summed(p, q) for p, q in pairs),
        )
        return top * jnp.sqrt(jnp.maximum(squares, 0))

    def over_largest(self) -> tuple[list[Sides], PerExample]:
        """Both sides of each part over their largest entries, and the product of these.

        A unit vector stays one; what it would be divided by is put on the other side.
        """
        dtype = common(side for part in self.parts for side in part)
        lefts, left_top = over_largest([left for left, _ in self.parts], dtype)
        rights = [right.array().astype(dtype) for _, right in self.parts]
        rights = [
            divided(r, left_top) if left.is_places else r
            for r, (left, _) in zip(rights, self.parts, strict=True)
        ]
        rights, right_top = over_largest([Side.of(r) for r in rights], dtype)
        return list(zip(lefts, rights, strict=True)), left_top * right_top

    def dense(self) -> Inexact[Array, "batch ..."]:
        """The gradients themselves, in float32 or wider; formed once."""
        if self.formed is None and self.form is not None:
            self.formed = self.form()
        if self.formed is None:
            dtype = common(side for part in self.parts for side in part)
            outers = (outer(*part, self.side_size(1), dtype) for part in self.parts)
            self.formed = self.as_value(functools.reduce(jnp.add, outers), batch=True)
        return self.formed

    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """One matrix product over examples and rows: sum_bt l_bt r_bt^T."""
        dtype = common(side for part in self.parts for side in part)
        size = self.side_size(1)
        sums = (summed_outer(*part, size, dtype, self.precision) for part in self.parts)
        return self.as_value(functools.reduce(jnp.add, sums), batch=False)

    def scaled(self, factor: PerExample, silence: bool = False) -> Form:
        """With the factor on the smaller side, or on what has been formed for norms."""
        if self.formed is not None:
            return Dense(self.formed, self.route).scaled(factor, silence)
        parts = [
            (left.scaled(factor, silence), right)
            if not left.is_places and left.shape[3] < right.shape[3]
            else (left, right.scaled(factor, silence))
            for left, right in self.parts
        ]
        form = self.form and (lambda: scaled(factor, self.dense(), silence))
        return Rows(parts, self.axes, self.shape, self.precision, self.split, form)

    @property
    def loud(self) -> int:
        """The sides on which there is no factor."""
        return sum(side.loud for part in self.parts for side in part)

    def silenced(self) -> "Rows":
        """An example times 0 has zeros on one side: the other need only be finite."""
        parts = [(left.silenced(), right.silenced()) for left, right in self.parts]
        return Rows(parts, self.axes, self.shape, self.precision, self.split)

    def second_moment(self, factor: PerExample) -> Float[Array, "..."]:
        """Of one row: (l_i r_j)^2 = l_i^2 r_j^2, a weighted sum of rows again."""
        if self.row_count > 1:
            return super().second_moment(factor)
        ((left, right),), top = self.over_largest()
        left = left if left.ndim == 3 else squared(left)
        squares = [(Side.of(left), Side.of(squared(right)))]
        rows = Rows(squares, self.axes, self.shape, self.precision, self.split)
        return rows.scaled(factor.astype(top.dtype) * top * top).sum({})

    def products(self, other: Form) -> Float[Array, "batch other"]:
        """The Gram form, T T' (L + R) a pair, where that is less than L R."""
        left, right = self.side_size(1), self.side_size(2)
        if not isinstance(other, Rows) or (
            self.row_count * other.row_count * (left + right)
            > max(left * right, left + right)
        ):
            return super().products(other)
        mine, top = self.over_largest()
        others, other_top = other.over_largest()
        sums = (pairs_summed(p, q) for p in mine for q in others)
        return top[:, None] * other_top[None, :] * functools.reduce(jnp.add, sums)

    def part(self, i: int) -> Form:
        """Some of the groups, where the first axis is one of groups."""
        groups, left, right = self.axes
        if groups[:1] != (0,) or self.form is not None:
            return super().part(i)
        size = math.prod(self.split[axis] for axis in groups[1:])
        parts = [
            (x.some(i * size, size), y.some(i * size, size)) for x, y in self.parts
        ]
        inner, left, right = (
            tuple(axis - 1 for axis in axes) for axes in (groups[1:], left, right)
        )
        shape, split = self.shape[1:], self.split[1:]
        return Rows(parts, (inner, left, right), shape, self.precision, split)

    def cost(self) -> Cost:
        """By the formulas of this file: two FLOPs a multiplication."""
        right = self.parts[0][1]
        many, t = right.shape[0] * right.shape[1], self.row_count
        n = self.multiplications()
        item = jnp.dtype(sum_dtype(right.raw.dtype)).itemsize
        if self.route == "Gram":
            return Cost(
                2 * many * n.gram, 2 * many * n.product, 2 * many * t * t * item
            )
        if self.route == "formed":
            norm = n.product + n.entries
            return Cost(2 * many * norm, 2 * many * n.entries, many * n.entries * item)
        return Cost(2 * many * n.gram, 2 * many * n.product, 0)

    def as_value(
        self, x: Inexact[Array, "... group left right"], batch: bool
    ) -> Inexact[Array, "..."]:
        """Groups and sides put back as the axes of the value."""
        order = [axis for side in self.axes for axis in side]
        lead = x.shape[: int(batch)]
        x = x.reshape(*lead, *(self.split[axis] for axis in order))
        back = [int(batch) + order.index(axis) for axis in range(len(order))]
        return x.transpose(*range(len(lead)), *back).reshape(*lead, *self.shape)

    def joined(self, other: "Rows") -> "Rows | None":
        """The sum of both, or None where their sides are not the same axes."""
        if (self.axes, self.split) != (other.axes, other.split):
            return None
        kinds: dict[bool, list[Part]] = {}
        for part in (*self.parts, *other.parts):
            kinds.setdefault(part[0].is_places, []).append(part)
        parts = [
            (
                Side.stacked([left for left, _ in same]),
                Side.stacked([right for _, right in same]),
            )
            for same in kinds.values()
        ]
        precision = self.precision or other.precision
        return Rows(parts, self.axes, self.shape, precision, self.split)
