"""TracIn: which training examples helped or harmed the loss of a test example."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ..._checked import checked
from ..._types import Loss, Model, Trainable
from ...per_example._dot import require_alike
from ...per_example._method import require_method
from .._data import require_data, size_of
from .._step import Transform
from ._products import Products
from ._stream import blocks, require_scored


def _require(
    models: Any,
    train: Any,
    test: Any,
    *,
    learning_rates: Any = None,
    batch_size: Any = 256,
    **options: Any,
) -> None:
    require_models("influence", models)
    require_scored("influence", train, batch_size, "train")
    require_data("influence", "test", test)
    require_alike(train, test)
    require_method(options.get("method", "auto"))
    if learning_rates is not None and np.shape(learning_rates) != (len(models),):
        raise ValueError(
            f"influence: learning_rates must hold one number for each of the "
            f"{len(models)} models, got shape {np.shape(learning_rates)}"
        )


@checked(_require)
def influence(
    models: Sequence[Model],
    train: tuple,
    test: tuple,
    *,
    loss: Loss,
    learning_rates: Any = None,
    method: str = "auto",
    trainable: Trainable = None,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> Float[np.ndarray, "test train"]:
    """How far steps on each training example lower the loss of each test example.

    TracIn from checkpoints: sum_i learning_rate_i * grad loss(model_i, train example) .
    grad loss(model_i, test example). Positive is a proponent, whose steps lower the
    test example's loss to first order; negative an opponent. Source: Pruthi et al.
    (2020), "Estimating training data influence by tracing gradient descent",
    TracInCP.

    Args:
        models: those of several checkpoints, a list even of one.
        train: a tuple of arrays with one leading axis of examples.
        test: another one.
        loss: `loss(model, *example, key=None)`, one number for one example.
        learning_rates: one for each model; None is 1 for all.
        method: as in `per_example_grad_dot`.
        trainable: as in `per_example_grad_dot`.
        batch_size: examples of either set at once; it changes speed and memory, not the
            result.
        transform: as in `map_examples`.
        progress: as in `map_examples`.

    Returns:
        `[test, train]`, in float32 or wider.

    Raises:
        ValueError: no model, examples that differ in shape, and what `map_examples` and
            `per_example_grad_dot` raise.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import influence
    >>> loss = lambda w, x: 0.5 * (w - x) ** 2
    >>> train, test = (jnp.array([1.0, 4.0]),), (jnp.array([7.0]),)
    >>> influence([jnp.array(2.0)], train, test, loss=loss).tolist()
    [[-5.0, 10.0]]
    """
    rates = np.ones(len(models)) if learning_rates is None else learning_rates
    n = size_of(test)
    size = min(n, batch_size)
    total: Any = 0
    for model, rate in zip(models, np.asarray(rates), strict=True):
        parts = []
        for start in range(0, n, size):
            # The last batch is a whole one, so that one program will do.
            first = min(start, n - size)
            others = jax.tree.map(lambda x, i=first: x[i : i + size], test)
            score = Products(others, loss, method, trainable, transform, False)
            rows = blocks(
                score,
                model,
                train,
                batch_size=batch_size,
                transform=transform,
                progress=progress,
            )
            products = np.concatenate([products for _, products in rows]).T
            parts.append(products[start - first :])
        products = np.concatenate(parts)
        total = total + products.dtype.type(rate) * products
    return total


def require_models(owner: str, models: Any) -> None:
    """Raise a ValueError unless `models` is a sequence with a model in it."""
    if not isinstance(models, Sequence) or not models:
        raise ValueError(
            f"{owner}: models must be a list of the models of one or more checkpoints, "
            f"got {models!r}"
        )
