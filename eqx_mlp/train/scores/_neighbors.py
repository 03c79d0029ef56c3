"""Training examples whose gradients point where a given example's does."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..._checked import checked
from ..._types import Loss, Model, Trainable
from ...per_example._dot import require_alike
from ...per_example._method import require_method
from .._data import require_count, require_data, size_of
from .._step import Transform
from ._products import Products
from ._stream import blocks, require_scored


class GradientNeighbors(NamedTuple):
    """For each query the places of the nearest examples, and how similar they are.

    The most similar first.
    """

    indices: Int[np.ndarray, "queries k"]
    similarity: Float[np.ndarray, "queries k"]


def _require(
    model: Any,
    data: Any,
    queries: Any,
    *,
    k: Any = 10,
    similarity: Any = "cosine",
    batch_size: Any = 256,
    **options: Any,
) -> None:
    require_scored("gradient_neighbors", data, batch_size)
    require_data("gradient_neighbors", "queries", queries)
    require_alike(data, queries)
    require_count("gradient_neighbors", k=k)
    require_method(options.get("method", "auto"))
    if k > size_of(data):
        raise ValueError(
            f"gradient_neighbors: k must be at most the {size_of(data)} examples of "
            f"the data, got {k}"
        )
    if similarity not in ("cosine", "dot"):
        raise ValueError(
            "gradient_neighbors: similarity must be 'cosine' or 'dot', got "
            f"{similarity!r}"
        )


@checked(_require)
def gradient_neighbors(
    model: Model,
    data: tuple,
    queries: tuple,
    *,
    loss: Loss,
    k: int = 10,
    similarity: str = "cosine",
    method: str = "auto",
    trainable: Trainable = None,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> GradientNeighbors:
    """The `k` examples of the data whose gradients are most like each query's.

    A step on one of them moves the model as a step on the query would.

    Args:
        model: as the loss takes it.
        data: a tuple of arrays with one leading axis of examples.
        queries: another one. Memory holds the gradients' products of a few batches with
            all of its examples.
        loss: `loss(model, *example, key=None)`, one number for one example.
        k: how many.
        similarity: "cosine" of the gradients, or "dot", their product, in which long
            gradients come first.
        method: as in `per_example_grad_dot`.
        trainable: as in `per_example_grad_dot`.
        batch_size: as in `map_examples`.
        transform: as in `map_examples`.
        progress: as in `map_examples`.

    Raises:
        ValueError: `k` above the number of examples, examples that differ in shape, and
            what `map_examples` and `per_example_grad_dot` raise.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import gradient_neighbors
    >>> loss = lambda w, x: 0.5 * (w - x) ** 2
    >>> data, queries = (jnp.array([1.0, 4.0, 7.0]),), (jnp.array([5.0]),)
    >>> near = gradient_neighbors(
    ...     jnp.array(2.0), data, queries, loss=loss, k=2, similarity="dot")
    >>> near.indices.tolist(), near.similarity.tolist()
    ([[2, 1]], [[15.0, 6.0]])
    """
    score = Products(
        queries, loss, method, trainable, transform, similarity == "cosine"
    )
    indices = np.zeros((size_of(queries), 0), np.int64)
    value = np.zeros(indices.shape, np.float32)
    for start, rows in blocks(
        score,
        model,
        data,
        batch_size=batch_size,
        transform=transform,
        progress=progress,
    ):
        places = np.broadcast_to(start + np.arange(len(rows)), rows.T.shape)
        value = np.concatenate([value, rows.T], axis=1)
        indices = np.concatenate([indices, places], axis=1)
        # Of equal ones the first in the data comes first, whatever the batches.
        best = np.argsort(-value, axis=1, kind="stable")[:, :k]
        value, indices = (np.take_along_axis(x, best, axis=1) for x in (value, indices))
    return GradientNeighbors(indices, value)
