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
    chunks after the first are not computed where nothing in them counts; their results
    are zeros. Where rows are spread over `devices`, which divide their number, each
    chunk has as many rows of each device.
    """
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
    every = lambda: jax.lax.scan(f, carry, (rows, counts))
    if skip and counts is not None:
        carry, out = _first_or(every, f, carry, (rows, counts))
    else:
        carry, out = every()
    return carry, jax.tree.map(joined, out)


def _first_or(
    every: Callable[[], tuple[Carry, Any]],
    f: Callable[[Carry, Any], tuple[Carry, Any]],
    carry: Carry,
    chunks: tuple,
) -> tuple[Carry, Any]:
    """The first chunk alone where nothing counts in the others: no adding up."""

    def first() -> tuple[Carry, Any]:
        new, out = f(carry, jax.tree.map(lambda x: x[0], chunks))
        more = chunks[1].shape[0] - 1
        rest = lambda x: jnp.zeros((more, *x.shape), x.dtype)
        return new, jax.tree.map(lambda x: jnp.concatenate([x[None], rest(x)]), out)

    return jax.lax.cond(jnp.any(chunks[1][1:]), every, first)
