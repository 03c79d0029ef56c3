"""What training carries from step to step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._checked import checked
from .._keys import require_key
from .._types import Key, Model, Optimizer, Step, Trainable
from ..per_example._loss import split_trainable
from ._optimizer import require_optimizer


class TrainState(eqx.Module):
    """The model, the optimiser's state, the number of updates done, and the key.

    `step` is int32; the key never changes: step `t` draws from `fold_in(key, t)`, so
    a state says all about the rest of the run.
    """

    model: Model
    opt_state: PyTree
    step: Step
    key: Key


def _require(model: Any, optimizer: Any, *, key: Any = None, **_: Any) -> None:
    require_key("init_state", key)
    require_optimizer("init_state", optimizer)


@checked(_require)
def init_state(
    model: Model,
    optimizer: Optimizer,
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
        trainable: which leaves are trained: a path such as "layers.*.weight", a type or
            a `Selection` of `select`, a predicate of leaves, or a prefix pytree of
            booleans; None is every floating-point array.

    Raises:
        ValueError: no key, something else than an optimiser, nothing to train.

    >>> import jax, optax
    >>> from eqx_mlp import MLP, init_state
    >>> model = MLP(4, 2, (8,), key=jax.random.key(0))
    >>> init_state(model, optax.sgd(0.1), key=jax.random.key(1)).step.item()
    0
    """
    model = jax.tree.map(lambda x: _strong(x) if eqx.is_array(x) else x, model)
    params, _ = split_trainable(model, trainable)
    with optax_promotion():
        opt_state = optimizer.init(params)
    opt_state = jax.tree.map(
        lambda x: _strong(x) if eqx.is_array_like(x) else x, opt_state
    )
    return TrainState(model, opt_state, jnp.zeros((), jnp.int32), key)


def copied(state: TrainState) -> TrainState:
    """`state` in buffers of its own, which the next steps do not reuse."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, state)


@contextlib.contextmanager
def optax_promotion() -> Iterator[None]:
    """JAX's default promotion, which Optax needs, whatever mode the user has set."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def require_same_optimizer(
    state: TrainState, optimizer: Optimizer, trainable: Trainable
) -> None:
    """Raise a ValueError unless `optimizer` would have made the state's `opt_state`."""
    params, _ = split_trainable(state.model, trainable)
    with optax_promotion():
        wanted = eqx.filter_eval_shape(optimizer.init, params)
    wanted, got = _shapes(wanted), _shapes(state.opt_state)
    for path in sorted({*wanted, *got}):
        if wanted.get(path) != got.get(path):
            raise ValueError(
                "the state was made for another optimizer, or another trainable: at "
                f"opt_state{path} expected {wanted.get(path, 'nothing')}, got "
                f"{got.get(path, 'nothing')}. Give the ones that init_state was given, "
                "or start anew from state.model"
            )


def _shapes(opt_state: PyTree) -> dict[str, str]:
    leaves = jax.tree_util.tree_flatten_with_path(opt_state)[0]
    return {
        jax.tree_util.keystr(path): f"an array of shape {getattr(leaf, 'shape', ())}"
        for path, leaf in leaves
        if eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    }


def _strong(x: Any) -> jax.Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    x = jnp.asarray(x)
    return x.astype(x.dtype)
