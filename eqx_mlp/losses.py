"""Losses of one example: `loss(model, *example, key=None)` gives one number."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from ._checked import checked
from ._dtypes import wide
from ._keys import with_key
from ._known import is_known
from ._types import ArrayLike, Key, Label, Model, Scalar


def require_label(owner: str, label: Any) -> None:
    """Raise a ValueError unless `label` is one integer."""
    shape, dtype = jnp.shape(label), jnp.result_type(label)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(
            f"{owner}: a label is the integer number of a class, got dtype {dtype}: "
            "cast with label.astype(jnp.int32), or turn one-hot rows into numbers "
            "with jnp.argmax"
        )
    if shape != ():
        raise ValueError(
            f"{owner}: an example has one label of shape (), got shape {shape}: turn "
            "one-hot rows into numbers with jnp.argmax, and leave the batch axis to "
            "the library or to jax.vmap"
        )


def valid_label(
    owner: str, label: Int[Array, ""], classes: int
) -> Shaped[Array, ""] | bool:
    """Whether `label` names one of `classes`; a ValueError where its value is known.

    Inside compiled code a value cannot raise. There the caller gives NaN, and the
    functions that see the NaN on the host call again with the value at hand.
    """
    if is_known(label) and not 0 <= int(label) < classes:
        raise ValueError(
            f"{owner}: the model has {classes} outputs, so a label must be in "
            f"0..{classes - 1}, got {int(label)}"
        )
    return (label >= 0) & (label < classes)


def logits_of(
    owner: str, model: Model, x: Any, key: Key | None = None
) -> Float[Array, " classes"]:
    """The model's outputs for one example, in float32 or wider."""
    logits = with_key(model, x, key=key)
    if jnp.ndim(logits) != 1 or not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(
            f"{owner}: the model must give one floating-point logit a class, shape "
            f"(classes,), got shape {jnp.shape(logits)} and dtype {logits.dtype}"
        )
    return logits.astype(wide(logits.dtype))


def _require_label(
    model: Any, x: Any, label: Any, *, smoothing: Any = 0.0, **_: Any
) -> None:
    require_label("cross_entropy", label)
    if not (isinstance(smoothing, float | int) and 0 <= smoothing < 1):
        raise ValueError(
            "cross_entropy: smoothing is the share of the label that is spread over "
            f"all classes and must be in [0, 1), such as 0.1, got {smoothing!r}"
        )


@checked(_require_label)
def cross_entropy(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    label: Label,
    *,
    key: Key | None = None,
    smoothing: float | int = 0.0,
) -> Scalar:
    """Cross entropy of one example in nats: -log softmax(model(x))[label].

    With label smoothing s, of the softmax and the target (1 - s) * one-hot + s /
    classes. Source: Szegedy et al. (2016), "Rethinking the Inception architecture for
    computer vision", section 7.

    Args:
        model: gives logits `[classes]`.
        x: one example's features, as the model takes them.
        label: the class, an integer in `0..classes-1`.
        key: handed to the model, for dropout.
        smoothing: s, in [0, 1); bind it with `functools.partial` for training.

    Raises:
        ValueError: a label that is not one integer, or outside the classes. In
            compiled code an outside label gives NaN, and `fit`, `evaluate` and the
            per-example functions raise for it when they see the result.

    >>> import jax, jax.numpy as jnp
    >>> round(float(cross_entropy(lambda x: x, jnp.zeros(10), 3)), 4)  # log 10
    2.3026
    """
    logits = logits_of("cross_entropy", model, x, key)
    classes = logits.shape[0]
    label = jnp.asarray(label).astype(jnp.int32)
    valid = valid_label("cross_entropy", label, classes)
    # A sum over the one-hot row, whose derivative is the row; indexing would scatter.
    own = jnp.sum(jnp.where(jnp.arange(classes, dtype=label.dtype) == label, logits, 0))
    if smoothing:
        own = own + smoothing * (jnp.mean(logits) - own)
    # A factor, because a NaN that where() picks would have gradient zero.
    return (jax.nn.logsumexp(logits) - own) * jnp.where(valid, 1, jnp.nan)


def _require_target(model: Any, x: Any, target: Any, **_: Any) -> None:
    if not isinstance(target, jax.Array | np.ndarray | np.floating | float):
        raise ValueError(
            "squared_error: the target must be an array of floating-point numbers or "
            f"one float, got {type(target).__name__}: convert it with jnp.asarray"
        )


@checked(_require_target)
def squared_error(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    target: Float[ArrayLike, "..."] | float | np.floating,
    *,
    key: Key | None = None,
) -> Scalar:
    """Squared error of one example, the mean over the model's outputs.

    Args:
        model: gives the prediction, any shape.
        x: one example's features, as the model takes them.
        target: of the prediction's shape; one number will do for one output.
        key: handed to the model, for dropout.

    Raises:
        ValueError: a target of another shape than the prediction.

    >>> import jax.numpy as jnp
    >>> float(squared_error(lambda x: x, jnp.array([1., 2.]), jnp.array([1., 4.])))
    2.0
    """
    prediction = with_key(model, x, key=key)
    shape = jnp.shape(prediction)
    if jnp.shape(target) != shape and not (
        jnp.shape(target) == () and prediction.size == 1
    ):
        raise ValueError(
            f"squared_error: the model gives shape {shape} for one example, and the "
            f"target has shape {jnp.shape(target)}: they must be the same"
        )
    dtype = wide(prediction.dtype)
    wanted = jnp.reshape(jnp.asarray(target), shape).astype(dtype)
    return jnp.mean(jnp.square(prediction.astype(dtype) - wanted))


__all__ = ["cross_entropy", "squared_error"]
