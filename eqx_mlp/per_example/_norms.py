"""The norm of each example's gradient."""

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from .._types import Key, Loss, Model, Trainable
from ._batch import require_batch, zero_padding
from ._chunks import require_chunk_size, scan_chunks
from ._loss import raise_cause, split_trainable, value_of_params
from ._mesh import over_mesh
from ._method import ROUTES, require_method, total_norm
from ._vmap import examples_of


def per_example_grad_norm(
    loss: Loss,
    *,
    method: str = "auto",
    has_aux: bool = False,
    trainable: Trainable = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[..., Any]:
    """The Euclidean norm of each example's gradient over all trainable parameters.

    Args:
        loss: `loss(model, *example, key=None)`, one number for one example.
        method: "auto" never forms a gradient of one example where it can be avoided
            and costs about one ordinary batch gradient; "vmap" forms each of them.
        has_aux: whether the loss returns `(value, aux)`.
        trainable: which leaves count, as in `per_example_value_and_grad`.
        chunk_size: how many examples are worked on at once; None is all.
        mesh: the devices that share a batch, such as `make_mesh()`.

    Returns:
        `f(model, *batch, key=None, weight=None) -> norms [batch]` in float32 or wider,
        or `(norms, aux)` with `has_aux`. Rows of weight 0 have norm 0; other weights do
        not change a norm.

    Raises:
        ValueError: as `per_example_value_and_grad`.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import per_example_grad_norm
    >>> f = per_example_grad_norm(lambda w, x: 0.5 * (w - x) ** 2)
    >>> f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0])).tolist()
    [1.0, 2.0, 5.0]
    """
    require_chunk_size(chunk_size)
    require_method(method)
    name = "per_example_grad_norm"

    def f(model: Model, *batch: Any, key: Key | None = None, weight: Any = None) -> Any:
        require_batch(name, batch, weight)
        params, rest = split_trainable(model, trainable)
        examples = examples_of(batch, key, weight)
        route = ROUTES[method](
            value_of_params(loss, rest, has_aux), params, examples.rows
        )

        def chunk_norms(carry: None, chunk: tuple) -> tuple[None, tuple]:
            rows, counts = chunk
            value, aux, grads = route.backward(rows)
            norm = total_norm(grads.norms(then_sum=False), value)
            return carry, (zero_padding(value, counts), aux, zero_padding(norm, counts))

        _, (value, aux, norm) = scan_chunks(
            chunk_norms,
            None,
            examples.rows,
            counts=examples.counts,
            chunk_size=chunk_size,
            devices=1 if mesh is None else mesh.size,
        )
        raise_cause(loss, model, batch, key, value)
        return (norm, aux) if has_aux else norm

    return over_mesh(f, name, mesh, lambda cut, out: cut(out))
