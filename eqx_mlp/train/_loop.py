"""Compiled programs of many steps, and of a whole evaluation.

Each is one `lax.fori_loop` over batches taken by index from arrays that stay on the
device. Where the loop starts and ends is data, so any number of steps runs without a
second compilation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from .._types import ArrayLike, Loss, Model, Optimizer, Trainable
from ..data import Batch
from ..metrics import Metric, Metrics
from ._state import TrainState
from ._step import StepFunction, Transform, batch_metrics, make_step, mean_of

Data = tuple[PyTree[Shaped[Array, "examples ..."]], ...]


class EpochCarry(eqx.Module):
    """What an epoch's loop carries: the state, its sums so far, each step's loss."""

    state: TrainState
    sums: dict[str, Metric]
    step_loss: Shaped[Array, " steps"]


def take_batch(
    data: Data, order: Int[ArrayLike, " padded"], i: Any, batch_size: int
) -> Batch:
    """Batch number `i` of the epoch with this order; its missing rows have weight 0.

    `order` is filled up to whole batches with valid indices.
    """
    n = jax.tree.leaves(data)[0].shape[0]
    index = jax.lax.dynamic_slice(order, (i * batch_size,), (batch_size,))
    example = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), data)
    if n % batch_size == 0:
        return Batch(example)
    place = i * batch_size + jnp.arange(batch_size)
    return Batch(example, (place < n).astype(jnp.float32))


class Recipe(NamedTuple):
    """What makes a step, so that runs with the same parts share a compiled program."""

    loss: Loss
    optimizer: Optimizer
    gradient: Callable[..., Any]
    trainable: Trainable
    transform: Transform | None
    metrics: Metrics

    def step(self) -> StepFunction:
        """The step function."""
        return make_step(
            self.loss,
            self.optimizer,
            gradient=self.gradient,
            trainable=self.trainable,
            transform=self.transform,
            metrics=self.metrics,
        )


class Epoch(NamedTuple):
    """What stays the same while an epoch's steps run."""

    recipe: Recipe
    data: Data
    order: Int[ArrayLike, " padded"]
    batch_size: int

    def batch(self, i: Any) -> Batch:
        """The epoch's batch number `i`."""
        return take_batch(self.data, self.order, i, self.batch_size)


def metric_shapes(epoch: Epoch, state: TrainState) -> dict[str, Metric]:
    """What a step measures, as shapes and dtypes."""
    step = epoch.recipe.step()
    return eqx.filter_eval_shape(lambda state: step(state, epoch.batch(0))[1], state)


def start_epoch(epoch: Epoch, state: TrainState, shapes: Any) -> EpochCarry:
    """The carry before an epoch's first step."""
    steps = epoch.order.shape[0] // epoch.batch_size
    return EpochCarry(state, zeros_of(shapes), jnp.zeros(steps, jnp.float32))


@eqx.filter_jit(donate="all-except-first")
def run_steps(
    epoch: Epoch, carry: EpochCarry, span: tuple[Int[ArrayLike, ""], Int[ArrayLike, ""]]
) -> EpochCarry:
    """Steps number `span[0]` to `span[1] - 1` of an epoch."""
    step = epoch.recipe.step()
    arrays, static = eqx.partition(carry, eqx.is_array)

    def body(i: Array, arrays: PyTree) -> PyTree:
        carry = eqx.combine(arrays, static)
        state, metrics = step(carry.state, epoch.batch(i))
        sums = {name: carry.sums[name].merge(metrics[name]) for name in metrics}
        value = mean_of(metrics["loss"]).astype(jnp.float32)
        new = EpochCarry(state, sums, carry.step_loss.at[i].set(value))
        return eqx.filter(new, eqx.is_array)

    return eqx.combine(jax.lax.fori_loop(*span, body, arrays), static)


@eqx.filter_jit
def run_evaluation(
    metrics: Metrics,
    transform: Transform | None,
    model: Model,
    data: Data,
    order: Int[Array, " padded"],
    batch_size: int,
) -> dict[str, Metric]:
    """Every metric over all of `data`."""

    def of_batch(i: Any) -> dict[str, Metric]:
        batch = take_batch(data, order, i, batch_size)
        return batch_metrics(metrics, model, batch, transform)

    def body(i: Array, sums: dict[str, Metric]) -> dict[str, Metric]:
        new = of_batch(i)
        return {name: sums[name].merge(new[name]) for name in sums}

    zeros = zeros_of(jax.eval_shape(of_batch, 0))
    return jax.lax.fori_loop(0, order.shape[0] // batch_size, body, zeros)


@eqx.filter_jit
def run_prediction(
    transform: Transform | None, model: Model, x: PyTree, batch_size: int
) -> PyTree:
    """The model's output for each row of `x`."""

    def of_one(x: PyTree) -> PyTree:
        return model(x if transform is None else transform(x))

    return jax.lax.map(of_one, x, batch_size=batch_size)


def zeros_of(shapes: PyTree) -> Any:
    """Zeros of the given shapes and dtypes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
