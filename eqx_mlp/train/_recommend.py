"""Which optimiser to start with: the Optax chain of a row of the table."""

import math
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import optax

from .._checked import checked
from .._select import NORMS, places_of
from .._types import Model
from ._choices import (
    EXPONENTS,
    LARGE_BATCH,
    METHODS,
    OPTIMIZER_CHOICES,
    REFERENCE_BATCH,
    SCHEDULES,
    OptimizerChoice,
)
from ._data import require_count

_BY_KIND = {choice.kind: choice for choice in OPTIMIZER_CHOICES}
# The first of these that a model holds says what kind it is.
_LAYERS = {
    "recurrent": (eqx.nn.LSTMCell, eqx.nn.GRUCell),
    "convolution": (eqx.nn.Conv, eqx.nn.ConvTranspose),
    "residual": NORMS,
}


class Reason(NamedTuple):
    """One decision: about what, what was decided, and why."""

    about: str
    decision: str
    why: str


class Recommendation(NamedTuple):
    """An optimiser to start with, and why; print it.

    `schedule` is its learning rate as a function of the step, for a plot and for the
    callback `LearningRate`.
    """

    optimizer: optax.GradientTransformation
    schedule: Callable[[Any], Any]
    why: tuple[Reason, ...]

    def __str__(self) -> str:
        indent = " " * 16
        return "\n".join(
            f"{about:16}{decision}\n"
            + textwrap.fill(why, 80, initial_indent=indent, subsequent_indent=indent)
            for about, decision, why in self.why
        )


def _require(
    model: Any,
    *,
    steps: Any = None,
    batch_size: Any = None,
    kind: Any = None,
    learning_rate: Any = None,
) -> None:
    owner = "recommend_optimizer"
    require_count(owner, steps=steps, batch_size=batch_size)
    if kind is not None and kind not in list(_BY_KIND):
        raise ValueError(
            f"{owner}: kind must be one of {', '.join(map(repr, _BY_KIND))}, or None "
            f"to go by the model's layers, got {kind!r}"
        )
    number = isinstance(learning_rate, int | float) and 0 < learning_rate < math.inf
    if learning_rate is not None and not number:
        raise ValueError(
            f"{owner}: learning_rate must be a number above 0, or None for that of the "
            f"table, got {learning_rate!r}"
        )


@checked(_require)
def recommend_optimizer(
    model: Model,
    *,
    steps: int,
    batch_size: int,
    kind: str | None = None,
    learning_rate: float | None = None,
) -> Recommendation:
    """The Optax chain to start with, and why: a row of `train.OPTIMIZER_CHOICES`.

    It is where to start, and not the best there is. `learning_rate_range` finds a rate
    for a model and its data.

    Args:
        model: its layers tell the kind: "recurrent" with an `LSTMCell` or `GRUCell`,
            "convolution" with a `Conv`, "residual" with a norm layer, else "mlp". From
            a batch of 4096 on, "mlp" and "residual" are "large-batch".
        steps: updates of the whole run, `epochs * -(-examples // batch_size)`.
        batch_size: examples an update.
        kind: a row of the table, where the model does not tell: "fine-tune" for one
            that is trained already, "private" for clipped gradients with noise.
        learning_rate: the highest of the run, in place of the table's.

    Returns:
        `Recommendation(optimizer, schedule, why)`. Weight decay goes by `decay_mask`.

    Raises:
        ValueError: counts below 1, another kind, a rate that is none.

    >>> import jax
    >>> from eqx_mlp import MLP, recommend_optimizer
    >>> model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    >>> found = recommend_optimizer(model, steps=600, batch_size=1024)
    >>> found.why[1].about, found.why[1].decision
    ('optimizer', 'adamw')
    >>> round(float(found.schedule(0)), 6), float(found.schedule(600))
    (0.004, 0.0)
    """
    if kind is None:
        kind, because = _kind_of(model, batch_size)
    else:
        because = "as given"
    choice = _BY_KIND[kind]
    growth = max(1.0, batch_size / REFERENCE_BATCH) ** choice.batch_exponent
    peak = float(learning_rate or choice.learning_rate * growth)
    # One step at least is left for what comes after.
    warmup = min(math.ceil(choice.warmup * steps), steps - 1)
    schedule = SCHEDULES[choice.schedule][0](peak, steps - warmup)
    if warmup:
        rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
        schedule = optax.join_schedules([rise, schedule], [warmup])
    optimizer = METHODS[choice.optimizer].build(schedule, choice.weight_decay)
    if choice.clip_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(choice.clip_norm), optimizer)
    why = (
        Reason("kind", kind, because),
        Reason("optimizer", choice.optimizer, METHODS[choice.optimizer].why),
        Reason(
            "learning rate",
            f"{peak:.3g}",
            EXPONENTS[choice.batch_exponent] if learning_rate is None else "as given",
        ),
        *_reasons(choice, warmup, steps),
    )
    return Recommendation(optimizer, schedule, why)


def _kind_of(model: Model, batch_size: int) -> tuple[str, str]:
    types = {type(owner) for place in places_of(model) for owner in place.owners}
    kind, because = "mlp", "the model has no recurrent cell, convolution or norm layer"
    for one, layers in reversed(_LAYERS.items()):
        found = sorted(t.__name__ for t in types if issubclass(t, layers))
        if found:
            kind, because = one, f"the model has {', '.join(found)}"
    if kind in ("mlp", "residual") and batch_size >= LARGE_BATCH:
        return "large-batch", f"the batch has {LARGE_BATCH} examples or more"
    return kind, because


def _reasons(choice: OptimizerChoice, warmup: int, steps: int) -> list[Reason]:
    method = METHODS[choice.optimizer]
    _, form, why_form = SCHEDULES[choice.schedule]
    return [
        Reason("warm-up", f"{warmup} of {steps} steps", method.why_warmup)
        if choice.warmup
        else Reason("warm-up", "none", method.why_no_warmup),
        Reason("schedule", form, why_form),
        Reason("clipping", "none", method.why_no_clip)
        if choice.clip_norm is None
        else Reason(
            "clipping",
            f"the batch's gradient, to norm {choice.clip_norm:g}",
            "one bad batch must not undo many good ones. Pascanu et al. (2013)",
        ),
        Reason(
            "weight decay",
            f"{choice.weight_decay:g}",
            "on weights; not on biases and the scales of norms, by decay_mask",
        )
        if choice.weight_decay
        else Reason("weight decay", "none", "noise and clipping regularise already"),
    ]
