"""Sums of clipped per-example gradients."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from .._types import Key, Loss, Model, PerExample, Trainable
from ._batch import require_batch
from ._chunks import require_chunk_size
from ._group import groups, require_clipping
from ._loss import raise_cause, split_trainable, value_of_params
from ._mesh import over_mesh
from ._method import ROUTES, require_method
from ._norm import clip_factors
from ._sums import sums_by_norm
from ._vmap import examples_of


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
    method: str = "auto",
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[..., tuple[PyTree, ExampleStats]]:
    """The sum of per-example gradients, each scaled down to norm `l2_clip_norm`.

    grads = sum_b weight_b * min(1, C / norm_b) * g_b / normalize_by, with the norm over
    all trainable parameters. An example whose gradient is not finite is reported by its
    norm and adds nothing. Source: Abadi et al. (2016), "Deep learning with differential
    privacy", algorithm 1 without its noise.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        l2_clip_norm: C, at least 0; infinity leaves every gradient as it is. A prefix
            of the model's tree clips each group of parameters by its own norm.
        normalize_by: what the sum is divided by, often the expected batch size.
        method: "auto" never forms a gradient of one example where it can be avoided
            and costs about one ordinary batch gradient; "vmap" forms each of them.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples are worked on at once; None is all.
        mesh: the devices that share a batch, such as `make_mesh()`.

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
    sums_of = clipped_sums(
        loss,
        l2_clip_norm=l2_clip_norm,
        normalize_by=normalize_by,
        method=method,
        has_aux=has_aux,
        trainable=trainable,
        chunk_size=chunk_size,
        devices=1 if mesh is None else mesh.size,
    )

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[PyTree, ExampleStats]:
        sums, params, stats = sums_of(model, *batch, key=key, weight=weight)
        return jax.tree.map(lambda s, p: s.astype(p.dtype), sums, params), stats

    return over_mesh(f, "clipped_grad", mesh, lambda cut, out: (out[0], cut(out[1])))


def clipped_sums(
    loss: Loss,
    *,
    l2_clip_norm: Any,
    normalize_by: Any,
    method: str,
    has_aux: bool,
    trainable: Trainable,
    chunk_size: int | None,
    devices: int = 1,
    private: bool = False,
) -> Callable[..., tuple[PyTree, PyTree, ExampleStats]]:
    """`f(...) -> (sums, params, stats)`, with sums in float32 or wider.

    `private` says that one example must not change them by more than its norm allows,
    and that what counts comes first: chunks of padding alone then take no time.
    """
    require_chunk_size(chunk_size)
    require_method(method)
    require_clipping(l2_clip_norm, normalize_by)
    name = "clipped_grad"

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[PyTree, PyTree, ExampleStats]:
        require_batch(name, batch, weight)
        params, rest = split_trainable(model, trainable)
        clip_norms, group_of = groups(l2_clip_norm, params)
        examples = examples_of(batch, key, weight)
        given = value_of_params(loss, rest, has_aux), params, examples.rows
        route = ROUTES[method](*given)
        if private and route.rounds_sums:
            route = ROUTES["vmap"](*given)

        def factor_of(norm: PerExample, group: int) -> PerExample:
            # Divided here, not in the result: the batch is smaller than the parameters.
            return clip_factors(norm, clip_norms[group]) / jnp.asarray(
                normalize_by, norm.dtype
            )

        sums, value, norm, aux = sums_by_norm(
            route,
            examples,
            factor_of,
            group_of=group_of,
            chunk_size=chunk_size,
            skip=private,
            devices=devices,
        )
        raise_cause(loss, model, batch, key, value)
        return sums, params, ExampleStats(value, norm, aux)

    return f
