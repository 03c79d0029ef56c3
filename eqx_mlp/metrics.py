"""Metrics as pytrees: numerator and denominator, added up, then divided once.

A metric is a function of one example, `metric(model, *example, key=None)`, that gives a
`Metric` or one number to be averaged. Averages of averages are wrong as soon as batches
differ in size; sums merge exactly, in any order and on any number of devices.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ._checked import checked
from ._display import short
from ._dtypes import promote
from ._known import is_known
from ._types import ArrayLike, Key, Label, Model, Scalar, Weight
from .losses import logits_of, require_label, valid_label

# Name to function of one example, as `fit` and `evaluate` take them.
Metrics: TypeAlias = Mapping[str, Callable[..., Any]]


class Metric(eqx.Module):
    """A sum and what to divide it by; a denominator of None leaves it a sum.

    >>> import jax.numpy as jnp
    >>> four_right = Metric(jnp.array(4.0), jnp.array(4.0))
    >>> one_wrong = Metric(jnp.array(0.0), jnp.array(1.0))
    >>> round(float(four_right.merge(one_wrong).compute()), 6)
    0.8
    """

    numerator: Float[Array, "..."]
    denominator: Float[Array, "..."] | None

    def merge(self, other: "Metric") -> "Metric":
        """The metric over both sets of examples."""
        return jax.tree.map(jnp.add, self, other)

    def compute(self) -> Float[ArrayLike, "..."]:
        """The value: numerator over denominator, on the host where it is known.

        Raises:
            ValueError: the denominator is 0, so there was no example.
        """
        if self.denominator is None:
            return self.numerator
        if not is_known((self.numerator, self.denominator)):
            return self.numerator / self.denominator
        denominator = np.asarray(self.denominator)
        if not np.all(denominator):
            raise ValueError("a mean over no example: every weight was 0")
        return np.asarray(np.asarray(self.numerator) / denominator)

    def __repr__(self) -> str:
        below = "" if self.denominator is None else f" / {short(self.denominator)}"
        return f"Metric({short(self.numerator)}{below})"


def sum_metric(
    metric: Callable[..., Any], weight: Weight | None = None
) -> Callable[..., Metric]:
    """`f(*rows)` that adds up `metric` over rows, each counted by its weight."""

    def row(*arguments: Any) -> Metric:
        out = metric(*arguments)
        if isinstance(out, Metric):
            return out
        value = jnp.asarray(out)
        if value.shape != ():
            raise ValueError(
                "a metric of one example must return one number or a Metric, got shape "
                f"{value.shape}"
            )
        value = value.astype(promote(value.dtype, jnp.float32))
        return Metric(value, jnp.ones_like(value))

    def total(x: Shaped[Array, "batch ..."]) -> Shaped[Array, "..."]:
        if weight is None:
            return jnp.sum(x, axis=0)
        w = jax.lax.expand_dims(weight.astype(x.dtype), range(1, x.ndim))
        return jnp.sum(jnp.where(w == 0, 0, w * x), axis=0)

    return lambda *rows: jax.tree.map(total, jax.vmap(row)(*rows))


@checked(lambda model, x, label, **_: require_label("accuracy", label))
def accuracy(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    label: Label,
    *,
    key: Key | None = None,
) -> Metric:
    """Whether the largest logit is the label's: 1 or 0, averaged over examples.

    Arguments and errors are those of `losses.cross_entropy`.

    >>> import jax.numpy as jnp
    >>> accuracy(lambda x: x, jnp.array([0.1, 0.9]), 1).compute().item()
    1.0
    """
    return _top_k("accuracy", 1, model, x, label, key)


def top_k(k: int) -> Callable[..., Metric]:
    """A metric: whether the label is among the `k` largest logits.

    A label's rank is the number of logits larger than its own, so ties count as right,
    but for accuracy (k=1), which takes the first of the largest as `argmax` does.

    >>> import jax.numpy as jnp
    >>> top_k(2)(lambda x: x, jnp.array([0.1, 0.7, 0.2]), 2).compute().item()
    1.0
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise ValueError(f"top_k: k must be an integer >= 1, got {k!r}")

    @checked(lambda model, x, label, **_: require_label("top_k", label))
    def top(
        model: Model,
        x: Shaped[ArrayLike, "..."],
        label: Label,
        *,
        key: Key | None = None,
    ) -> Metric:
        return _top_k("top_k", k, model, x, label, key)

    return top


def _top_k(
    owner: str, k: int, model: Model, x: Any, label: Any, key: Key | None
) -> Metric:
    logits = logits_of(owner, model, x, key)
    classes = logits.shape[0]
    label = jnp.asarray(label).astype(jnp.int32)
    valid = valid_label(owner, label, classes)
    if k == 1:
        right = jnp.argmax(logits).astype(label.dtype) == label
    else:
        own = jnp.sum(
            jnp.where(jnp.arange(classes, dtype=label.dtype) == label, logits, 0)
        )
        right = jnp.sum(logits > own) < k
    one = jnp.ones((), logits.dtype)
    return Metric(jnp.where(valid, right.astype(one.dtype), jnp.nan), one)


@checked(lambda model, x, label, **_: require_label("confusion_matrix", label))
def confusion_matrix(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    label: Label,
    *,
    key: Key | None = None,
) -> Metric:
    """Counts `[classes, classes]` of examples by label (row) and prediction (column).

    Arguments and errors are those of `losses.cross_entropy`.

    >>> import jax.numpy as jnp
    >>> confusion_matrix(lambda x: x, jnp.array([0.1, 0.9]), 0).compute().tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    logits = logits_of("confusion_matrix", model, x, key)
    classes = logits.shape[0]
    of_label = _one_hot("confusion_matrix", label, logits)
    of_prediction = jax.nn.one_hot(jnp.argmax(logits), classes, dtype=logits.dtype)
    return Metric(of_label[:, None] * of_prediction[None, :], None)


@checked(lambda model, x, label, **_: require_label("margin", label))
def margin(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    label: Label,
    *,
    key: Key | None = None,
) -> Scalar:
    """The label's logit less the largest other one: negative where it is not the top.

    Averaged over training it is the area under the margin of Pleiss et al. (2020),
    "Identifying mislabeled data using the area under the margin ranking".

    Arguments and errors are those of `losses.cross_entropy`.

    >>> import jax.numpy as jnp
    >>> margin(lambda x: x, jnp.array([0.5, 2.0, 1.0]), 2).item()
    -1.0
    """
    logits = logits_of("margin", model, x, key)
    own = _one_hot("margin", label, logits)
    others = jnp.where(own == 0, logits, -jnp.inf)
    return jnp.sum(jnp.where(own == 0, 0, own * logits)) - jnp.max(others)


@checked(lambda model, x, label, **_: require_label("el2n", label))
def el2n(
    model: Model,
    x: Shaped[ArrayLike, "..."],
    label: Label,
    *,
    key: Key | None = None,
) -> Scalar:
    """The error L2 norm, |softmax(model(x)) - onehot(label)|, from 0 to sqrt 2.

    It is the norm of cross entropy's gradient with respect to the logits. Source: Paul
    et al. (2021), "Deep learning on a data diet", definition 2.2, for one network.

    Arguments and errors are those of `losses.cross_entropy`.

    >>> import jax.numpy as jnp
    >>> round(el2n(lambda x: x, jnp.zeros(2), 0).item(), 4)  # |(1/2, 1/2) - (1, 0)|
    0.7071
    """
    logits = logits_of("el2n", model, x, key)
    error = jax.nn.softmax(logits) - _one_hot("el2n", label, logits)
    return jnp.sqrt(jnp.sum(jnp.square(error)))


def _one_hot(owner: str, label: Any, logits: Array) -> Float[Array, " classes"]:
    # Of NaN where a label in compiled code is outside of the classes.
    classes = logits.shape[0]
    label = jnp.asarray(label).astype(jnp.int32)
    valid = valid_label(owner, label, classes)
    row = jax.nn.one_hot(label, classes, dtype=logits.dtype)
    return jnp.where(valid, row, jnp.nan)


__all__ = [
    "Metric",
    "Metrics",
    "accuracy",
    "confusion_matrix",
    "el2n",
    "margin",
    "sum_metric",
    "top_k",
]
