"""The gradient of the mean loss."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from .._dtypes import wide
from .._types import Key, Loss, Model, Scalar, Trainable
from ..metrics import Metric, sum_metric
from ..per_example import ExampleStats, require_batch
from ..per_example._batch import zero_padding
from ..per_example._chunks import require_chunk_size, scan_chunks
from ..per_example._loss import raise_cause, split_trainable, value_of_params
from ..per_example._mesh import over_mesh
from ..per_example._norm import sum_dtype
from ..per_example._vmap import examples_of


def mean_grad(
    loss: Loss,
    *,
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[..., tuple[PyTree, ExampleStats]]:
    """The gradient of the mean loss over the examples of a batch.

    The mean is sum_b weight_b * loss_b / sum_b weight_b; a batch of weights 0 has
    gradient 0. With `chunk_size` the gradients of chunks are added up, in float32 or
    wider, and only the activations of one chunk are held: the result is that of the
    whole batch, whatever the weights in a chunk add up to.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves get a gradient, as in `init_state`.
        chunk_size: how many examples are worked on at once; None is all.
        mesh: the devices that share a batch, such as `make_mesh()`.

    Returns:
        `f(model, *batch, key=None, weight=None) -> (grads, ExampleStats)`, as
        `clipped_grad` gives it; `grad_norm` is None, since no example's own gradient is
        formed.

    Raises:
        ValueError: as `per_example_value_and_grad`.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import mean_grad
    >>> f = mean_grad(lambda w, x: 0.5 * (w - x) ** 2)
    >>> grads, stats = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))
    >>> float(grads), stats.value.tolist()
    (-2.0, [0.5, 2.0, 12.5])
    """
    require_chunk_size(chunk_size)

    def f(
        model: Model, *batch: Any, key: Key | None = None, weight: Any = None
    ) -> tuple[PyTree, ExampleStats]:
        require_batch("mean_grad", batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        of_rows = jax.vmap(value_of_params(loss, rest, has_aux), in_axes=(None, 0, 0))
        total: Any = examples.size
        if examples.weight is not None:
            total = jnp.sum(examples.weight, dtype=wide(examples.weight.dtype))

        def share(params: PyTree, chunk: tuple) -> tuple[Scalar, tuple]:
            # What these rows add to the mean of the whole batch.
            (rows, weight), counts = chunk
            value, aux = of_rows(params, *rows)
            value = zero_padding(value, counts)
            own = sum_metric(lambda value: value, weight)(value).numerator
            return mean_of(Metric(own, jnp.asarray(total, own.dtype))), (value, aux)

        def add_chunk(sums: PyTree, chunk: tuple) -> tuple[PyTree, tuple]:
            grads, out = jax.grad(share, has_aux=True)(params, chunk)
            return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, grads), out

        sums, (value, aux) = scan_chunks(
            add_chunk,
            jax.tree.map(lambda p: jnp.zeros(p.shape, sum_dtype(p.dtype)), params),
            (examples.rows, examples.weight),
            counts=examples.counts,
            chunk_size=chunk_size,
            devices=1 if mesh is None else mesh.size,
        )
        raise_cause(loss, model, batch, key, value)
        grads = jax.tree.map(lambda s, p: s.astype(p.dtype), sums, params)
        return grads, ExampleStats(value, None, aux)

    return over_mesh(f, "mean_grad", mesh, lambda cut, out: (out[0], cut(out[1])))


def mean_of(metric: Metric) -> Array:
    """A mean's value, and 0 where no example counts."""
    total = metric.denominator
    assert total is not None
    return metric.numerator / jnp.where(total == 0, 1, total)
