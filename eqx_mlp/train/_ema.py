"""A moving average of the weights, held in the optimiser's state."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from .._checked import checked
from .._types import Model, Optimizer
from ..per_example._norm import sum_dtype
from ._optimizer import apply_update, extended, only_state, require_optimizer
from ._state import TrainState


class EmaState(NamedTuple):
    """The average, the share of it that parameters make up, the optimiser's state.

    `share` is 1 - decay**updates where the average starts from zero, and 1 where it
    starts from the first parameters.
    """

    average: PyTree
    share: Float[Array, ""]
    inner: PyTree


def _require(optimizer: Any, decay: Any, *, debias: Any = True) -> None:
    require_optimizer("with_ema", optimizer)
    if not (isinstance(decay, float | int) and 0 <= decay < 1):
        raise ValueError(
            "with_ema: decay is what the average keeps at each update and must be in "
            f"[0, 1), such as 0.999, got {decay!r}"
        )


@checked(_require)
def with_ema(
    optimizer: Optimizer, decay: float, *, debias: bool = True
) -> optax.GradientTransformationExtraArgs:
    """`optimizer` whose state also holds a moving average of the trained parameters.

    After each update average = decay * average + (1 - decay) * parameters, in float32
    or wider. It changes no update. `ema_model` gives the model with the average in
    place, and `fit` validates that model too, as "ema_val_loss" and so on. Source:
    Polyak and Juditsky (1992), "Acceleration of stochastic approximation by averaging";
    Kingma and Ba (2015), section 3, for the correction.

    Args:
        optimizer: any `optax.GradientTransformation`, the whole of it.
        decay: in [0, 1); about 1 / (1 - decay) updates are averaged over.
        debias: whether to average over the updated parameters alone, by starting from
            zero and dividing by 1 - decay**updates. Otherwise the average starts from
            the first parameters.

    Raises:
        ValueError: no optimiser, a decay outside [0, 1).

    >>> import jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import ema_model, init_state, make_step, with_ema
    >>> optimizer = with_ema(optax.sgd(1.0), decay=0.5)
    >>> state = init_state(jnp.array(0.0), optimizer, key=jax.random.key(0))
    >>> step = make_step(lambda w, x: -w * x, optimizer)  # adds x to w
    >>> for x in (1.0, 2.0):
    ...     state, _ = step(state, (jnp.array([x]),))
    >>> state.model.item(), round(ema_model(state).item(), 4)  # (0.25*1 + 0.5*3) / 0.75
    (3.0, 2.3333)
    """
    inner = extended(optimizer)

    def toward(average: Array, x: Array) -> Array:
        # Rounding vanishes with the distance: an average that has arrived stays.
        return average + (1 - decay) * (x - average)

    def init(params: PyTree) -> EmaState:
        def start(p: Array) -> Array:
            wide = p.astype(sum_dtype(p.dtype))
            # A copy, since a step gives up the parameters' buffers.
            return jnp.zeros_like(wide) if debias else jnp.array(wide, copy=True)

        average = jax.tree.map(start, params)
        share = jnp.asarray(0 if debias else 1, jnp.float32)
        return EmaState(average, share, inner.init(params))

    def update(
        updates: PyTree, state: Any, params: PyTree = None, **extra: Any
    ) -> tuple[PyTree, EmaState]:
        if params is None:
            raise ValueError("with_ema averages parameters: hand them to its update")
        updates, new = inner.update(updates, state.inner, params, **extra)

        def move(average: Array, p: Array, u: Array) -> Array:
            return toward(average, apply_update(p, u).astype(average.dtype))

        average = jax.tree.map(move, state.average, params, updates)
        share = toward(state.share, jnp.ones_like(state.share))
        return updates, EmaState(average, share, new)

    return optax.GradientTransformationExtraArgs(init, update)


def ema_model(state: TrainState) -> Model:
    """The state's model with the averages in place of its trained parameters.

    Each in the dtype of its parameter. Before the first update, the model as it is.

    Raises:
        ValueError: the state was not made with `with_ema`.
    """
    ema = only_state(state.opt_state, EmaState)
    if ema is None:
        raise ValueError(
            "ema_model: the state holds no average: make it with the optimizer "
            "with_ema(optimizer, decay=0.999)"
        )
    return _averaged(ema, state.model)


@eqx.filter_jit
def _averaged(ema: EmaState, model: Model) -> Model:
    some = ema.share > 0
    share = jnp.where(some, ema.share, 1)

    def of_leaf(average: Array | None, p: Any) -> Any:
        if average is None:
            return p
        corrected = average / share.astype(average.dtype)
        return jnp.where(some, corrected.astype(p.dtype), p)

    return jax.tree.map(of_leaf, ema.average, model, is_leaf=lambda x: x is None)


def models_of(state: TrainState) -> dict[str, Model]:
    """What to validate, by prefix: the model, and its average if there is one."""
    average = only_state(state.opt_state, EmaState) is not None
    return {"": state.model} | ({"ema_": ema_model(state)} if average else {})
