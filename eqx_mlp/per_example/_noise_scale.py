"""How noisy a batch gradient is, from its examples' norms and its own."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Loss, Model, Trainable
from ._batch import require_batch
from ._chunks import require_chunk_size
from ._counted import counted, require_two
from ._loss import raise_cause, split_trainable, value_of_params
from ._method import ROUTES, require_method
from ._products import squared
from ._sums import sums_by_norm
from ._vmap import Examples, examples_of


class GradientNoise(eqx.Module):
    """Unbiased estimates of the gradient's square and of its noise.

    `square` estimates |G|^2, with G the gradient of the mean loss over all data;
    `trace` estimates tr(Sigma), with Sigma the covariance of the gradients of single
    examples. Average each over batches before dividing: a mean of ratios is biased.
    """

    square: Float[Array, "..."]
    trace: Float[Array, "..."]

    @property
    def scale(self) -> Float[Array, "..."]:
        """B = tr(Sigma) / |G|^2, in examples: about the largest batch worth its price.

        Infinite where the estimate of |G|^2 is not above 0, since the noise of the
        batch hides the gradient: average over more.
        """
        seen = self.square > 0
        return jnp.where(seen, self.trace / jnp.where(seen, self.square, 1), jnp.inf)


def gradient_noise_scale(
    loss: Loss,
    *,
    method: str = "auto",
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., GradientNoise]:
    """The gradient noise scale, estimated without bias from one batch.

    With n examples, mean gradient g and mean square norm s of single gradients,
    tr(Sigma) = (s - |g|^2) n / (n - 1) and |G|^2 = |g|^2 - tr(Sigma) / n. With weights
    n is (sum w)^2 / sum w^2. Source: McCandlish et al. (2018), "An empirical model of
    large-batch training", section 2.2 and appendix A.1, where batches of one take the
    place of the small batch.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        method: "auto" never forms a gradient of one example where it can be avoided;
            "vmap" forms each of them.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples are worked on at once; None is all.

    Returns:
        `f(model, *batch, key=None, weight=None) -> GradientNoise`. Inside compiled code
        a batch in which fewer than two examples count gives NaN.

    Raises:
        ValueError: fewer than two examples, and what `per_example_value_and_grad`
            raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import gradient_noise_scale
    >>> f = gradient_noise_scale(lambda w, x: 0.5 * (w - x) ** 2)
    >>> noise = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))  # of 1, -2 and -5
    >>> float(noise.trace), float(noise.square), float(noise.scale)
    (9.0, 1.0, 9.0)
    """
    require_chunk_size(chunk_size)
    require_method(method)

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> GradientNoise:
        require_batch("gradient_noise_scale", batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        weight, total, n = counted("gradient_noise_scale", examples)
        require_two("gradient_noise_scale", n)
        route = ROUTES[method](
            value_of_params(loss, rest, False), params, examples.rows
        )
        sums, value, norm, _ = sums_by_norm(
            route,
            Examples(examples.rows, examples.counts, weight),
            lambda norm, group: jnp.ones_like(norm),
            group_of=(0,) * len(jax.tree.leaves(params)),
            chunk_size=chunk_size,
            silence=False,
        )
        raise_cause(loss, model, batch, key, value)
        weight, total, n = (x.astype(norm.dtype) for x in (weight, total, n))
        of_one = jnp.sum(weight * jnp.square(norm)) / total
        squares = [jnp.sum(squared(g)) for g in jax.tree.leaves(sums)]
        of_sum = jnp.sum(jnp.stack([x.astype(norm.dtype) for x in squares]))
        of_mean = of_sum / jnp.square(total)
        trace = jnp.maximum(of_one - of_mean, 0) * (n / (n - 1))
        return GradientNoise(of_mean - trace / n, trace)

    return f
