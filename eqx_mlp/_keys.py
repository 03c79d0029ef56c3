"""Random keys at the edges: who takes one, and whether what came is one."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def accepts_key(function: Callable[..., Any]) -> bool:
    """Whether `function` takes a keyword argument `key`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return "key" in parameters or any(
        p.kind is p.VAR_KEYWORD for p in parameters.values()
    )


def with_key(function: Callable[..., Any], *args: Any, key: Any = None) -> Any:
    """Call `function(*args)`, passing `key` only to a function that accepts it."""
    return function(*args, key=key) if accepts_key(function) else function(*args)


def require_key(name: str, key: Any) -> None:
    """Raise a ValueError unless `key` is one random key."""
    mend = "make one with jax.random.key(0) and hand it over as key=..."
    if key is None:
        raise ValueError(f"{name} needs a random key and got none: {mend}")
    if not isinstance(key, jax.Array):
        raise ValueError(f"{name}: key must be a JAX random key, got {key!r}: {mend}")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if (typed and key.shape == ()) or (key.dtype == jnp.uint32 and key.shape == (2,)):
        return
    raise ValueError(
        f"{name}: key must be one random key, got an array of shape {key.shape} and "
        f"dtype {key.dtype}: {mend}"
    )
