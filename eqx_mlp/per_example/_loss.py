"""The one-example loss as a function of its trainable parameters."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from .._keys import with_key
from .._known import is_known
from .._select import Selection, select
from .._types import Key, Loss, Model, PerExample, Scalar, Trainable
from ._coupled import refusing_coupled


def split_trainable(model: Model, trainable: Trainable) -> tuple[PyTree, PyTree]:
    """Trainable parameters and everything else, each with None for the other.

    What cannot be differentiated (integers, booleans, callables) is never trainable,
    whatever the filter says.
    """
    if isinstance(trainable, str | type):
        trainable = select(trainable)
    if isinstance(trainable, Selection):
        trainable = trainable(model)
    chosen, rest = eqx.partition(
        model, eqx.is_inexact_array if trainable is None else trainable
    )
    params, discrete = eqx.partition(chosen, eqx.is_inexact_array)
    if not jax.tree.leaves(params):
        raise ValueError(
            "the model has no trainable parameter: expected at least one floating-"
            f"point array among its leaves that trainable={trainable!r} selects"
        )
    return params, eqx.combine(rest, discrete)


def value_of_params(
    loss: Loss, rest: PyTree, has_aux: bool
) -> Callable[..., tuple[Scalar, Any]]:
    """`f(params, example, key) -> (value, aux)`, refusing what is not a loss."""
    name = getattr(loss, "__name__", repr(loss))

    def f(params: PyTree, example: tuple, key: Key | None) -> tuple[Scalar, Any]:
        model = eqx.combine(params, rest)
        with refusing_coupled(name, model):
            out = with_key(loss, model, *example, key=key)
        if has_aux and not (isinstance(out, tuple) and len(out) == 2):
            raise ValueError(
                f"has_aux=True expects {name} to return (value, aux), got "
                f"{type(out).__name__}"
            )
        value, aux = out if has_aux else (out, None)
        if isinstance(value, tuple):
            raise ValueError(
                f"{name} must return one number, got a tuple: pass has_aux=True if it "
                "returns (value, aux)"
            )
        value = jnp.asarray(value)
        if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{name} must return one floating-point number for one example, got "
                f"shape {value.shape} and dtype {value.dtype}: reduce it, for example "
                "with jnp.mean"
            )
        return value, aux

    return f


def raise_cause(
    loss: Loss, model: Model, batch: tuple, key: Key | None, value: PerExample
) -> None:
    """Where a loss came out non-finite, let its own checks say why.

    Inside compiled code a check of a value (a label out of range) cannot raise. Here
    the values are known, so the loss is called again on the first such example alone.
    """
    if not is_known(value):
        return
    bad = np.flatnonzero(~np.isfinite(np.asarray(value, dtype=np.float64)))
    if bad.size:
        example = jax.tree.map(lambda x: jnp.asarray(x)[bad[0]], batch)
        with_key(loss, model, *example, key=key)
