"""Per-example gradients by `vmap` of `grad`: the reference for every other route."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Bool, PyTree, Shaped

from .._types import ArrayLike, Key, Loss, Model, PerExample, Trainable
from ._batch import as_batch, example_keys, require_batch, zero_padding
from ._chunks import require_chunk_size, scan_chunks
from ._loss import raise_cause, split_trainable, value_of_params

Rows = tuple[PerExample, Any, PyTree]


class Examples(eqx.Module):
    """A batch made ready: rows to map over, which of them count, how much."""

    rows: tuple
    counts: Bool[Array, " batch"] | None
    weight: Shaped[ArrayLike, " batch"] | None

    @property
    def size(self) -> int:
        """The number of rows."""
        return jax.tree.leaves(self.rows)[0].shape[0]


def examples_of(batch: tuple, key: Key | None, weight: Any) -> Examples:
    """The batch with harmless padding and a key an example."""
    ready = as_batch(batch, weight)
    rows = (ready.example, example_keys(key, ready.size))
    counts = None if ready.weight is None else ready.weight != 0
    return Examples(rows, counts, ready.weight)


def value_and_grad_rows(
    loss: Loss, params: PyTree, rest: PyTree, has_aux: bool
) -> Callable[[tuple, Bool[Array, " batch"] | None], Rows]:
    """`f(rows, counts) -> (value, aux, grads)`, zeros in rows that do not count."""
    grad = jax.vmap(
        jax.value_and_grad(value_of_params(loss, rest, has_aux), has_aux=True),
        in_axes=(None, 0, 0),
    )

    def f(rows: tuple, counts: Bool[Array, " batch"] | None) -> Rows:
        (value, aux), grads = grad(params, *rows)
        zeroed = functools.partial(zero_padding, counts=counts)
        return zeroed(value), aux, jax.tree.map(zeroed, grads)

    return f


def per_example_value_and_grad(
    loss: Loss,
    *,
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., tuple[Any, PyTree]]:
    """The loss and the gradient of each example.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves of the model get a gradient: a path, a type or a
            `Selection` of `select`, a predicate of leaves, or a prefix pytree of
            booleans; None is every floating-point array.
        chunk_size: how many examples are worked on at once; None is all.

    Returns:
        `f(model, *batch, key=None, weight=None) -> (value, grads)`, or `((value, aux),
        grads)` with `has_aux`. `value` is `[batch]`. `grads` has the model's structure
        with leaves `[batch, *leaf.shape]`, and None for what is not trainable. Rows of
        weight 0 are exact zeros; other weights do not change an example's gradient.

    Raises:
        ValueError: a loss that is not one floating-point number, arguments of different
            lengths, a model without a trainable parameter.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import per_example_value_and_grad
    >>> f = per_example_value_and_grad(lambda w, x: 0.5 * (w - x) ** 2)
    >>> value, grads = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))
    >>> grads.tolist()
    [1.0, -2.0, -5.0]
    """
    require_chunk_size(chunk_size)
    name = "per_example_value_and_grad"

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[Any, PyTree]:
        require_batch(name, batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        work = value_and_grad_rows(loss, params, rest, has_aux)
        _, (value, aux, grads) = scan_chunks(
            lambda carry, chunk: (carry, work(*chunk)),
            None,
            examples.rows,
            counts=examples.counts,
            chunk_size=chunk_size,
        )
        raise_cause(loss, model, batch, key, value)
        return ((value, aux) if has_aux else value), grads

    return f


def per_example_grad(
    loss: Loss,
    *,
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """The gradient of each example.

    Arguments and errors are those of `per_example_value_and_grad`. Returns
    `f(model, *batch, key=None, weight=None) -> grads`, or `(grads, aux)` with
    `has_aux`; leaves are `[batch, *leaf.shape]`, None where not trainable.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import per_example_grad
    >>> f = per_example_grad(lambda w, x: 0.5 * (w - x) ** 2)
    >>> f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0])).tolist()
    [1.0, -2.0, -5.0]
    """
    both = per_example_value_and_grad(
        loss, has_aux=has_aux, trainable=trainable, chunk_size=chunk_size
    )

    def f(model: Model, *batch: Any, key: Key | None = None, weight: Any = None) -> Any:
        value, grads = both(model, *batch, key=key, weight=weight)
        return (grads, value[1]) if has_aux else grads

    return f
