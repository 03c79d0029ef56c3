"""EL2N: how wrong the probabilities of each example are."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ... import metrics
from ..._checked import checked
from ..._types import Model
from .._step import Transform
from ._each import Each
from ._map import scores_of
from ._stream import require_scored


def _require(model: Any, data: Any, *, batch_size: Any = 256, **_: Any) -> None:
    require_scored("el2n_scores", data, batch_size)


@checked(_require)
def el2n_scores(
    model: Model,
    data: tuple,
    *,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> Float[np.ndarray, "... examples"]:
    """The error norm |softmax - onehot| of each example, from 0 to sqrt 2.

    The EL2N score is its mean over networks of several seeds, early in training: give
    an `nn.Ensemble` of them and take `.mean(0)`. Source: Paul et al. (2021), "Deep
    learning on a data diet", definition 2.2.

    Args:
        model: gives logits `[classes]`.
        data: a tuple `(x, label)` of arrays with one leading axis of examples.
        batch_size: as in `map_examples`.
        transform: as in `map_examples`.
        progress: as in `map_examples`.

    Returns:
        scores `[examples]` in the order of the data; of an `nn.Ensemble`
        `[members, examples]`.

    Raises:
        ValueError: as `map_examples` and `metrics.el2n`.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import el2n_scores
    >>> data = (jnp.array([[0.0, 0.0], [0.0, 100.0]]), jnp.array([0, 1]))
    >>> el2n_scores(lambda x: x, data).round(4)
    array([0.7071, 0.    ], dtype=float32)
    """
    return scores_of(
        Each(metrics.el2n),
        model,
        data,
        batch_size=batch_size,
        transform=transform,
        progress=progress,
    )
