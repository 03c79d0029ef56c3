"""Which labels are likely to be wrong."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ... import losses, metrics
from ..._checked import checked
from ..._types import Loss, Model
from .._step import Transform
from ._each import Each, GradNorm
from ._influence import require_models
from ._map import scores_of
from ._stream import Score, require_scored

# From the loss to a score, and from that to what grows with suspicion.
SUSPICIONS: dict[str, tuple[Callable[[Loss], Score], Callable[[Any], Any]]] = {
    "margin": (lambda loss: Each(metrics.margin), np.negative),
    "loss": (Each, np.positive),
    "el2n": (lambda loss: Each(metrics.el2n), np.positive),
    "grand": (lambda loss: GradNorm(loss, "auto", None), np.positive),
    "self_influence": (lambda loss: GradNorm(loss, "auto", None), np.square),
}


class MislabelledRanking(NamedTuple):
    """Examples in the order of suspicion, the most suspicious first, and their scores.

    `order` holds places in the data; `score` is in the order of the data.
    """

    order: Int[np.ndarray, " examples"]
    score: Float[np.ndarray, " examples"]


def _require(
    models: Any,
    data: Any,
    *,
    by: Any = "margin",
    batch_size: Any = 256,
    **_: Any,
) -> None:
    require_models("rank_mislabelled", models)
    require_scored("rank_mislabelled", data, batch_size)
    if by not in SUSPICIONS:
        raise ValueError(
            f"rank_mislabelled: by must be one of {tuple(SUSPICIONS)}, got {by!r}"
        )


@checked(_require)
def rank_mislabelled(
    models: Sequence[Model],
    data: tuple,
    *,
    by: str = "margin",
    loss: Loss = losses.cross_entropy,
    batch_size: int = 256,
    transform: Transform | None = None,
    progress: bool = True,
) -> MislabelledRanking:
    """The examples in the order in which their labels look wrong.

    By a score's mean over models: those after each of the first epochs, before the
    network learns wrong labels by heart, of one seed or several.

    Args:
        models: a list of them, even of one.
        data: a tuple `(x, label)` of arrays with one leading axis of examples.
        by: "margin", the label's logit below the largest other (Pleiss et al., 2020);
            "loss"; "el2n" and "grand" (Paul et al., 2021); "self_influence", the
            squared norm of the gradient (TracIn's, Pruthi et al., 2020).
        loss: of one example, for "loss", "grand" and "self_influence".
        batch_size: as in `map_examples`.
        transform: as in `map_examples`.
        progress: as in `map_examples`.

    Raises:
        ValueError: no model, a score that does not exist, and what `map_examples`
            raises.

    >>> import jax.numpy as jnp
    >>> from eqx_mlp import rank_mislabelled
    >>> data = (jnp.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), jnp.array([0, 0, 1]))
    >>> ranking = rank_mislabelled([lambda x: x], data)
    >>> ranking.order.tolist(), ranking.score.tolist()
    ([2, 1, 0], [-2.0, 1.0, 3.0])
    """
    score_of, suspicion = SUSPICIONS[by]
    of_model = functools.partial(
        scores_of,
        score_of(loss),
        data=data,
        batch_size=batch_size,
        transform=transform,
        progress=progress,
    )
    score = np.mean([suspicion(of_model(model)) for model in models], axis=0)
    return MislabelledRanking(np.argsort(-score, kind="stable"), score)
