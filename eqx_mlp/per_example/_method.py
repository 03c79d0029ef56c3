"""The routes by their names, and what they have in common."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from .._dtypes import promote
from .._types import PerExample
from ._formed import vmap_of_grad
from ._norm import joint_norm
from ._route import Route
from .tapped import Engine

ROUTES: dict[str, Callable[..., Route]] = {"auto": Engine, "vmap": vmap_of_grad}


def require_method(method: str) -> None:
    """Raise a ValueError unless `method` is a route that exists."""
    if method not in ROUTES:
        raise ValueError(f"method must be one of {tuple(ROUTES)}, got {method!r}")


def total_norm(norms: Sequence[PerExample | None], like: PerExample) -> PerExample:
    """The norm over several parameters; zeros where none of them is used."""
    used = [norm for norm in norms if norm is not None]
    if not used:
        return jnp.zeros(like.shape, promote(like.dtype, jnp.float32))
    dtype = promote(*(norm.dtype for norm in used))
    return joint_norm([norm.astype(dtype) for norm in used])
