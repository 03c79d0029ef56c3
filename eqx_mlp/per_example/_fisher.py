"""The diagonal of the empirical Fisher information."""

from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from .._types import Key, Loss, Model, Trainable
from ._moments import gradient_moments


def fisher_diagonal(
    loss: Loss,
    *,
    method: str = "auto",
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., PyTree]:
    """The diagonal of the empirical Fisher: the mean of squared per-example gradients.

    With the labels of the data. It is the Fisher information itself where the loss is
    a negative log-likelihood and the labels are drawn from the model (Kunstner et al.,
    2019, "Limitations of the empirical Fisher approximation"). Elastic weight
    consolidation takes it (Kirkpatrick et al., 2017).

    Arguments and errors are those of `gradient_moments`.

    Returns:
        `f(model, *batch, key=None, weight=None)` gives a tree like the model in float32
        or wider, None where not trainable.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import fisher_diagonal
    >>> f = fisher_diagonal(lambda w, x: 0.5 * (w - x) ** 2)
    >>> float(f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0])))  # of 1, -2 and -5
    10.0
    """
    moments = gradient_moments(
        loss, method=method, trainable=trainable, chunk_size=chunk_size
    )

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> PyTree:
        return moments(model, *batch, key=key, weight=weight).square

    return f
