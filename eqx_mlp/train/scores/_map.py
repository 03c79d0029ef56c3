"""Any function of a batch, over a whole data set."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..._checked import checked
from ..._types import Model
from ...nn._ensemble import members_of
from .._step import Transform
from ._stream import Score, blocks, require_scored


class _Mapped(Score):
    f: Callable[..., PyTree]

    def of_model(self, model: Model) -> Callable[..., PyTree]:
        return lambda *batch: self.f(model, *batch)

    def cause(self, model: Model, *example: Any) -> None:
        # Not in compiled code, where its checks of values can raise.
        self.f(model, *jax.tree.map(lambda x: x[None], example))


def _require(f: Any, model: Any, data: Any, *, batch_size: Any = 256, **_: Any) -> None:
    if not callable(f):
        raise ValueError(
            "map_examples: f must be a function of a model and a batch, such as "
            f"per_example_grad_norm(loss), got {f!r}"
        )
    require_scored("map_examples", data, batch_size)


@checked(_require)
def map_examples(
    f: Callable[..., PyTree],
    model: Model,
    data: tuple,
    *,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> PyTree:
    """`f(model, *batch)` over all examples, batch by batch, with dropout switched off.

    Args:
        f: from a model and a batch to arrays with the batch's leading axis, such as
            `per_example_grad_norm(loss)`; each row must depend on its own example
            alone. Calls with the same `f` share a compiled program.
        model: as `f` takes it.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`.
            Arrays on the host, a `numpy.memmap` too, go to the device piece by piece.
        batch_size: examples at once; it changes speed and memory, not the result.
        transform: from the stored first argument of one example to what `f` takes.
        progress: whether to show a bar when standard error is a terminal.

    Returns:
        NumPy arrays `[examples, ...]` in the order of the data. Of an `nn.Ensemble`
        `[members, examples, ...]`.

    Raises:
        ValueError: no example, arguments of different lengths, a result without the
            leading axis, and what `f` raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import map_examples, per_example_grad_norm
    >>> norm_of = per_example_grad_norm(lambda w, x: 0.5 * (w - x) ** 2)
    >>> data = (jnp.array([1.0, 4.0, 7.0]),)
    >>> map_examples(norm_of, jnp.array(2.0), data, batch_size=2).tolist()
    [1.0, 2.0, 5.0]
    """
    return scores_of(
        _Mapped(f),
        model,
        data,
        batch_size=batch_size,
        transform=transform,
        progress=progress,
    )


def scores_of(score: Score, model: Model, data: tuple, **options: Any) -> PyTree:
    """The results of all examples, and of each member where there are several."""

    def of_one(model: Model) -> PyTree:
        rows = [rows for _, rows in blocks(score, model, data, **options)]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *rows)

    results = [of_one(member) for member in members_of(model)]
    if len(results) == 1 and members_of(model)[0] is model:
        return results[0]
    return jax.tree.map(lambda *members: np.stack(members), *results)
