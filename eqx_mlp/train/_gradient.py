"""The gradient of the mean loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._types import Key, Loss, Model, PerExample, Scalar, Trainable, Weight
from ..per_example import ExampleStats, as_batch, example_keys, require_batch
from ..per_example._batch import zero_padding
from ..per_example._loss import raise_cause, split_trainable, value_of_params


def mean_grad(
    loss: Loss, *, has_aux: bool = False, trainable: Trainable = None
) -> Callable[..., tuple[PyTree, ExampleStats]]:
    """The gradient of the mean loss over the examples of a batch.

    The mean is sum_b weight_b * loss_b / sum_b weight_b; a batch of weights 0 has
    gradient 0.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves get a gradient, as in `init_state`.

    Returns:
        `f(model, *batch, key=None, weight=None) -> (grads, ExampleStats)`, as
        `clipped_grad` gives it; `grad_norm` is None, since no example's own gradient is
        formed.

    Raises:
        ValueError: as `per_example_value_and_grad`.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import mean_grad
    >>> f = mean_grad(lambda w, x: 0.5 * (w - x) ** 2)
    >>> grads, stats = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))
    >>> float(grads), stats.value.tolist()
    (-2.0, [0.5, 2.0, 12.5])
    """

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[PyTree, ExampleStats]:
        require_batch("mean_grad", batch, weight)
        ready = as_batch(batch, weight)
        params, rest = split_trainable(model, trainable)
        rows = jax.vmap(value_of_params(loss, rest, has_aux), in_axes=(None, 0, 0))
        keys = example_keys(key, ready.size)

        def mean(params: PyTree) -> tuple[Scalar, tuple[PerExample, Any]]:
            value, aux = rows(params, ready.example, keys)
            if ready.weight is not None:
                value = zero_padding(value, ready.weight != 0)
            return weighted_mean(value, ready.weight), (value, aux)

        grads, (value, aux) = jax.grad(mean, has_aux=True)(params)
        raise_cause(loss, model, batch, key, value)
        return grads, ExampleStats(value, None, aux)

    return f


def weighted_mean(value: PerExample, weight: Weight | None) -> Scalar:
    """sum_b weight_b * value_b / sum_b weight_b, and 0 where nothing counts."""
    if weight is None:
        return jnp.sum(value) / max(value.shape[0], 1)
    weight = weight.astype(value.dtype)
    total = jnp.sum(weight)
    return jnp.sum(value * weight) / jnp.where(total == 0, 1, total)
