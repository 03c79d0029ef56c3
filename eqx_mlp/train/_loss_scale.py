"""Losses scaled up, so that their gradients do not vanish in float16."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from .._checked import checked
from .._types import Loss, Model, Optimizer
from ._optimizer import extended, only_state, require_optimizer

# Beyond these it is not the scale that is at fault.
LOWEST, HIGHEST = 1.0, 2.0**24


class LossScaleState(NamedTuple):
    """The scale now, the finite steps since it last changed, the optimiser's state."""

    scale: Float[Array, ""]
    finite_steps: Int[Array, ""]
    inner: PyTree


def _require(
    optimizer: Any, *, initial_scale: Any = 2.0**15, double_after: Any = 2000
) -> None:
    require_optimizer("with_loss_scale", optimizer)
    if not LOWEST <= initial_scale <= HIGHEST:
        raise ValueError(
            "with_loss_scale: initial_scale must be between 1 and 2**24, got "
            f"{initial_scale!r}"
        )
    if not isinstance(double_after, int) or double_after < 1:
        raise ValueError(
            "with_loss_scale: double_after is a number of steps, an integer >= 1, got "
            f"{double_after!r}"
        )


@checked(_require)
def with_loss_scale(
    optimizer: Optimizer,
    *,
    initial_scale: float = 2.0**15,
    double_after: int = 2000,
) -> optax.GradientTransformationExtraArgs:
    """`optimizer` for a loss that is computed in float16, with a dynamic loss scale.

    `make_step` and `fit` scale the loss before they differentiate it and scale the
    gradient back where it reaches the parameters, so every gradient, clipped ones too,
    comes out with its own length. Where it is not finite the step is skipped: neither
    the parameters nor the state of `optimizer` change, and the scale is halved. The
    scale is the field `scale` of the state. Source: Micikevicius et al. (2018), "Mixed
    precision training", section 3.2.

    Args:
        optimizer: any `optax.GradientTransformation`; parameters in float32.
        initial_scale: a power of two scales exactly.
        double_after: finite steps in a row after which the scale is doubled.

    Raises:
        ValueError: no optimiser, a scale outside 1 to 2**24, steps below 1.

    >>> import jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import init_state, make_step, mixed_precision, with_loss_scale
    >>> loss = mixed_precision(lambda w, x: 1e-3 * (w * x), jnp.float16)
    >>> optimizer = with_loss_scale(optax.sgd(1e7))
    >>> state = init_state(jnp.array(1.0), optimizer, key=jax.random.key(0))
    >>> state, _ = make_step(loss, optimizer)(state, (jnp.full(2, 1e-5),))
    >>> round(state.model.item(), 2)  # a gradient of 1e-8 is 0 to float16
    0.9
    """
    inner = extended(optimizer)

    def init(params: PyTree) -> LossScaleState:
        return LossScaleState(
            jnp.asarray(initial_scale, jnp.float32),
            jnp.zeros((), jnp.int32),
            inner.init(params),
        )

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, LossScaleState]:
        finite = jnp.array(True)
        for grad in jax.tree.leaves(updates):
            finite &= jnp.all(jnp.isfinite(grad))
        updates, new = inner.update(updates, state.inner, params, **extra)
        steps = jnp.where(finite, state.finite_steps + 1, 0)
        grows = steps == double_after
        factor = jnp.where(finite, jnp.where(grows, 2.0, 1.0), 0.5)
        return jax.tree.map(lambda u: jnp.where(finite, u, 0), updates), LossScaleState(
            jnp.clip(state.scale * factor, LOWEST, HIGHEST),
            jnp.where(grows, 0, steps),
            jax.tree.map(
                lambda new, old: jnp.where(finite, new, old), new, state.inner
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def scaled_as_by(opt_state: PyTree, loss: Loss) -> Loss:
    """`loss` with its gradient scaled on the way, if the optimiser's state says so."""
    state = only_state(opt_state, LossScaleState)
    return loss if state is None else _scaled(loss, state.scale)


def _scaled(loss: Loss, scale: Float[Array, ""]) -> Loss:
    # Up where the gradient enters the loss, down where it leaves for the parameters:
    # between the two, in float16, it is `scale` times as long.
    @functools.wraps(loss)
    def f(model: Model, *example: Any, **kwargs: Any) -> Any:
        params, rest = eqx.partition(model, eqx.is_inexact_array)
        params = jax.tree.map(lambda p: _cotangent_times(p, 1 / scale), params)
        out = loss(eqx.combine(params, rest), *example, **kwargs)
        if isinstance(out, tuple):
            return (_cotangent_times(out[0], scale), *out[1:])
        return _cotangent_times(out, scale)

    return f


@jax.custom_vjp
def _cotangent_times(x: Array, factor: Float[Array, ""]) -> Array:
    return x


def _forward(x: Array, factor: Float[Array, ""]) -> tuple[Array, Array]:
    return x, factor


def _backward(factor: Float[Array, ""], g: Array) -> tuple[Array, Array]:
    return g * factor.astype(g.dtype), jnp.zeros_like(factor)


_cotangent_times.defvjp(_forward, _backward)
