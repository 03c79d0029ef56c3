"""Whether a value can be looked at, or only computed with."""

from typing import Any

import jax
from jax.core import Tracer


def is_known(x: Any) -> bool:
    """Whether `x` has a value now: not while `jit`, `vmap` or `grad` traces a leaf."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x))
