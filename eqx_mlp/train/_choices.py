"""Which optimiser to start with: the decision table, its builders, its reasons."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from .._select import decay_mask


class OptimizerChoice(NamedTuple):
    """A row of the decision table.

    `learning_rate` is the highest of the run for batches of up to 256; above, it is
    multiplied by `(batch_size / 256) ** batch_exponent`. `warmup` is a share of the
    steps. `clip_norm` bounds the norm of the batch's gradient; None is no bound.
    """

    kind: str
    optimizer: str
    learning_rate: float
    batch_exponent: float
    warmup: float
    schedule: str
    clip_norm: float | None
    weight_decay: float


OPTIMIZER_CHOICES = (
    OptimizerChoice("mlp", "adamw", 2e-3, 0.5, 0.0, "cosine", None, 0.01),
    OptimizerChoice("residual", "adamw", 1e-3, 0.5, 0.05, "cosine", 1.0, 0.1),
    OptimizerChoice("recurrent", "adamw", 1e-3, 0.5, 0.05, "cosine", 1.0, 0.01),
    OptimizerChoice("convolution", "nesterov", 0.1, 1.0, 0.05, "cosine", None, 5e-4),
    OptimizerChoice("large-batch", "lamb", 5e-3, 0.5, 0.05, "cosine", None, 0.01),
    OptimizerChoice("fine-tune", "adamw", 1e-4, 0.0, 0.1, "linear", 1.0, 0.01),
    OptimizerChoice("private", "sgd", 0.5, 0.0, 0.0, "constant", None, 0.0),
)
"""The decision table, a row for each kind of training."""

REFERENCE_BATCH = 256
LARGE_BATCH = 4096


class Method(NamedTuple):
    """How an optimiser is built from a rate and a decay, and the reasons around it."""

    build: Callable[[Any, float], Any]
    why: str
    why_warmup: str
    why_no_warmup: str
    why_no_clip: str


METHODS = {
    "adamw": Method(
        lambda rate, decay: optax.adamw(rate, weight_decay=decay, mask=decay_mask),
        "Adam bears a wide range of rates, and its decay stays apart from the scaling "
        "of gradients. Loshchilov and Hutter (2019)",
        "Adam's first averages rest on few gradients. Liu et al. (2020)",
        "few layers bear the full rate from the start",
        "Adam divides by the gradient's size anyway",
    ),
    "nesterov": Method(
        lambda rate, decay: optax.chain(
            optax.add_decayed_weights(decay, decay_mask),
            optax.sgd(rate, momentum=0.9, nesterov=True),
        ),
        "gradient descent with Nesterov's momentum of 0.9, as convolutional nets are "
        "trained. Sutskever et al. (2013), Goyal et al. (2017)",
        "the full rate is too much for the first weights. Goyal et al. (2017)",
        "",
        "Goyal et al. (2017) train without",
    ),
    "lamb": Method(
        lambda rate, decay: optax.lamb(rate, weight_decay=decay, mask=decay_mask),
        "large batches leave few steps, which must be large: each layer moves by a "
        "share of its own norm. You et al. (2020)",
        "the full rate is too much for the first weights. Goyal et al. (2017)",
        "",
        "each layer's step is bounded by its own norm",
    ),
    "sgd": Method(
        lambda rate, decay: optax.sgd(rate),
        "the noise has one size in all coordinates, and Adam would scale by it. De et "
        "al. (2022), Tang and Lecuyer (2023)",
        "",
        "the first steps are clipped like all others",
        "each example is clipped already",
    ),
}

SCHEDULES: dict[str, tuple[Callable[[float, int], Any], str, str]] = {
    "cosine": (
        optax.cosine_decay_schedule,
        "half a cosine, to 0 at the last step",
        "large steps first, small ones to settle. Loshchilov and Hutter (2017)",
    ),
    "linear": (
        lambda peak, steps: optax.linear_schedule(peak, 0.0, steps),
        "a line, to 0 at the last step",
        "as language models are fine-tuned. Devlin et al. (2019)",
    ),
    "constant": (
        lambda peak, steps: optax.constant_schedule(peak),
        "constant",
        "instead of a decay, average the weights by with_ema. De et al. (2022)",
    ),
}

EXPONENTS = {
    0.0: "whatever the batch",
    0.5: "above a batch of 256 times the square root of batch / 256. Malladi et al. "
    "(2022)",
    1.0: "above a batch of 256 times batch / 256. Goyal et al. (2017)",
}
