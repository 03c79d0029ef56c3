"""What makes a step, and the batches that it is done with."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree, Shaped

from .._types import ArrayLike, Loss, Optimizer, Trainable
from ..data import Batch
from ..distributed._layout import Layout
from ..metrics import Metrics
from ._retrace import RetraceGuard
from ._step import Augment, StepFunction, Transform, step_on

Data = tuple[PyTree[Shaped[Array, "examples ..."]], ...]


@functools.partial(jax.jit, static_argnames=("batch_size", "layout"))
def take_rows(
    data: Data,
    order: Int[ArrayLike, " padded"],
    i: Any,
    count: Any,
    batch_size: int,
    layout: Layout,
) -> Batch:
    """Batch number `i` of `order`, which holds whole batches of valid indices.

    Its rows from number `count` on have weight 0; None says that all count. Each device
    has the data, and takes its own rows.
    """
    rows = layout.whole(batch_size)
    index = jax.lax.dynamic_slice(order, (i * batch_size,), (batch_size,))
    index = layout.rows(jnp.pad(index, (0, rows - batch_size)))
    example = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), data)
    if count is None and rows == batch_size:
        return Batch(example)
    row = jnp.arange(rows, dtype=jnp.int32)
    counts = row < (batch_size if count is None else count)
    return Batch(example, layout.rows(counts.astype(jnp.float32)))


def take_batch(
    data: Data,
    order: Int[ArrayLike, " padded"],
    i: Any,
    batch_size: int,
    layout: Layout,
) -> Batch:
    """The same where `order` is all of the data: what is missing does not count."""
    n = jax.tree.leaves(data)[0].shape[0]
    count = None
    if n % batch_size:
        count = jnp.minimum(n - jnp.asarray(i * batch_size, jnp.int32), batch_size)
    return take_rows(data, order, i, count, batch_size, layout)


class Recipe(NamedTuple):
    """What makes a step, so that runs with the same parts share a compiled program."""

    loss: Loss
    optimizer: Optimizer
    gradient: Callable[..., Any]
    trainable: Trainable
    transform: Transform | None
    metrics: Metrics
    guard: RetraceGuard
    augment: Augment | None = None
    layout: Layout = Layout()

    def step(self) -> StepFunction:
        """The step function, which leaves its results where the next step has them."""
        return step_on(
            self.layout,
            self.loss,
            self.optimizer,
            gradient=self.gradient,
            trainable=self.trainable,
            transform=self.transform,
            augment=self.augment,
            metrics=self.metrics,
        )


class Epoch(NamedTuple):
    """What stays the same while an epoch's steps run."""

    recipe: Recipe
    data: Data
    order: Int[ArrayLike, " padded"]
    batch_size: int
    # How many of each batch's rows count; None where all do.
    counts: Int[ArrayLike, " steps"] | None = None

    @property
    def steps(self) -> int:
        """How many batches there are."""
        return self.order.shape[0] // self.batch_size

    def batch(self, i: Any) -> Batch:
        """The epoch's batch number `i`."""
        count = None if self.counts is None else self.counts[i]
        layout = self.recipe.layout
        return take_rows(self.data, self.order, i, count, self.batch_size, layout)


class OneBatch(NamedTuple):
    """A batch that is there, where `Epoch` takes each from the data."""

    recipe: Recipe
    data: Batch

    @property
    def steps(self) -> int:
        """One."""
        return 1

    def batch(self, i: Any) -> Batch:
        """The batch."""
        return self.data


class Part(NamedTuple):
    """Steps number `start` to `stop - 1` of what has batches for them."""

    batches: Epoch | OneBatch
    start: int
    stop: int

    @property
    def first(self) -> Batch:
        """The first step's batch."""
        return self.batches.batch(self.start)
