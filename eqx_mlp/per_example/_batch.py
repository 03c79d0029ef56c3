"""A batch as every function takes it: checked, with padding made harmless, keyed."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from .._types import Key
from ..data import Batch


def require_batch(owner: str, batch: tuple, weight: Any = None) -> None:
    """Raise a ValueError unless every array has a leading axis of one length."""
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    if not leaves:
        raise ValueError(f"{owner} takes a batch of examples after the model, got none")
    lengths = {}
    for (first, *rest), leaf in leaves:
        name = f"argument {first.idx}{jax.tree_util.keystr(tuple(rest))}"
        if jnp.ndim(leaf) == 0:
            raise ValueError(
                f"{owner}: {name} of the batch has no axis 0 to hold the examples "
                f"({type(leaf).__name__}): give each argument a leading batch axis"
            )
        lengths[name] = jnp.shape(leaf)[0]
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{name}: {n}" for name, n in lengths.items())
        raise ValueError(
            f"{owner}: every argument must have the same number of examples along axis "
            f"0, got {listing}"
        )
    n = next(iter(lengths.values()))
    if weight is not None and jnp.shape(weight) != (n,):
        raise ValueError(
            f"{owner}: weight must have one number an example, shape ({n},), got shape "
            f"{jnp.shape(weight)}"
        )


def as_batch(batch: tuple, weight: Any = None) -> Batch:
    """Arrays on the device, with every padding row replaced by a row that counts.

    A padding row may hold anything, NaN and labels out of range too. Weighting its
    loss by 0 is not enough, since 0 * NaN is NaN, so it is computed on a copy of the
    first row that counts (or on zeros where none does) and then weighted by 0.
    """
    example = jax.tree.map(jnp.asarray, batch)
    if weight is None:
        return Batch(example)
    weight = jnp.asarray(weight)
    if not jnp.issubdtype(weight.dtype, jnp.floating):
        weight = weight.astype(jnp.float32)
    counts = weight != 0
    if weight.shape[0] == 0:
        return Batch(example, weight)
    any_counts = jnp.any(counts)
    first = jnp.argmax(counts)

    def harmless(x: Array) -> Array:
        # A gather of one row: x[first], a slice, would have a mesh gather all rows.
        row = x.at[first[None]].get(mode="promise_in_bounds")
        row = jnp.where(any_counts, row, jnp.zeros_like(row))
        return jnp.where(rows_like(counts, x), x, row)

    return Batch(jax.tree.map(harmless, example), weight)


def rows_like(
    row: Shaped[Array, " batch"], x: Shaped[Array, "batch ..."]
) -> Shaped[Array, "batch ..."]:
    """One value a row, shaped to be used beside `x`."""
    return jnp.broadcast_to(jax.lax.expand_dims(row, range(1, x.ndim)), x.shape)


def zero_padding(
    x: Shaped[Array, "batch ..."], counts: Bool[Array, " batch"] | None
) -> Shaped[Array, "batch ..."]:
    """`x` with exact zeros in the rows that do not count."""
    if counts is None:
        return x
    return jnp.where(rows_like(counts, x), x, jnp.zeros_like(x))


def example_keys(
    key: Key | None, n: int, start: Any = 0
) -> Shaped[Array, "batch ..."] | None:
    """A key for each example: `fold_in(key, index in the batch)`.

    `start` is the index of the first. An example's random numbers then depend on its
    place alone, whatever the chunks or devices.
    """
    if key is None:
        return None
    places = jnp.asarray(start, jnp.int32) + jnp.arange(n, dtype=jnp.int32)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, places)
