"""A route from a loss to the norms and weighted sums of per-example gradients."""

import abc
from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Float, PyTree

from .._types import PerExample


class Gradients(abc.ABC):
    """The gradients of a batch, formed or not."""

    @abc.abstractmethod
    def norms(self, then_sum: bool) -> Sequence[PerExample | None]:
        """Each parameter's norms, in the order of leaves; None where all are zero.

        `then_sum` says whether weighted sums will be asked for, too: then another way
        to the norms may be the cheapest.
        """

    @abc.abstractmethod
    def weighted_sums(
        self, factors: list[PerExample], group_of: tuple[int, ...], finite: Any
    ) -> PyTree:
        """Sums over the batch, each parameter's by the factors of its group.

        A factor of 0 silences even a NaN. `finite` says that there is none.
        """

    @abc.abstractmethod
    def second_moments(self, factor: PerExample) -> PyTree:
        """sum_b factor_b g_b^2, entry by entry; of a complex entry |g|^2."""

    @abc.abstractmethod
    def products(
        self, other: Any, factor: PerExample, other_factor: Float[Array, " other"]
    ) -> Float[Array, "batch other"]:
        """factor_b g_b . other_factor_c h_c, for each pair, over all parameters.

        `other` are the gradients h of another batch by the same route.
        """


class Route(abc.ABC):
    """From rows of examples to their gradients, and from sums to the result."""

    @property
    def rounds_sums(self) -> bool:
        """Whether `finish` may round sums to less than float32."""
        return False

    @abc.abstractmethod
    def backward(self, rows: Any) -> tuple[PerExample, Any, Gradients]:
        """Loss, auxiliary output and gradient of each row."""

    @abc.abstractmethod
    def zero_sums(self, group_of: tuple[int, ...]) -> PyTree:
        """What `weighted_sums` gives for no examples."""

    @abc.abstractmethod
    def finish(self, sums: PyTree, group_of: tuple[int, ...]) -> PyTree:
        """The parameters' gradients, in float32 or wider."""
