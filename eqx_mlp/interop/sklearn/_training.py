"""What `fit` is given: losses, their weighted and penalised mean, the optimiser.

Numbers that a user tunes are arrays in these, not parts of the program, so that another
learning rate or penalty compiles nothing.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Shaped

from ... import losses
from ..._types import Key, Label, Loss, Model, Scalar, Trainable
from ...per_example import ExampleStats
from ...train import mean_grad


# An example is (x, target, weight). The weight is read by `WeightedMean` alone.
def softmax_loss(
    model: Model,
    x: Float[Array, " in"],
    label: Label,
    weight: Scalar,
    *,
    key: Key | None = None,
) -> Scalar:
    """Cross entropy of classes of which one is right."""
    return losses.cross_entropy(model, x, label, key=key)


def logistic_loss(
    model: Model,
    x: Float[Array, " in"],
    target: Float[Array, " out"],
    weight: Scalar,
    *,
    key: Key | None = None,
) -> Scalar:
    """Cross entropy of outputs each of which is right or not, added up."""
    return jnp.sum(optax.sigmoid_binary_cross_entropy(model(x, key=key), target))


def half_squared_error(
    model: Model,
    x: Float[Array, " in"],
    target: Float[Array, " out"],
    weight: Scalar,
    *,
    key: Key | None = None,
) -> Scalar:
    """Half the squared error, added up over outputs."""
    return 0.5 * target.size * losses.squared_error(model, x, target, key=key)


class WeightedMean(eqx.Module):
    """A gradient for `fit`: of the weighted mean loss and a penalty of the weights.

    sum_b w_b loss_b / sum_b w_b + alpha |W|^2 / (2 sum_b w_b), where w_b is the last
    argument of example b and W are the layers' matrices. So an example of weight 2 is
    one that stands there twice.
    """

    alpha: Float[Array, ""]

    def __call__(
        self, loss: Loss, *, trainable: Trainable = None
    ) -> Callable[..., tuple[PyTree, ExampleStats]]:
        """`f(model, *batch, key=None, weight=None) -> (grads, ExampleStats)`."""
        mean = mean_grad(loss, trainable=trainable)

        def f(
            model: Model, *batch: Any, key: Key | None = None, weight: Any = None
        ) -> tuple[PyTree, ExampleStats]:
            own: Shaped[Array, " batch"] = batch[-1]
            here = jnp.ones_like(own) if weight is None else weight.astype(own.dtype)
            own = own * here
            grads, stats = mean(model, *batch, key=key, weight=own)
            total = jnp.sum(own)
            some = total > 0
            total = jnp.where(some, total, 1)
            strength = jnp.where(some, self.alpha, 0) / total
            matrices = _matrices(model)
            penalised = [
                g + strength * w
                for g, w in zip(_matrices(grads), matrices, strict=True)
            ]
            squares = sum(jnp.sum(jnp.square(w)) for w in matrices)
            # `fit` takes the plain mean over what is no padding: it is the whole loss.
            value = stats.value * own * (jnp.sum(here) / total)
            value = value + 0.5 * strength * squares
            grads = eqx.tree_at(_matrices, grads, penalised)
            return grads, ExampleStats(value, None, None)

        return f


def _matrices(model: Any) -> list[Any]:
    return [layer.weight for layer in model.layers]


def nesterov(
    learning_rate: Float[Array, ""], momentum: Float[Array, ""]
) -> optax.GradientTransformation:
    """Gradient descent with Nesterov's momentum."""
    return optax.sgd(learning_rate, momentum, nesterov=True)


def optimizer_of(
    make: Callable[..., Any], settings: Mapping[str, Float[Array, ""]]
) -> optax.GradientTransformation:
    """`make(**settings)`, with the settings as leaves of the result."""
    if isinstance(make, functools.partial):
        # A pytree, which is equal to another one of the same parts.
        make = eqx.Partial(make.func, *make.args, **make.keywords)
    return optax.GradientTransformationExtraArgs(
        eqx.Partial(_init, make, settings), eqx.Partial(_update, make, settings)
    )


def _init(make: Callable[..., Any], settings: dict[str, Array], params: Any) -> Any:
    return make(**settings).init(params)


def _update(
    make: Callable[..., Any], settings: dict[str, Array], *args: Any, **extra: Any
) -> Any:
    return optax.with_extra_args_support(make(**settings)).update(*args, **extra)
