"""Products of the gradients of two batches' examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types import Key, Loss, Model, PerExample, Trainable
from ._batch import require_batch
from ._chunks import require_chunk_size, scan_chunks
from ._loss import raise_cause, split_trainable, value_of_params
from ._method import ROUTES, require_method, total_norm
from ._route import Gradients, Route
from ._vmap import examples_of


def per_example_grad_dot(
    loss: Loss,
    *,
    normalize: bool = False,
    method: str = "auto",
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., Float[Array, "batch other"]]:
    """The products of each example's gradient with each of another batch.

    Over all trainable parameters: one number for each pair. This is the tangent kernel
    of the loss; TracIn's influence is made of it.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        normalize: give cosines: products over both norms, 0 where a gradient is 0.
        method: "auto" finds the products of layers from what goes in and what comes
            back, and forms gradients only where that is cheaper; "vmap" forms all.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples of the first batch are worked on at once; None is
            all.

    Returns:
        `f(model, batch, other, *, key=None) -> [batch, other]`, where both are tuples
        of the loss's arguments with a leading axis. In float32 or wider.

    Raises:
        ValueError: batches whose examples differ in shape, and what
            `per_example_value_and_grad` raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import per_example_grad_dot
    >>> f = per_example_grad_dot(lambda w, x: 0.5 * (w - x) ** 2)
    >>> f(jnp.array(2.0), (jnp.array([1.0, 4.0]),), (jnp.array([7.0, 2.0]),)).tolist()
    [[-5.0, 0.0], [10.0, 0.0]]
    """
    require_chunk_size(chunk_size)
    require_method(method)

    def f(
        model: Model, batch: Any, other: Any, *, key: Key | None = None
    ) -> Float[Array, "batch other"]:
        require_alike(batch, other)
        rows, others = (examples_of(part, key, None).rows for part in (batch, other))
        params, rest = split_trainable(model, trainable)
        of_params = value_of_params(loss, rest, False)
        other_value, of_rows = against(
            ROUTES[method](of_params, params, others), others, normalize
        )
        _, (value, products) = scan_chunks(
            lambda carry, chunk: (carry, of_rows(chunk[0])),
            None,
            rows,
            counts=None,
            chunk_size=chunk_size,
        )
        raise_cause(loss, model, batch, key, value)
        raise_cause(loss, model, other, key, other_value)
        return products

    return f


def against(
    route: Route, others: tuple, normalize: bool
) -> tuple[PerExample, Callable[[tuple], tuple[PerExample, Array]]]:
    """The losses of `others`, and a function of rows to their losses and products."""

    def factors(grads: Gradients, value: PerExample) -> PerExample:
        if not normalize:
            return jnp.ones_like(value)
        norm = total_norm(grads.norms(then_sum=False), value)
        return jnp.where(norm == 0, 0, 1 / jnp.where(norm == 0, 1, norm))

    other_value, _, other_grads = route.backward(others)
    other_factors = factors(other_grads, other_value)

    def of_rows(rows: tuple) -> tuple[PerExample, Float[Array, "batch other"]]:
        value, _, grads = route.backward(rows)
        return value, grads.products(other_grads, factors(grads, value), other_factors)

    return other_value, of_rows


def require_alike(batch: Any, other: Any) -> None:
    """Raise a ValueError unless both are batches whose examples look the same."""

    def form(part: Any) -> str:
        if not isinstance(part, tuple):
            raise ValueError(
                "per_example_grad_dot: a batch is a tuple of the arrays that the loss "
                f"takes after the model, such as (x, y), got {type(part).__name__}"
            )
        require_batch("per_example_grad_dot", part)
        leaves, tree = jax.tree.flatten(part)
        shapes = (f"{jnp.result_type(x)}{list(jnp.shape(x)[1:])}" for x in leaves)
        return f"{', '.join(shapes)} in {tree}"

    forms = form(batch), form(other)
    if forms[0] != forms[1]:
        raise ValueError(
            "per_example_grad_dot: the examples of both batches must have the same "
            f"shapes and dtypes, got {forms[0]} and {forms[1]}"
        )
