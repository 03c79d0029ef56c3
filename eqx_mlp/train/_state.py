"""What training carries from step to step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from .._keys import require_key
from .._types import Key, Model, Step, Trainable
from ..per_example._loss import split_trainable


class TrainState(eqx.Module):
    """The model, the optimiser's state, the number of updates done, and the key.

    `step` is int32; the key never changes: step `t` draws from `fold_in(key, t)`, so
    a state says all about the rest of the run.
    """

    model: Model
    opt_state: PyTree
    step: Step
    key: Key


def init_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    key: Key,
    trainable: Trainable = None,
) -> TrainState:
    """The state before the first step.

    Arrays lose their weak types, NumPy arrays move to the device, and the optimiser
    sees trainable parameters alone, so that each step takes and gives the same types.

    Args:
        model: an Equinox model or any pytree of parameters.
        optimizer: any `optax.GradientTransformation`.
        key: where the run's randomness comes from.
        trainable: which leaves are trained, as a predicate of leaves or a prefix pytree
            of booleans; None is every floating-point array.

    Raises:
        ValueError: no key, something else than an optimiser, nothing to train.

    >>> import jax, optax
    >>> from eqx_mlp import MLP, init_state
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> init_state(model, optax.sgd(0.1), key=jax.random.key(1)).step.item()
    0
    """
    require_key("init_state", key)
    require_optimizer(optimizer)
    model = jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, model)
    params, _ = split_trainable(model, trainable)
    opt_state = jax.tree.map(
        lambda x: _strong(x) if eqx.is_array_like(x) else x, optimizer.init(params)
    )
    return TrainState(model, opt_state, jnp.zeros((), jnp.int32), key)


def require_optimizer(optimizer: Any) -> None:
    """Raise a ValueError unless `optimizer` looks like one of Optax's."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            "optimizer must be an optax.GradientTransformation such as "
            f"optax.adam(1e-3), got {optimizer!r}"
        )


def _strong(x: Any) -> jax.Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    x = jnp.asarray(x)
    return x.astype(x.dtype)
