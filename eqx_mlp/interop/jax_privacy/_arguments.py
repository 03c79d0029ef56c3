"""Which arguments of a function hold examples, and how it is called with one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Shaped

from ...per_example._batch import as_batch, require_batch, zero_padding
from ...per_example._vmap import Examples


def numbers(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """One number or several, as a tuple."""
    return (argnums,) if isinstance(argnums, int) else tuple(argnums)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The roles of the arguments of a function, by their places.

    `batch` have an example in each row, `prng` is a key, or a tree of keys, that is
    split into one for each example, `grad` is differentiated. The others are the same
    for all examples. Keyword arguments have an example in each row.
    """

    name: str
    batch: tuple[int, ...]
    prng: int | None
    keep_batch_dim: bool
    grad: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise a ValueError unless each argument has one role."""
        if not self.batch:
            raise ValueError(
                f"{self.name}: batch_argnums must not be empty: name the arguments "
                "that hold the examples"
            )
        roles = {"argnums": self.grad, "batch_argnums": self.batch}
        if self.prng is not None:
            roles["prng_argnum"] = (self.prng,)
        listing = ", ".join(f"{name}={places}" for name, places in roles.items())
        places = [place for each in roles.values() for place in each]
        if min(places) < 0:
            raise ValueError(f"{self.name}: arguments count from 0, got {listing}")
        if len(set(places)) < len(places):
            raise ValueError(
                f"{self.name}: there is an overlap: an argument can only have one of "
                f"the roles {listing}"
            )

    def examples(self, args: tuple, kwargs: dict, is_padding: Any) -> Examples:
        """The rows of a call, checked, with harmless padding and a key an example."""
        last = max(*self.batch, *self.grad, self.prng or 0)
        if last >= len(args):
            raise ValueError(
                f"{self.name}: argument {last} is missing: got {len(args)} positional "
                "arguments"
            )
        # None in the other places, so that an error counts as the caller does.
        rows = tuple(a if i in self.batch else None for i, a in enumerate(args))
        require_batch(self.name, (*rows, kwargs))
        n = jnp.shape(jax.tree.leaves((rows, kwargs))[0])[0]
        weight = None
        if is_padding is not None:
            is_padding = jnp.asarray(is_padding)
            if is_padding.shape != (n,) or is_padding.dtype != bool:
                raise ValueError(
                    f"{self.name}: is_padding_example must hold one boolean an example,"
                    f" shape ({n},), got shape {is_padding.shape} and dtype "
                    f"{is_padding.dtype}"
                )
            weight = ~is_padding
        batch = as_batch((rows, kwargs), weight)
        keys = None
        if self.prng is not None:
            keys = jax.tree.map(lambda key: jax.random.split(key, n), args[self.prng])
        counts = None if batch.weight is None else batch.weight != 0
        return Examples(((*batch.example, keys), None), counts, batch.weight)

    def call(self, fun: Callable[..., Any], args: tuple, example: tuple) -> Any:
        """`fun` with one example, and its key, in their places among `args`."""
        rows, kwargs, key = example
        if self.keep_batch_dim:
            rows = jax.tree.map(lambda x: x[None], rows)
        given = list(args)
        for i in self.batch:
            given[i] = rows[i]
        if self.prng is not None:
            given[self.prng] = key
        return fun(*given, **kwargs)

    def told(self, aux: PyTree, examples: Examples) -> PyTree:
        """What `fun` told of each example: zeros for padding, no axis of size 1."""

        def of_leaf(x: Shaped[Array, "batch ..."]) -> Shaped[Array, "batch ..."]:
            x = zero_padding(x, examples.counts)
            if self.keep_batch_dim and x.ndim > 1 and x.shape[1] == 1:
                return jnp.squeeze(x, axis=1)
            return x

        return jax.tree.map(of_leaf, aux)
