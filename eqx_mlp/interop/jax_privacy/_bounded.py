"""A function that tells how far one example can move its result."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple


class AuxiliaryOutput(NamedTuple):
    """What `clipped_grad` tells of each example: None for what was not asked for.

    `values` is each loss `[batch]`, `grad_norms` each gradient's norm before clipping
    `[batch]`, `aux` what `fun` returned beside its loss, with a leading batch axis.
    """

    values: Any
    grad_norms: Any
    aux: Any


@dataclasses.dataclass(frozen=True)
class BoundedSensitivityCallable:
    """A sum over examples to which no example adds more than norm `l2_norm_bound`.

    Called like `fun`. With `has_aux` the result is a pair, and the bound holds for its
    first part alone.
    """

    fun: Callable[..., Any]
    l2_norm_bound: Any
    has_aux: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`fun(*args, **kwargs)`."""
        return self.fun(*args, **kwargs)

    def sensitivity(self, neighboring_relation: Any = "REPLACE_SPECIAL") -> Any:
        """How far two neighbouring batches' results can be apart, in the L2 norm.

        Args:
            neighboring_relation: one of `dp_accounting.NeighboringRelation`, or its
                name: "ADD_OR_REMOVE_ONE" or "REPLACE_SPECIAL" (an example is there or
                counts as zero), or "REPLACE_ONE" (twice as far).

        Raises:
            ValueError: any other relation.
        """
        name = getattr(neighboring_relation, "name", neighboring_relation)
        if name in ("ADD_OR_REMOVE_ONE", "REPLACE_SPECIAL"):
            return self.l2_norm_bound
        if name == "REPLACE_ONE":
            return 2 * self.l2_norm_bound
        raise ValueError(
            "neighboring_relation must be ADD_OR_REMOVE_ONE, REPLACE_ONE or "
            f"REPLACE_SPECIAL of dp_accounting.NeighboringRelation, got {name!r}"
        )
