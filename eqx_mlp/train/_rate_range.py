"""Which learning rate to take: the loss while the rate grows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, PyTree

from .._checked import checked
from .._keys import require_key
from .._types import Key, Loss, Model, Optimizer, Trainable
from ..data import epoch_permutation
from ..nn import Ensemble
from ._data import require_count, require_data, size_of
from ._evaluate import evaluate
from ._gradient import mean_grad, mean_of
from ._state import TrainState, init_state
from ._step import Transform, make_step


class RateRange(NamedTuple):
    """The loss at each step of a run whose learning rate grows.

    `rate`, `loss` and `smooth` have one value a step, up to where the run diverges.
    `smooth` is the moving average of the loss, with the weight of its start taken out.
    """

    rate: Float[np.ndarray, " steps"]
    loss: Float[np.ndarray, " steps"]
    smooth: Float[np.ndarray, " steps"]

    @property
    def steepest(self) -> float:
        """The rate at which the smooth loss falls most for a factor in the rate.

        Falls are looked for up to the lowest smooth loss. It is a good first guess.
        """
        lowest = max(int(np.argmin(self.smooth)), 1)
        slope = np.gradient(self.smooth, np.log(self.rate))[: lowest + 1]
        return float(self.rate[int(np.argmin(slope))])

    def plot(self, ax: Any = None) -> Any:
        """Draw both losses over the rate, with a line at `steepest`.

        Args:
            ax: Matplotlib axes; None makes a figure, to be had as `ax.figure`.

        Returns:
            the axes.

        Raises:
            ImportError: Matplotlib is missing, which the extra `plot` brings.
        """
        if ax is None:
            ax = _figure().subplots()
        ax.plot(self.rate, self.loss, color="0.8", label="each step")
        ax.plot(self.rate, self.smooth, label="smoothed")
        steepest = self.steepest
        ax.axvline(steepest, color="0.3", ls="--", label=f"steepest at {steepest:.2g}")
        # The last steps of a run that diverges would squeeze all others.
        low, high = min(np.min(self.loss), np.min(self.smooth)), np.max(self.smooth)
        margin = 0.1 * (high - low) or 1.0
        ax.set_ylim(low - margin, high + margin)
        ax.set(xscale="log", xlabel="learning rate", ylabel="loss")
        ax.legend()
        return ax


def _require(
    model: Any,
    data: Any,
    *,
    optimizer: Any = optax.adam,
    key: Any = None,
    batch_size: Any = None,
    low: Any = 1e-6,
    high: Any = 1.0,
    steps: Any = 100,
    smoothing: Any = 0.9,
    **_: Any,
) -> None:
    owner = "learning_rate_range"
    if isinstance(model, Ensemble):
        raise ValueError(f"{owner} takes one model, such as ensemble[0]")
    require_data(owner, "data", data)
    require_count(owner, batch_size=batch_size, steps=steps)
    require_key(owner, key)
    if not callable(optimizer):
        raise ValueError(
            f"{owner}: optimizer must be a function of a learning rate, such as "
            f"optax.adam or lambda rate: optax.adamw(rate), got {optimizer!r}"
        )
    numbers = all(isinstance(x, int | float) for x in (low, high, smoothing))
    if not numbers or not 0 < low < high < math.inf:
        raise ValueError(
            f"{owner}: the rates must have 0 < low < high, got low={low!r} and "
            f"high={high!r}"
        )
    if steps < 2:
        raise ValueError(f"{owner}: steps must be at least 2, got {steps}")
    if not 0 <= smoothing < 1:
        raise ValueError(f"{owner}: smoothing must be in [0, 1), got {smoothing}")


@checked(_require)
def learning_rate_range(
    model: Model,
    data: tuple,
    *,
    loss: Loss,
    key: Key,
    batch_size: int,
    optimizer: Callable[[Any], Optimizer] = optax.adam,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.9,
    transform: Transform | None = None,
    gradient: Callable[..., Any] = mean_grad,
    trainable: Trainable = None,
) -> RateRange:
    """The loss of a short run whose learning rate grows from `low` to `high`.

    The rate is multiplied by one factor at every step. The model is left as it was.
    Source: Smith (2017), "Cyclical learning rates for training neural networks".

    Args:
        model: the model before training.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`.
        loss: `loss(model, *example, key=None)`, one number for one example.
        key: where the order of the examples and dropout come from.
        batch_size: examples a step, those of the run to come.
        optimizer: from a learning rate, or a schedule, to the optimiser to be used.
        low: the first step's rate.
        high: the last step's rate.
        steps: how many steps to take, over the data again and again.
        smoothing: what the moving average of the loss keeps at each step.
        transform: as in `fit`.
        gradient: as in `make_step`.
        trainable: as in `fit`.

    Returns:
        `RateRange(rate, loss, smooth)`, cut where the loss is not finite or its moving
        average is above four times the lowest so far.

    Raises:
        ValueError: no example, counts below 1, no key, bounds that are no rates, a
            loss that diverges within two steps, and what it raises for its example.

    >>> import jax, jax.numpy as jnp, optax
    >>> from eqx_mlp import learning_rate_range
    >>> found = learning_rate_range(
    ...     jnp.array(1.0), (jnp.zeros(8),), loss=lambda w, x: (w - x) ** 2,
    ...     key=jax.random.key(0), batch_size=4, optimizer=optax.sgd, low=1e-3)
    >>> found.rate.shape, 1e-3 < found.steepest < 1
    ((100,), True)
    """
    data = jax.tree.map(jnp.asarray, data)
    n = size_of(data)
    batch_size = min(batch_size, n)
    epochs = -(-steps * batch_size // n)
    order = np.concatenate([epoch_permutation(key, i, n) for i in range(epochs)])
    order = jnp.asarray(order[: steps * batch_size].reshape(steps, batch_size))
    rate = np.geomspace(low, high, steps).astype(np.float32)
    rates = jnp.asarray(rate)
    built = optimizer(lambda count: rates[count])
    step = make_step(
        loss, built, gradient=gradient, trainable=trainable, transform=transform
    )
    state = init_state(model, built, key=key, trainable=trainable)
    each = np.asarray(_losses(step, state, data, order))
    if not np.isfinite(each[0]):
        evaluate(model, data, metrics={"loss": loss}, transform=transform, key=key)
    return _until_divergence(rate, each, smoothing)


@eqx.filter_jit
def _losses(step: Any, state: TrainState, data: tuple, order: Any) -> PyTree:
    arrays, static = eqx.partition(state, eqx.is_array)

    def body(arrays: PyTree, index: Any) -> tuple[PyTree, Any]:
        batch = jax.tree.map(lambda x: x[index], data)
        state, sums = step(eqx.combine(arrays, static), batch)
        return eqx.filter(state, eqx.is_array), mean_of(sums["loss"])

    return jax.lax.scan(body, arrays, order)[1]


def _until_divergence(rate: Any, loss: Any, smoothing: float) -> RateRange:
    smooth = np.zeros_like(loss)
    average = 0.0
    for i, value in enumerate(loss):
        average = smoothing * average + (1 - smoothing) * float(value)
        smooth[i] = average / (1 - smoothing ** (i + 1))
    lowest = np.minimum.accumulate(smooth)
    bad = ~np.isfinite(smooth) | (smooth > lowest + 3 * np.abs(lowest))
    end = int(np.argmax(bad)) if np.any(bad) else len(loss)
    if end < 2:
        raise ValueError(
            f"learning_rate_range: the loss diverges at once, as {loss[:3]}: check the "
            f"data and the loss, or lower low, {rate[0]:.2g}"
        )
    return RateRange(rate[:end], loss[:end], smooth[:end])


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plotting takes Matplotlib: pip install 'eqx-mlp[plot]'"
        ) from error
    return Figure(layout="constrained")
