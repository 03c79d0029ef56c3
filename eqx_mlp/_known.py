"""Whether a value can be looked at, or only computed with."""

from typing import Any

import jax
from jax.core import Tracer


def is_known(x: Any) -> bool:
    """Whether `x` has a value now, and here.

    Not while `jit`, `vmap` or `grad` traces a leaf, nor where another process has part
    of one.
    """
    return not any(
        isinstance(leaf, Tracer)
        or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable)
        for leaf in jax.tree.leaves(x)
    )
