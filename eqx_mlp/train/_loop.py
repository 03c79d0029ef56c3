"""Compiled programs of many steps, and of a whole evaluation.

Each is one `lax.fori_loop` over batches, taken by index from arrays that stay on the
device, or over one that has come from elsewhere. Where the loop starts and ends is
data, so any number of steps runs without a second compilation.
"""

import functools
from collections.abc import Hashable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from .._types import Key, Model
from ..distributed._layout import Layout
from ..metrics import Metric, Metrics
from ..per_example import example_keys
from ._batches import Data, Part, take_batch
from ._gradient import mean_of
from ._state import TrainState
from ._step import (
    Transform,
    batch_metrics,
)


class EpochLoop:
    """An epoch under way: the state, the metrics' sums so far, each step's loss.

    The state is held as a flat list of arrays. Walking through modules at every call,
    as `eqx.filter_jit` does, takes longer than the host may.
    """

    def __init__(
        self,
        like: Part | None,
        state: TrainState,
        shapes: Any = None,
        so_far: tuple[dict[str, Metric], Float[np.ndarray, "steps ..."]] | None = None,
    ):
        """Begin an epoch, or go on in it, giving up the state's buffers.

        `like` is a part as they will run, or None if none will; `shapes` what another
        epoch of the run has as `shapes`; `so_far` what this one had when it was left.
        """
        arrays, self._static = _flatten(state)
        if shapes is None and like is not None:
            fixed, static = _flatten(like.batches)
            static = (static, self._static)
            shapes = jax.eval_shape(
                functools.partial(_step, static), fixed, arrays, np.int32(0)
            )[1]
        self.shapes = shapes
        # A loss for each member, where there are several.
        self._members = () if shapes is None else shapes["loss"].numerator.shape
        sums, step_loss = so_far or (zeros_of(shapes), self._zeros(0))
        if shapes is not None and _types(sums) != _types(shapes):
            raise ValueError(
                "fit: the metrics are not those of the run that is to go on: expected "
                f"sums of {_types(shapes)}, got {_types(sums)}"
            )
        if like is not None:
            # As they come out of the steps, lest these be compiled a second time.
            sums = like.batches.recipe.layout.replicated(sums)
        self._carry: tuple[list[Array], dict[str, Metric]] = (arrays, sums)
        self._losses = [step_loss]

    def run(self, parts: Iterable[Part]) -> Float[np.ndarray, "steps ..."]:
        """Run parts, and wait for them; gives the loss at each of their steps."""
        losses = []
        for part in parts:
            fixed, static = _flatten(part.batches)
            carry = (*self._carry, self._zeros(part.batches.steps))
            span = (np.int32(part.start), np.int32(part.stop))
            static = (static, self._static)
            arrays, sums, loss = _run_steps(static, fixed, carry, span)
            self._carry = (arrays, sums)
            losses.append((loss, slice(part.start, part.stop)))
            if len(losses) > 1:
                # Lest batches pile up where they come faster than they are used.
                jax.block_until_ready(losses[-2][0])
        new = [np.asarray(loss)[where] for loss, where in losses]
        self._losses += new
        return np.concatenate(new)

    def _zeros(self, steps: int) -> Float[np.ndarray, "steps ..."]:
        return np.zeros((steps, *self._members), np.float32)

    @property
    def state(self) -> TrainState:
        """The state so far; its arrays are valid until the next run."""
        return _unflatten(self._carry[0], self._static)

    @property
    def so_far(self) -> tuple[dict[str, Metric], Float[np.ndarray, "steps ..."]]:
        """The metrics' sums, valid until the next run, and each step's loss."""
        return self._carry[1], self.step_loss

    @property
    def values(self) -> dict[str, Any]:
        """Each metric's value over the epoch so far."""
        return {name: plain(sums.compute()) for name, sums in self._carry[1].items()}

    @property
    def numbers(self) -> dict[str, float]:
        """Those that are one number and have seen an example to divide by."""
        return {
            name: plain(sums.compute())
            for name, sums in self._carry[1].items()
            if sums.numerator.ndim == 0 and np.all(sums.denominator)
        }

    @property
    def step_loss(self) -> Float[np.ndarray, "steps ..."]:
        """The loss at each step that has run."""
        return np.concatenate(self._losses)


# Compiled by itself nowhere, but traced once for both the shapes and the loop.
@functools.partial(jax.jit, static_argnums=0)
def _step(static: Any, fixed: list, arrays: list, i: Any) -> tuple[list, dict]:
    epoch, state = _unflatten(fixed, static[0]), _unflatten(arrays, static[1])
    epoch.recipe.guard.traced({"state": state, "data": epoch.data})
    state, metrics = epoch.recipe.step()(state, epoch.batch(i))
    return _flatten(state)[0], metrics


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _run_steps(static: Any, fixed: list, carry: tuple, span: tuple) -> tuple:
    def body(i: Array, carry: tuple) -> tuple:
        arrays, sums, step_loss = carry
        arrays, metrics = _step(static, fixed, arrays, i)
        sums = {name: sums[name].merge(metrics[name]) for name in sums}
        loss = mean_of(metrics["loss"]).astype(step_loss.dtype)
        return arrays, sums, step_loss.at[i].set(loss)

    return jax.lax.fori_loop(span[0], span[1], body, carry)


def _types(tree: PyTree) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}"
        for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _flatten(tree: PyTree) -> tuple[list[Array], Hashable]:
    leaves, structure = jax.tree.flatten(tree)
    places = tuple(eqx.is_array(x) for x in leaves)
    rest = tuple(x for x, array in zip(leaves, places, strict=True) if not array)
    return [x for x in leaves if eqx.is_array(x)], (structure, places, rest)


def _unflatten(arrays: list[Array], static: Any) -> Any:
    structure, places, rest = static
    arrays_, rest_ = iter(arrays), iter(rest)
    leaves = [next(arrays_) if array else next(rest_) for array in places]
    return jax.tree.unflatten(structure, leaves)


@eqx.filter_jit
def run_evaluation(
    metrics: Metrics,
    transform: Transform | None,
    model: Model,
    data: Data,
    order: Int[Array, " padded"],
    batch_size: int,
    key: Key | None,
    layout: Layout,
) -> dict[str, Metric]:
    """Every metric over all of `data`; example i draws from `fold_in(key, i)`."""

    def of_batch(i: Any) -> dict[str, Metric]:
        batch = take_batch(data, order, i, batch_size, layout)
        keys = example_keys(key, batch.size, i * batch_size)
        return batch_metrics(metrics, model, batch, transform, keys)

    def body(i: Array, sums: dict[str, Metric]) -> dict[str, Metric]:
        new = of_batch(i)
        return {name: sums[name].merge(new[name]) for name in sums}

    zeros = zeros_of(jax.eval_shape(of_batch, 0))
    sums = jax.lax.fori_loop(0, order.shape[0] // batch_size, body, zeros)
    return layout.replicated(sums)


@eqx.filter_jit
def run_prediction(
    transform: Transform | None,
    model: Model,
    x: PyTree,
    order: Int[Array, " padded"],
    batch_size: int,
    layout: Layout,
) -> PyTree:
    """The model's output for each row of `x`."""

    def of_one(x: PyTree) -> PyTree:
        return model(x if transform is None else transform(x))

    def of_batch(i: Array) -> PyTree:
        (rows,) = take_batch((x,), order, i, batch_size, layout).example
        out = layout.replicated(jax.vmap(of_one)(rows))
        return jax.tree.map(lambda y: y[:batch_size], out)

    n = jax.tree.leaves(x)[0].shape[0]
    out = jax.lax.map(of_batch, jnp.arange(order.shape[0] // batch_size))
    return jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:])[:n], out)


def plain(value: Any) -> Any:
    """A float where there is one number, else a NumPy array."""
    value = np.asarray(value)
    return value.item() if value.ndim == 0 else value


def zeros_of(shapes: PyTree) -> Any:
    """Zeros of the given shapes and dtypes, made on the host: nothing to compile."""
    return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
