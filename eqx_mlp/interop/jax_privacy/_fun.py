"""Sums of any function's values, clipped one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ..._types import PerExample
from ...per_example._formed import Formed
from ...per_example._route import Route
from ...per_example._sums import sums_by_norm
from ...per_example._vmap import Examples
from ._arguments import Arguments, numbers
from ._bounded import BoundedSensitivityCallable
from ._clipping import Clipping


def formed(f: Callable[..., tuple], rows: tuple, spmd_axis_name: Any) -> Formed:
    """The route of any function, `f(*row) -> (value, aux, tree)`: trees are formed."""
    rows_of = jax.vmap(f, spmd_axis_name=spmd_axis_name)
    *_, trees = jax.eval_shape(rows_of, *rows)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), trees)
    return Formed(rows_of, like)


def clipped_sums(
    route: Route, like: PyTree, examples: Examples, clipping: Clipping
) -> tuple[PyTree, PerExample, PerExample, Any]:
    """`(sums, value, norm, aux)` by the options, sums in the dtypes of `like`."""
    sums, value, norm, aux = sums_by_norm(
        route,
        examples,
        clipping.factor,
        group_of=(0,) * len(jax.tree.leaves(like)),
        chunk_size=clipping.microbatch_size,
        silence=clipping.nan_safe,
    )
    cast = lambda s, x: s.astype(x.dtype if clipping.dtype is None else clipping.dtype)
    return jax.tree.map(cast, sums, like), value, norm, aux


def clipped_fun(
    fun: Callable[..., Any],
    has_aux: bool = False,
    *,
    batch_argnums: int | Sequence[int] = 0,
    keep_batch_dim: bool = True,
    l2_clip_norm: Any = 1.0,
    rescale_to_unit_norm: bool = False,
    normalize_by: Any = 1.0,
    return_norms: bool = False,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
) -> BoundedSensitivityCallable:
    """The sum over a batch of a function's values, each scaled down to a norm.

    Args:
        fun: gives a tree of floating-point arrays for one example.
        has_aux: whether it returns `(value, aux)`; `aux` is not summed.
        batch_argnums: the arguments of `fun` with an example in each row.
        keep_batch_dim: hand an example over as a batch of one, not without the axis.
        l2_clip_norm: C, the longest norm of a value that is left as it is.
        rescale_to_unit_norm: divide clipped values by C, so that 1 is the longest.
        normalize_by: what the sum is divided by.
        return_norms: return each value's norm too, before clipping.
        microbatch_size: how many examples are worked on at once; None is all.
        nan_safe: leave out a value that is not finite; else NaN stays NaN.
        dtype: of the result; None is that of the values.
        prng_argnum: an argument that is a key, to be split into one an example.
        spmd_axis_name: as for `jax.vmap`.

    Returns:
        A function like `fun` that also takes `is_padding_example` `[batch]`, true for
        rows that count nothing. It returns `value`, `(value, aux)`, `(value, norms)` or
        `(value, (aux, norms))`, and knows its `sensitivity()`.

    Raises:
        ValueError: arguments with no role or two, lengths that differ, a clipping norm
            below 0, `normalize_by` not above 0.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp.interop.jax_privacy import clipped_fun
    >>> clipped_sum = clipped_fun(jnp.sum, l2_clip_norm=3.0)
    >>> float(clipped_sum(jnp.array([1.0, -2.0, 7.0]))), clipped_sum.sensitivity()
    (2.0, 3.0)
    """
    arguments = Arguments(
        "clipped_fun", numbers(batch_argnums), prng_argnum, keep_batch_dim
    )
    clipping = Clipping(
        l2_clip_norm,
        rescale_to_unit_norm,
        normalize_by,
        microbatch_size,
        nan_safe,
        dtype,
    )

    def f(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        examples = arguments.examples(args, kwargs, is_padding_example)

        def of_one(example: tuple, key: None) -> tuple:
            out = arguments.call(fun, args, example)
            value, aux = out if has_aux else (out, ())
            return jnp.zeros(()), aux, jax.tree.map(as_summand, value)

        def as_summand(x: Any) -> Any:
            x = jnp.asarray(x, dtype)
            if not jnp.issubdtype(x.dtype, jnp.inexact):
                raise ValueError(
                    f"clipped_fun: fun must give floating-point values, got {x.dtype}: "
                    "cast them, or pass dtype=jnp.float32"
                )
            return x

        route = formed(of_one, examples.rows, spmd_axis_name)
        sums, _, norms, aux = clipped_sums(route, route.like, examples, clipping)
        aux = arguments.told(aux, examples)
        if has_aux and return_norms:
            return sums, (aux, norms)
        if has_aux or return_norms:
            return sums, aux if has_aux else norms
        return sums

    return BoundedSensitivityCallable(f, clipping.bound, has_aux or return_norms)
