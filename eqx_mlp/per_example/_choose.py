"""The choice between an ordinary computation and a careful one."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._known import is_known

Result = TypeVar("Result")


def choose(
    fine: Any, ordinary: Callable[[], Result], careful: Callable[[], Result]
) -> Result:
    """`ordinary()` where all is `fine`, else `careful()`, which is right for both.

    Under `vmap` all models take the careful one if any has to: `lax.cond` alone would
    compute both for every model, always.
    """
    if is_known(fine):
        return ordinary() if fine else careful()
    return jax.lax.cond(_for_all_models(fine), ordinary, careful)


@jax.custom_batching.custom_vmap
def _for_all_models(fine: Bool[Array, ""]) -> Bool[Array, ""]:
    return fine


@_for_all_models.def_vmap
def _for_all_of_these(
    axis_size: int, in_batched: list[bool], fine: Bool[Array, " model"]
) -> tuple[Bool[Array, ""], bool]:
    # Of models of models, perhaps: by the rule again.
    return _for_all_models(jnp.all(fine)), False
