"""Sums of gradients, clipped one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ...per_example._loss import split_trainable, value_of_params
from ...per_example._method import total_norm
from ...per_example._norm import row_norms
from ...per_example.tapped import Engine
from ._arguments import Arguments, numbers
from ._bounded import AuxiliaryOutput, BoundedSensitivityCallable
from ._clipping import Clipping
from ._fun import clipped_sums, formed


def parameters(tree: PyTree) -> PyTree:
    """Python and NumPy numbers as arrays, but for the settings in an Equinox module."""
    return jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, NUMBERS) else x,
        tree,
        is_leaf=lambda x: isinstance(x, eqx.Module),
    )


NUMBERS = (float, complex, np.ndarray, np.generic)


def unchanged(grads: PyTree) -> PyTree:
    """The gradient as it is."""
    return grads


def clipped_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    l2_clip_norm: Any,
    rescale_to_unit_norm: bool = False,
    normalize_by: Any = 1.0,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    return_values: bool = False,
    return_grad_norms: bool = False,
    pre_clipping_transform: Callable[[PyTree], PyTree] = unchanged,
    microbatch_size: int | None = None,
    nan_safe: bool = True,
    dtype: Any = None,
    prng_argnum: int | None = None,
    spmd_axis_name: Any = None,
) -> BoundedSensitivityCallable:
    """The sum over a batch of a loss's gradients, each scaled down to a norm.

    No example's gradient is formed, unless `pre_clipping_transform` or `spmd_axis_name`
    asks for it.

    Args:
        fun: the loss, one number for one example.
        argnums: the arguments that are differentiated: trees of arrays, models too.
        has_aux: whether `fun` returns `(value, aux)`.
        l2_clip_norm: C, the longest norm of a gradient that is left as it is.
        rescale_to_unit_norm: divide clipped gradients by C, so that 1 is the longest.
        normalize_by: what the sum is divided by.
        batch_argnums: the arguments of `fun` with an example in each row.
        keep_batch_dim: hand an example over as a batch of one, not without the axis.
        return_values: return each loss too.
        return_grad_norms: return each gradient's norm too, before transform and clip.
        pre_clipping_transform: from the gradient of one example to what is clipped.
        microbatch_size: how many examples are worked on at once; None is all. The last
            microbatch may be smaller.
        nan_safe: leave out a gradient that is not finite; else NaN stays NaN.
        dtype: of the result; None is that of the parameters.
        prng_argnum: an argument that is a key, to be split into one an example.
        spmd_axis_name: as for `jax.vmap`.

    Returns:
        A function like `fun` that also takes `is_padding_example` `[batch]`, true for
        rows that count nothing. It returns the sum, in the structure of `argnums`, with
        None for what cannot be differentiated; or `(sum, AuxiliaryOutput)` where more
        was asked for. It knows its `sensitivity()`.

    Raises:
        ValueError: arguments with no role or two, lengths that differ, a clipping norm
            below 0, `normalize_by` not above 0, a loss that is not one number.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp.interop.jax_privacy import clipped_grad
    >>> loss = lambda w, x: 0.5 * jnp.mean((w - x) ** 2)
    >>> f = clipped_grad(loss, l2_clip_norm=2.5)
    >>> float(f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))), f.sensitivity()
    (-3.5, 2.5)
    """
    arguments = Arguments(
        "clipped_grad",
        numbers(batch_argnums),
        prng_argnum,
        keep_batch_dim,
        numbers(argnums),
    )
    clipping = Clipping(
        l2_clip_norm,
        rescale_to_unit_norm,
        normalize_by,
        microbatch_size,
        nan_safe,
        dtype,
    )
    form = pre_clipping_transform is not unchanged or spmd_axis_name is not None
    told = has_aux or return_values or return_grad_norms

    def loss_with(args: tuple) -> Callable[..., Any]:
        def loss(model: tuple, *example: Any) -> Any:
            given = list(args)
            for i, argument in zip(arguments.grad, model, strict=True):
                given[i] = argument
            return arguments.call(fun, tuple(given), example)

        loss.__name__ = getattr(fun, "__name__", repr(fun))
        return loss

    def as_given(grads: tuple) -> PyTree:
        return grads[0] if isinstance(argnums, int) else grads

    def f(*args: Any, is_padding_example: Any = None, **kwargs: Any) -> Any:
        examples = arguments.examples(args, kwargs, is_padding_example)
        model = parameters(tuple(args[i] for i in arguments.grad))
        params, rest = split_trainable(model, None)
        value_of = value_of_params(loss_with(args), rest, has_aux)

        def of_one(example: tuple, key: None) -> tuple:
            of_params = jax.value_and_grad(value_of, has_aux=True)
            (value, aux), grads = of_params(params, example, key)
            norms = row_norms([x[None] for x in jax.tree.leaves(grads)])
            norm = total_norm(norms, value[None])[0]
            return value, (aux, norm), pre_clipping_transform(as_given(grads))

        if form:
            route = formed(of_one, examples.rows, spmd_axis_name)
            sums, value, _, (aux, norm) = clipped_sums(
                route, route.like, examples, clipping
            )
        else:
            route = Engine(value_of, params, examples.rows)
            sums, value, norm, aux = clipped_sums(route, params, examples, clipping)
            sums = as_given(sums)
        if not told:
            return sums
        return sums, AuxiliaryOutput(
            values=value if return_values else None,
            grad_norms=norm if return_grad_norms else None,
            aux=arguments.told(aux, examples) if has_aux else None,
        )

    return BoundedSensitivityCallable(f, clipping.bound, told)
