"""Sums of clipped per-example gradients."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from .._dtypes import promote, wide
from .._known import is_known
from .._types import Key, Loss, Model, PerExample, Trainable
from ._batch import require_batch, rows_like
from ._chunks import require_chunk_size, scan_chunks
from ._loss import raise_cause, split_trainable
from ._method import require_method
from ._norm import clip_factors, row_norms
from ._vmap import examples_of, value_and_grad_rows


class ExampleStats(eqx.Module):
    """What a batch gradient tells of each example.

    `value` is each loss; `grad_norm` each norm before clipping, None where the gradient
    did not need it; `aux` what a loss with `has_aux` returned, with a leading batch
    axis. Rows of weight 0 hold zeros in `value` and `grad_norm`.
    """

    value: PerExample
    grad_norm: PerExample | None
    aux: Any = None


def clipped_grad(
    loss: Loss,
    *,
    l2_clip_norm: Any,
    normalize_by: Any = 1.0,
    method: str = "vmap",
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
) -> Callable[..., tuple[PyTree, ExampleStats]]:
    """The sum of per-example gradients, each scaled down to norm `l2_clip_norm`.

    grads = sum_b weight_b * min(1, C / norm_b) * g_b / normalize_by, with the norm over
    all trainable parameters. An example whose gradient is not finite is reported by its
    norm and adds nothing. Source: Abadi et al. (2016), "Deep learning with differential
    privacy", algorithm 1 without its noise.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        l2_clip_norm: C, at least 0; infinity leaves every gradient as it is.
        normalize_by: what the sum is divided by, often the expected batch size.
        method: "vmap" materialises each gradient.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples are worked on at once; None is all.

    Returns:
        `f(model, *batch, key=None, weight=None) -> (grads, ExampleStats)`. `grads` has
        the model's structure and dtypes, None where not trainable. An empty batch gives
        zeros.

    Raises:
        ValueError: a negative or NaN clipping norm, `normalize_by` not above 0, and
            what `per_example_value_and_grad` raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import clipped_grad
    >>> f = clipped_grad(lambda w, x: 0.5 * (w - x) ** 2, l2_clip_norm=2.5)
    >>> grads, stats = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))
    >>> float(grads), stats.grad_norm.tolist()
    (-3.5, [1.0, 2.0, 5.0])
    """
    require_chunk_size(chunk_size)
    require_method(method)
    require_clipping(l2_clip_norm, normalize_by)
    name = "clipped_grad"

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[PyTree, ExampleStats]:
        require_batch(name, batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        work = value_and_grad_rows(loss, params, rest, has_aux)

        def add_chunk(sums: PyTree, chunk: tuple) -> tuple[PyTree, tuple]:
            (rows, weight), counts = chunk
            value, aux, grads = work(rows, counts)
            norm = row_norms(grads)
            factor = clip_factors(norm, l2_clip_norm)
            if weight is not None:
                factor = factor * weight.astype(factor.dtype)
            if counts is not None:
                factor = jnp.where(counts, factor, 0)
            sums = jax.tree.map(
                lambda s, g: s + weighted_sum(factor, g, s.dtype), sums, grads
            )
            return sums, (value, aux, norm)

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, sum_dtype(p)), params)
        sums, (value, aux, norm) = scan_chunks(
            add_chunk,
            zeros,
            (examples.rows, examples.weight),
            counts=examples.counts,
            chunk_size=chunk_size,
        )
        raise_cause(loss, model, batch, key, value)
        grads = jax.tree.map(
            lambda s, p: (s / jnp.asarray(normalize_by, s.dtype)).astype(p.dtype),
            sums,
            params,
        )
        return grads, ExampleStats(value, norm, aux)

    return f


def require_clipping(l2_clip_norm: Any, normalize_by: Any) -> None:
    """Raise a ValueError for a clipping norm or divisor that cannot be meant."""
    for name, number, bound in (
        ("l2_clip_norm", l2_clip_norm, "at least 0"),
        ("normalize_by", normalize_by, "above 0"),
    ):
        if not is_known(number):
            continue
        value = float(number)
        wrong = value < 0 or (value == 0 and name == "normalize_by")
        if math.isnan(value) or wrong:
            raise ValueError(f"{name} must be a number {bound}, got {number}")


def sum_dtype(p: Array) -> jnp.dtype:
    """The dtype in which gradients of `p` are added up: float32, complex64 or wider."""
    return promote(p.dtype, wide(p.dtype))


def weighted_sum(factor: PerExample, rows: Array, dtype: jnp.dtype) -> Array:
    """sum_b factor_b * rows_b, where a factor of 0 silences even a NaN."""
    rows = jnp.where(rows_like(factor != 0, rows), rows, jnp.zeros_like(rows))
    return jnp.tensordot(
        factor.astype(dtype), rows.astype(dtype), axes=1, precision="highest"
    )
