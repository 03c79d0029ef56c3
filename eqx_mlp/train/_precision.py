"""A loss computed in a lower precision than its parameters are kept in."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._checked import checked
from .._dtypes import wide
from .._types import Loss, Model


def _require(loss: Any, dtype: Any = jnp.bfloat16) -> None:
    if not callable(loss):
        raise ValueError(f"mixed_precision takes a loss of one example, got {loss!r}")
    try:
        floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        floating = False
    if not floating:
        raise ValueError(
            "mixed_precision: dtype must be a floating dtype such as jnp.bfloat16 or "
            f"jnp.float16, got {dtype!r}"
        )


@checked(_require)
def mixed_precision(loss: Loss, dtype: Any = jnp.bfloat16) -> Loss:
    """`loss` computed in `dtype`, for parameters that stay in their own.

    The model and the first argument, what the model takes, are cast to `dtype`; targets
    are left as they are. The value comes back in float32 or wider, and so does the
    gradient of float32 parameters. The losses and layer norms of this library and of
    Equinox reduce in float32 whatever they are given. Source: Micikevicius et al.
    (2018), "Mixed precision training".

    Args:
        loss: `loss(model, *example, key=None)`, or a metric of one example.
        dtype: what to compute in. float16 needs `with_loss_scale` as well.

    Raises:
        ValueError: a dtype that is not floating.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import mixed_precision
    >>> loss = mixed_precision(lambda w, x: w * x)
    >>> loss(jnp.array(1.0), jnp.array(1 + 2**-10)).item()  # 1 to bfloat16
    1.0
    """

    @functools.wraps(loss)
    def in_dtype(model: Model, x: Any, *rest: Any, **kwargs: Any) -> Any:
        model, x = _cast((model, x), dtype)
        return jax.tree.map(_widened, loss(model, x, *rest, **kwargs))

    return in_dtype


def _cast(tree: PyTree, dtype: Any) -> PyTree:
    return jax.tree.map(lambda x: x.astype(dtype) if _is_floating(x) else x, tree)


def _widened(x: Any) -> Any:
    return x.astype(wide(x.dtype)) if _is_floating(x) else x


def _is_floating(x: Any) -> bool:
    return eqx.is_array(x) and jnp.issubdtype(x.dtype, jnp.floating)
