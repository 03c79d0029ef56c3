"""The gradient noise scale over training, and the batch size it suggests."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._checked import checked
from ..._types import Key, Model
from ...data import Batch
from ...nn._ensemble import each_member
from ...per_example import GradientNoise, gradient_noise_scale
from .._batches import Recipe
from .._call import Call
from .._callback import Callback
from .._data import require_count, require_data, size_of
from .._loop import plain
from .._state import TrainState
from .._step import augmented, transformed


def _require(
    self: Any,
    data: Any,
    *,
    batch_size: Any = 256,
    batches: Any = 8,
    decay: Any = 0.5,
) -> None:
    require_data("NoiseScale", "data", data)
    require_count("NoiseScale", batch_size=batch_size, batches=batches)
    if batch_size < 2:
        raise ValueError("NoiseScale: batch_size must be at least 2, got 1")
    if not (isinstance(decay, float | int) and 0 <= decay < 1):
        raise ValueError(
            "NoiseScale: decay is what a measurement keeps of its weight at the next "
            f"one and must be in [0, 1), such as 0.5, got {decay!r}"
        )


class NoiseScale(Callback):
    """Adds the gradient noise scale after each epoch to the history and the logs.

    `gradient_noise_scale` of the loss that is trained, as it is trained (with dropout
    and augmentation), on examples drawn from `data`. The estimates of tr(Sigma) and of
    |G|^2 are each averaged, over batches and with a falling weight over epochs, and
    then divided. In the history: "noise_scale", that ratio, in examples; "grad_square"
    and "grad_trace", the two averages.

    Args:
        data: a tuple of arrays like those that `fit` trains on, or those themselves.
        batch_size: examples of one estimate.
        batches: how many estimates after each epoch.
        decay: what the measurements before count beside a new one; 0 is nothing.

    Source: McCandlish et al. (2018), "An empirical model of large-batch training",
    appendix A.1.

    >>> import jax.numpy as jnp
    >>> noise = NoiseScale((jnp.ones((64, 2)), jnp.zeros(64, int)), batch_size=32)
    """

    @checked(_require)
    def __init__(
        self,
        data: tuple,
        *,
        batch_size: int = 256,
        batches: int = 8,
        decay: float | int = 0.5,
    ):
        self._data = data
        self._shape = (batches, batch_size)
        self._decay = decay
        self._noise: GradientNoise | None = None
        self._weight = 0.0

    def on_start(self, state: TrainState, history: Mapping[str, np.ndarray]) -> None:
        """Begin anew."""
        self._noise, self._weight = None, 0.0

    def on_call(self, state: TrainState, call: Call) -> None:
        """See what is trained, and how."""
        self._recipe = call.recipe

    def measure(self, state: TrainState) -> dict[str, Any]:
        """The running noise scale, and what it is the ratio of."""
        # No example of a batch has this place: independent of the run's other draws.
        key = jax.random.fold_in(jax.random.fold_in(state.key, state.step), 2**32 - 3)
        places = jax.random.randint(key, self._shape, 0, size_of(self._data))
        # On the host: of mapped files only these examples are read.
        examples = jax.tree.map(lambda x: x[np.asarray(places)], self._data)
        new = _mean_noise(self._recipe, state.model, examples, key)
        old = new if self._noise is None else self._noise
        self._weight = self._decay * self._weight + 1
        noise = jax.tree.map(
            lambda old, new: old + (new - old) / self._weight, old, new
        )
        self._noise = noise
        return {
            "noise_scale": plain(noise.scale),
            "grad_square": plain(noise.square),
            "grad_trace": plain(noise.trace),
        }

    @property
    def suggested_batch_size(self) -> Any:
        """The power of two nearest to the noise scale, at most the size of the data.

        At this size a step gains half of what one by the exact gradient would, and
        a loss is reached in twice the fewest steps, with twice the fewest examples.

        Raises:
            ValueError: nothing has been measured yet.
        """
        if self._noise is None:
            raise ValueError(
                "NoiseScale: nothing has been measured yet: give it to fit as one of "
                "callbacks=[...] and ask after an epoch"
            )
        n = size_of(self._data)
        power = np.round(np.log2(np.clip(np.asarray(self._noise.scale), 1, n)))
        return plain(np.minimum(np.exp2(power), n).astype(int))

    def save_state(self) -> Any:
        """The averages."""
        if self._noise is None:
            return None
        noise = {"square": self._noise.square, "trace": self._noise.trace}
        return noise | {"weight": self._weight}

    def load_state(self, saved: Any, state: TrainState) -> None:
        """Go on from them."""
        if saved is not None:
            self._noise = GradientNoise(
                jnp.asarray(saved["square"]), jnp.asarray(saved["trace"])
            )
            self._weight = float(saved["weight"])


@eqx.filter_jit
def _mean_noise(
    recipe: Recipe, model: Model, examples: tuple, key: Key
) -> GradientNoise:
    noise_of = gradient_noise_scale(
        transformed(recipe.loss, recipe.transform), trainable=recipe.trainable
    )

    def of_batch(batch: tuple) -> GradientNoise:
        example, key = batch
        if recipe.augment is not None:
            example = augmented(Batch(example), recipe.augment, key).example

        def of_member(model: Model) -> GradientNoise:
            return noise_of(model, *example, key=key)

        return each_member(of_member, model)

    keys = jax.random.split(key, size_of(examples))
    noise = jax.lax.map(of_batch, (jax.tree.map(jnp.asarray, examples), keys))
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), noise)
