"""A function of a batch over a whole data set, in bounded memory."""

import abc
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..._types import Model
from .._data import require_count, require_data, size_of
from .._progress import bar
from .._step import Transform

# How many batches a compiled call goes through: little host work beside them, and a bar
# that moves.
BATCHES = 16


class Score(eqx.Module):
    """What is found of each example. Equal ones share a compiled program."""

    @abc.abstractmethod
    def of_model(self, model: Model) -> Callable[..., PyTree]:
        """`f(*batch)`, whose results have the batch's leading axis."""

    @abc.abstractmethod
    def cause(self, model: Model, *example: Any) -> None:
        """Raise what explains why one example came out as NaN, if anything does."""


def require_scored(
    owner: str, data: Any, batch_size: Any, name: str = "data", **_: Any
) -> None:
    """Raise a ValueError unless there is data, and a batch size."""
    require_data(owner, name, data)
    require_count(owner, batch_size=batch_size)


def blocks(
    score: Score,
    model: Model,
    data: tuple,
    *,
    batch_size: int,
    transform: Transform | None,
    progress: bool,
) -> Iterator[tuple[int, PyTree]]:
    """`(start, rows of results)` from the first example to the last, without dropout.

    Only a block of examples is on the device at once, if the data is not.
    """
    n = size_of(data)
    batch_size = min(batch_size, n)
    size = min(n, BATCHES * batch_size)
    model = eqx.nn.inference_mode(model)
    shown = bar(n, progress)
    try:
        for start in range(0, n, size):
            # The last block, and in it the last batch, is a whole one that overlaps the
            # one before: one program will do, without padding.
            first = min(start, n - size)
            block = jax.tree.map(lambda x, i=first: x[i : i + size], data)
            skipped = start - first
            begin = jnp.asarray(skipped // batch_size, jnp.int32)
            rows = _run_block(score, transform, model, block, begin, batch_size)
            rows = jax.tree.map(lambda x, i=skipped: np.asarray(x)[i:], rows)
            _raise_cause(score, transform, model, block, rows, skipped)
            yield start, rows
            if shown is not None:
                shown.update(size - skipped)
    finally:
        if shown is not None:
            shown.close()


def transformed_batch(transform: Transform | None, batch: tuple) -> tuple:
    """A batch with the first argument of each example transformed."""
    if transform is None:
        return batch
    x, *rest = batch
    return (jax.vmap(transform)(x), *rest)


@eqx.filter_jit
def _run_block(
    score: Score,
    transform: Transform | None,
    model: Model,
    block: tuple,
    begin: Array,
    batch_size: int,
) -> PyTree:
    of_batch = score.of_model(model)
    block = jax.tree.map(jnp.asarray, block)

    def at(i: Any) -> PyTree:
        batch = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, i * batch_size, batch_size), block
        )
        return of_batch(*transformed_batch(transform, batch))

    def put(i: Array, rows: PyTree) -> PyTree:
        return jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(
                all_, new, i * batch_size, 0
            ),
            rows,
            at(i),
        )

    size = size_of(block)
    shapes = jax.eval_shape(at, 0)
    for x in jax.tree.leaves(shapes):
        if x.shape[:1] != (batch_size,):
            raise ValueError(
                "map_examples: f must give arrays with the batch's leading axis, here "
                f"of length {batch_size}, got shape {x.shape}"
            )
    zeros = jax.tree.map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), shapes)
    return jax.lax.fori_loop(begin, -(-size // batch_size), put, zeros)


def _raise_cause(
    score: Score,
    transform: Transform | None,
    model: Model,
    block: tuple,
    rows: PyTree,
    skipped: int,
) -> None:
    for x in jax.tree.leaves(rows):
        if np.issubdtype(x.dtype, np.inexact) and not np.all(np.isfinite(x)):
            bad = skipped + int(np.argwhere(~np.isfinite(x))[0, 0])
            one = jax.tree.map(lambda x, i=bad: jnp.asarray(x[i : i + 1]), block)
            one = transformed_batch(transform, one)
            score.cause(model, *jax.tree.map(lambda x: x[0], one))
            return
