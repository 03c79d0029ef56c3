"""GraNd: how far each example would move the model."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..._checked import checked
from ..._types import Loss, Model, Trainable
from ...per_example._method import require_method
from .._step import Transform
from ._each import GradNorm
from ._map import scores_of
from ._stream import require_scored


def _require(model: Any, data: Any, *, batch_size: Any = 256, **options: Any) -> None:
    require_scored("grand_scores", data, batch_size)
    require_method(options.get("method", "auto"))


@checked(_require)
def grand_scores(
    model: Model,
    data: tuple,
    *,
    loss: Loss,
    method: str = "auto",
    trainable: Trainable = None,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> Float[np.ndarray, "... examples"]:
    """The norm of each example's gradient: large where it pulls hard at the model.

    The GraNd score is its mean over networks of several seeds, early in training: give
    an `nn.Ensemble` of them and take `.mean(0)`. Source: Paul et al. (2021), "Deep
    learning on a data diet", definition 2.1.

    Args:
        model: as the loss takes it.
        data: a tuple of arrays with one leading axis of examples, such as `(x, y)`.
        loss: `loss(model, *example, key=None)`, one number for one example.
        method: as in `per_example_grad_norm`.
        trainable: as in `per_example_grad_norm`.
        batch_size: as in `map_examples`.
        transform: as in `map_examples`.
        progress: as in `map_examples`.

    Returns:
        norms `[examples]` in the order of the data; of an `nn.Ensemble`
        `[members, examples]`.

    Raises:
        ValueError: as `map_examples` and `per_example_grad_norm`.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import grand_scores
    >>> data = (jnp.array([1.0, 4.0, 7.0]),)
    >>> loss = lambda w, x: 0.5 * (w - x) ** 2
    >>> grand_scores(jnp.array(2.0), data, loss=loss).tolist()
    [1.0, 2.0, 5.0]
    """
    return scores_of(
        GradNorm(loss, method, trainable),
        model,
        data,
        batch_size=batch_size,
        transform=transform,
        progress=progress,
    )
