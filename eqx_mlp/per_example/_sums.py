"""Sums of per-example gradients, each times a factor that its norm decides."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from .._types import PerExample
from ._batch import zero_padding
from ._chunks import scan_chunks
from ._method import total_norm
from ._norm import all_finite
from ._route import Route
from ._vmap import Examples


def sums_by_norm(
    route: Route,
    examples: Examples,
    factor_of: Callable[[PerExample, int], PerExample],
    *,
    group_of: tuple[int, ...],
    chunk_size: int | None,
    devices: int = 1,
    silence: bool = True,
    skip: bool = False,
) -> tuple[PyTree, PerExample, PerExample, Any]:
    """`(sums, value, norm, aux)`: sum_b weight_b * factor_b * g_b in float32 or wider.

    `factor_of(norm, group)` gives the factors of a group of parameters from its norms;
    `group_of` says which group each parameter is in. With `silence` an example whose
    gradient is not finite adds nothing; without, 0 * NaN stays NaN. With `skip`
    chunks of padding alone take no time, if they come last.
    """

    def add_chunk(sums: PyTree, chunk: tuple) -> tuple[PyTree, tuple]:
        (rows, weight), counts = chunk
        value, aux, grads = route.backward(rows)
        norms = grads.norms(then_sum=True)
        norm = total_norm(norms, value)
        finite = all_finite(norm) if silence else True
        norm = zero_padding(norm, counts)
        counted = jnp.isfinite(norm)
        if counts is not None:
            counted &= counts
        factors = []
        for group in range(max(group_of, default=-1) + 1):
            own = [n for n, g in zip(norms, group_of, strict=True) if g == group]
            factor = factor_of(total_norm(own, value), group)
            if weight is not None:
                factor = factor * weight.astype(factor.dtype)
            factors.append(jnp.where(counted, factor, 0))
        new = grads.weighted_sums(factors, group_of, finite)
        return jax.tree.map(jnp.add, sums, new), (
            zero_padding(value, counts),
            aux,
            norm,
        )

    sums, (value, aux, norm) = scan_chunks(
        add_chunk,
        route.zero_sums(group_of),
        (examples.rows, examples.weight),
        counts=examples.counts,
        chunk_size=chunk_size,
        skip=skip,
        devices=devices,
    )
    return route.finish(sums, group_of), value, norm, aux
