"""Which dtype to compute in, whatever promotion mode the user has set."""

from typing import Any

import jax
import jax.numpy as jnp


def promote(*dtypes: Any) -> Any:
    """The dtype that holds them all, by JAX's standard rules."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*(jnp.dtype(d) for d in dtypes))


def wide(dtype: Any) -> Any:
    """The real dtype in which sums over `dtype` are kept: float32 or wider."""
    return promote(jnp.finfo(dtype).dtype, jnp.float32)
