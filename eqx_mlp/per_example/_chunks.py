"""Run a function of a batch in chunks, to bound memory."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")


def require_chunk_size(chunk_size: int | None, name: str = "chunk_size") -> None:
    """Raise a ValueError unless `chunk_size` is None or a positive integer."""
    if chunk_size is not None and (
        not isinstance(chunk_size, int)
        or isinstance(chunk_size, bool)
        or chunk_size < 1
    ):
        raise ValueError(
            f"{name} is the number of examples worked on at once, an integer >= 1 or "
            f"None for all, got {chunk_size!r}"
        )


def scan_chunks(
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    rows: Any,
    *,
    counts: Any,
    chunk_size: int | None,
    skip: bool = False,
    devices: int = 1,
) -> tuple[Carry, Any]:
    """`f(carry, (rows, counts)) -> (carry, rows of results)` over chunks in order.

    `counts` says which rows count, or is None where all do. The last chunk is filled
    up with copies of the first rows, which do not count, and `f` must give them no
    effect on the carry. Results come back in order and without the filling. With `skip`
    a chunk in which nothing counts is not computed; its results are zeros. Where rows
    are spread over `devices`, which divide their number, each chunk has as many rows of
    each device.
    """
    if skip and counts is not None:
        f = _skipping(f)
    n = jax.tree.leaves(rows)[0].shape[0]
    if chunk_size is None or chunk_size >= n:
        return f(carry, (rows, counts))
    own, size = n // devices, -(-chunk_size // devices)
    chunks = -(-own // size)
    filling = chunks * size - own
    if filling:
        counts = jnp.ones(n, bool) if counts is None else counts

    def cut(x: Any, more: Any) -> Any:
        x = x.reshape(devices, own, *x.shape[1:])
        if filling:
            x = jnp.concatenate([x, more(x[:, :filling])], axis=1)
        x = x.reshape(devices, chunks, size, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(chunks, devices * size, *x.shape[3:])

    def joined(x: Any) -> Any:
        x = x.reshape(chunks, devices, size, *x.shape[2:]).swapaxes(0, 1)
        x = x.reshape(devices, chunks * size, *x.shape[3:])[:, :own]
        return x.reshape(n, *x.shape[2:])

    rows = jax.tree.map(lambda x: cut(x, lambda copies: copies), rows)
    counts = jax.tree.map(lambda x: cut(x, jnp.zeros_like), counts)
    carry, out = jax.lax.scan(f, carry, (rows, counts))
    return carry, jax.tree.map(joined, out)


def _skipping(f: Callable[[Carry, Any], tuple[Carry, Any]]) -> Callable[..., Any]:
    compiled = jax.jit(f)  # traced once for both the shapes and the branch

    def g(carry: Carry, chunk: tuple) -> tuple[Carry, Any]:
        out = jax.eval_shape(compiled, carry, chunk)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), out)
        skipped = lambda carry, _: (carry, zeros)
        return jax.lax.cond(jnp.any(chunk[1]), compiled, skipped, carry, chunk)

    return g
