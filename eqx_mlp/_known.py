"""Whether a value can be looked at, or only computed with."""

from typing import Any

from jax.core import Tracer


def is_known(x: Any) -> bool:
    """Whether `x` has a value now: False for what `jit`, `vmap` or `grad` traces."""
    return not isinstance(x, Tracer)
