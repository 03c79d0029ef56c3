"""What a rule makes of a site: a parameter's gradient of each example, unformed."""

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from ..._types import PerExample
from .._batch import rows_like
from .._norm import NARROW, scaled, sum_dtype, weighted_sum
from .._products import products_of_rows, sum_of_squares

# Kept while the forms of a batch are asked for the same thing.
Shared = dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a batch takes beyond the backward pass: FLOPs, and bytes held at once."""

    norm_flops: int
    sum_flops: int
    bytes: int


class Form(abc.ABC):
    """The gradients of one value for every example of the batch."""

    shape: tuple[int, ...]
    """The value's own shape."""

    @abc.abstractmethod
    def measured(
        self, shared: Shared, then_sum: bool
    ) -> list[Inexact[Array, "batch ..."]]:
        """Arrays from whose row norms the norm follows; all are measured together.

        What is found for several forms at once is left for the others in `shared`.
        `then_sum` says that a weighted sum will be asked for, too.
        """

    @abc.abstractmethod
    def norms(self, measures: list[PerExample]) -> PerExample:
        """The norm of each example's gradient, from the row norms of `measured()`."""

    @abc.abstractmethod
    def dense(self) -> Inexact[Array, "batch ..."]:
        """The gradients themselves."""

    @abc.abstractmethod
    def scaled(self, factor: PerExample, silence: bool = False) -> "Form":
        """factor_b g_b, in float32 or wider; with `silence` 0 * NaN is 0.

        As far as that costs nothing: `loud` tells where a NaN may be left.
        """

    @abc.abstractmethod
    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """sum_b g_b in float32 or wider."""

    @property
    def loud(self) -> int:
        """How large the arrays are in which a NaN of an example times 0 may be left."""
        return 0

    def silenced(self) -> "Form":
        """The same without any such NaN, for which memory may be needed."""
        return self

    @property
    def work(self) -> Any:
        """What this form shares with those it should be summed together with."""
        return self

    def part(self, i: int) -> "Form":
        """The gradients of entry `i` along the value's first axis."""
        return Dense(self.dense()[:, i], "formed")

    def second_moment(self, factor: PerExample) -> Float[Array, "..."]:
        """sum_b factor_b |g_b|^2, entry by entry, in float32 or wider."""
        return sum_of_squares(factor, self.dense())

    def products(self, other: "Form") -> Float[Array, "batch other"]:
        """g_b . h_c for each pair; `other` holds the value's h for another batch."""
        return products_of_rows(self.dense(), other.dense())

    @abc.abstractmethod
    def cost(self) -> Cost:
        """What the norm and the weighted sum take."""

    @property
    @abc.abstractmethod
    def route(self) -> str:
        """How the norm comes about, for people."""


class Dense(Form):
    """Gradients as they are: of a bias or a scale, or where nothing better is known."""

    def __init__(
        self, rows: Inexact[Array, "batch ..."], route: str = "direct"
    ) -> None:
        self.rows = rows
        self.shape = rows.shape[1:]
        self._route = route

    def measured(
        self, shared: Shared, then_sum: bool
    ) -> list[Inexact[Array, "batch ..."]]:
        """The gradients."""
        return [self.rows]

    def norms(self, measures: list[PerExample]) -> PerExample:
        """As measured."""
        return measures[0]

    def dense(self) -> Inexact[Array, "batch ..."]:
        """As they are."""
        return self.rows

    def scaled(self, factor: PerExample, silence: bool = False) -> "Dense":
        """Entry by entry if narrow; else XLA needs time and memory for it."""
        if math.prod(self.shape) > NARROW:
            return Weighted(self.rows, factor)
        return Dense(scaled(factor, self.rows, silence), self._route)

    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """Entry by entry."""
        return jnp.sum(self.rows.astype(sum_dtype(self.rows.dtype)), axis=0)

    def part(self, i: int) -> "Dense":
        """Some of the entries."""
        return Dense(self.rows[:, i], self._route)

    def cost(self) -> Cost:
        """A square or a product, and a sum, for each entry."""
        return Cost(2 * self.rows.size, 2 * self.rows.size, self.rows.nbytes)

    @property
    def route(self) -> str:
        """As it was named."""
        return self._route


class Weighted(Dense):
    """Gradients of many entries, and the factors they are to be multiplied by."""

    def __init__(
        self,
        rows: Inexact[Array, "batch ..."],
        factor: PerExample,
        finite: bool = True,
    ) -> None:
        super().__init__(rows, "formed")
        self.factor = factor
        self.finite = finite

    def dense(self) -> Inexact[Array, "batch ..."]:
        """Multiplied."""
        return scaled(self.factor, self.rows)

    def sum(self, shared: Shared) -> Inexact[Array, "..."]:
        """One product, or example by example, which takes no memory."""
        if self.finite:
            return weighted_sum(self.factor, self.rows)

        def add(total: Array, example: tuple) -> tuple[Array, None]:
            factor, row = (x[None] for x in example)
            return total + scaled(factor, row, silence=True)[0], None

        zeros = jnp.zeros(self.shape, sum_dtype(self.rows.dtype))
        return jax.lax.scan(add, zeros, (self.factor, self.rows))[0]

    @property
    def loud(self) -> int:
        """All entries."""
        return self.rows.size

    def silenced(self) -> "Weighted":
        """To be added up example by example."""
        return Weighted(self.rows, self.factor, finite=False)


def largest(rows: Inexact[Array, "batch ..."]) -> PerExample:
    """The largest magnitude of each example."""
    return jnp.max(jnp.abs(rows), axis=tuple(range(1, rows.ndim)), initial=0)


def divided(
    rows: Inexact[Array, "batch ..."], scale: PerExample
) -> Inexact[Array, "batch ..."]:
    """rows_b / scale_b."""
    return rows / rows_like(scale, rows).astype(rows.dtype)
