"""Find the first update that was not finite, and keep the state before it."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from ...data import Batch
from ...nn._ensemble import stacked_of
from ...per_example._loss import split_trainable
from .._batches import Recipe
from .._call import Call, Replayed
from .._callback import Callback
from .._cause import raise_loss_cause
from .._state import TrainState, copied


class NonFiniteError(FloatingPointError):
    """A loss, a gradient or a parameter came out as NaN or infinite.

    `step` is the number of the update, counted from 1; `leaf` the path of the first
    leaf at fault, or None where the loss alone is; `state` the state before the update.
    """

    def __init__(self, message: str, *, step: int, leaf: str | None, state: TrainState):
        super().__init__(message)
        self.step = step
        self.leaf = leaf
        self.state = state


class CheckFinite(Callback):
    """Ends a run at the first update that is not finite.

    Between compiled calls, about once a second, the losses and the trained parameters
    are looked at, and the state is copied. Where something is NaN or infinite, the
    steps of the last call are done again one by one from the copy, by the same program,
    up to the one that went wrong.

    Raises:
        NonFiniteError: in `fit`; it names the update and the first leaf whose gradient
            is not finite, and holds the last good state.

    >>> check = CheckFinite()
    """

    _good: TrainState

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Keep the state that the first call begins with."""
        self._good = copied(state)

    def on_call(self, state: TrainState, call: Call) -> None:
        """Keep the state, or raise if something since the last call went wrong."""

        def is_fine(loss: Any, state: TrainState) -> bool:
            params, _ = split_trainable(stacked_of(state.model), call.recipe.trainable)
            return bool(np.all(np.isfinite(loss)) and _all_finite(params))

        if is_fine(call.step_loss, state):
            self._good = copied(state)
            return
        for step, ran in enumerate(call.replay(self._good), call.step + 1):
            if not is_fine(ran.loss, ran.state):
                raise _error(call.recipe, self._good, step, ran)
            self._good = copied(ran.state)
        raise NonFiniteError(
            f"one of updates {call.step + 1} to {call.step + len(call.step_loss)} was "
            "not finite, and all were when done again: the hardware does not give the "
            "same result twice",
            step=call.step + 1,
            leaf=None,
            state=self._good,
        )


def _error(
    recipe: Recipe, before: TrainState, step: int, ran: Replayed
) -> NonFiniteError:
    raise_loss_cause(recipe, before.model, ran.batch, before.key)
    grads = _gradient(recipe, before, ran.batch)
    params, _ = split_trainable(stacked_of(ran.state.model), recipe.trainable)
    leaf = _first_bad(grads)
    if not np.all(np.isfinite(ran.loss)):
        found = f"the loss is {ran.loss}"
        if leaf is not None:
            found += f", and the gradient is not finite, first at {leaf}"
    elif leaf is not None:
        found = f"the gradient is not finite, first at {leaf}"
    else:
        leaf = _first_bad(params)
        found = f"the optimiser made what is not finite, first at {leaf}"
    bad_input = _first_bad(ran.batch.example)
    if bad_input is not None:
        found += f"; the batch itself is not finite, at argument {bad_input}"
    return NonFiniteError(
        f"update {step}: {found}. The state before it is this error's .state",
        step=step,
        leaf=leaf,
        state=before,
    )


@eqx.filter_jit
def _all_finite(tree: PyTree) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _first_bad(tree: PyTree) -> str | None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if eqx.is_inexact_array(leaf) and not jnp.all(jnp.isfinite(leaf)):
            return jax.tree_util.keystr(path) or "the only leaf"
    return None


def _gradient(recipe: Recipe, state: TrainState, batch: Batch) -> PyTree:
    # An optimiser whose state is the last gradient makes a step give its gradient.
    def zeros(params: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, params)

    keep = optax.GradientTransformation(
        zeros, lambda updates, state, params=None: (zeros(updates), updates)
    )
    params, _ = split_trainable(stacked_of(state.model), recipe.trainable)
    step = recipe._replace(optimizer=keep).step()
    asked = TrainState(state.model, keep.init(params), state.step, state.key)
    return eqx.filter_jit(step)(asked, batch)[0].opt_state
