"""The mean of per-example gradients, and that of their squares, entry by entry."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._dtypes import wide
from .._types import Key, Loss, Model, Scalar, Trainable
from ._batch import require_batch
from ._chunks import require_chunk_size, scan_chunks
from ._counted import counted, require_two
from ._loss import raise_cause, split_trainable, value_of_params
from ._method import ROUTES, require_method
from ._vmap import examples_of


class GradientMoments(eqx.Module):
    """How the gradients of single examples spread about their mean.

    `mean` and `square` have the model's structure in float32 or wider, None where not
    trainable: the mean gradient, and the mean of squared gradients. `count` is how many
    examples that was, and with weights (sum w)^2 / sum w^2 (Kish, 1965).
    """

    mean: PyTree
    square: PyTree
    count: Scalar

    @property
    def variance(self) -> PyTree:
        """The variance over examples, unbiased.

        Raises:
            ValueError: fewer than two examples.
        """
        require_two("a variance", self.count)

        def of_leaf(mean: Array, square: Array) -> Array:
            n = self.count.astype(square.dtype)
            return jnp.maximum(square - jnp.square(jnp.abs(mean)), 0) * (n / (n - 1))

        return jax.tree.map(of_leaf, self.mean, self.square)

    @property
    def signal_to_noise(self) -> PyTree:
        """mean^2 / variance, 0 where both are 0.

        Source: Liu et al. (2020), "Understanding why neural networks generalize well
        through GSNR of parameters", definition 1.

        Raises:
            ValueError: fewer than two examples.
        """

        def of_leaf(mean: Array, variance: Array) -> Array:
            signal = jnp.square(jnp.abs(mean))
            return jnp.where(signal == 0, 0, signal / variance)

        return jax.tree.map(of_leaf, self.mean, self.variance)


def gradient_moments(
    loss: Loss,
    *,
    method: str = "auto",
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., GradientMoments]:
    """The mean and the mean square of per-example gradients, entry by entry.

    From these follow the variance of each parameter's gradient and its signal-to-noise
    ratio. A variance far smaller than the squared mean has lost digits to rounding.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        method: "auto" forms no gradient of a layer that an example goes through once;
            "vmap" forms each of them.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples are worked on at once; None is all.

    Returns:
        `f(model, *batch, key=None, weight=None) -> GradientMoments`, with means
        weighted by `weight`.

    Raises:
        ValueError: an empty batch, and what `per_example_value_and_grad` raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import gradient_moments
    >>> f = gradient_moments(lambda w, x: 0.5 * (w - x) ** 2)
    >>> moments = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))  # of 1, -2 and -5
    >>> float(moments.mean), float(moments.square), float(moments.variance)
    (-2.0, 10.0, 9.0)
    """
    require_chunk_size(chunk_size)
    require_method(method)

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> GradientMoments:
        require_batch("gradient_moments", batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        weight, total, count = counted("gradient_moments", examples)
        route = ROUTES[method](
            value_of_params(loss, rest, False), params, examples.rows
        )
        group_of = (0,) * len(jax.tree.leaves(params))

        def add_chunk(sums: tuple, chunk: tuple) -> tuple[tuple, Array]:
            (rows, weight), counts = chunk
            value, _, grads = route.backward(rows)
            factor = weight if counts is None else jnp.where(counts, weight, 0)
            square = grads.second_moments(factor)
            mean = grads.weighted_sums([factor], group_of, True)
            return jax.tree.map(jnp.add, sums, (mean, square)), value

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, wide(p.dtype)), params)
        (mean, square), value = scan_chunks(
            add_chunk,
            (route.zero_sums(group_of), zeros),
            (examples.rows, weight),
            counts=examples.counts,
            chunk_size=chunk_size,
        )
        raise_cause(loss, model, batch, key, value)
        mean, square = jax.tree.map(
            lambda s: s / total.astype(s.dtype), (route.finish(mean, group_of), square)
        )
        return GradientMoments(mean, square, count)

    return f
