"""A model of this library as its constructor's arguments, and back."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .._types import Model
from ._mlp import MLP
from ._residual import ResidualMLP

# fmt: off
_ACTIVATIONS: dict[str, Callable] = {"sin": jnp.sin} | {
    name: getattr(jax.nn, name)
    for name in (
        "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "mish",
        "squareplus", "sigmoid", "log_sigmoid", "softplus", "soft_sign", "tanh",
        "hard_sigmoid", "hard_silu", "hard_tanh", "identity",
    )
}
# fmt: on


# The only classes that a file can name. What draws the weights is not in the arguments:
# they are about to be replaced.
_CLASSES: dict[str, type] = {"MLP": MLP, "ResidualMLP": ResidualMLP}


def constructor_of(model: Model) -> dict[str, Any] | None:
    """The class and arguments, as JSON holds them, that would make such a model.

    None for a model of another class, with an activation that has no name, or that was
    changed so that no arguments lead to it.
    """
    name = type(model).__name__
    if type(model) is not _CLASSES.get(name):
        return None
    try:
        arguments = model._arguments() | {
            "activation": _name_of(model.activation),
            "dropout_rate": float(model.dropout.p),
        }
        constructor = {"class": name, "arguments": arguments}
        return constructor if _alike(build(constructor), model) else None
    except (AttributeError, TypeError, ValueError):
        return None


def build(constructor: dict[str, Any]) -> Model:
    """The model with a `jax.ShapeDtypeStruct` in place of each array.

    Raises:
        ValueError: a class or an activation that is none of this library's.
    """
    name, arguments = constructor["class"], dict(constructor["arguments"])
    activation = _ACTIVATIONS.get(arguments["activation"])
    if name not in _CLASSES or activation is None:
        raise ValueError(
            f"expected one of {', '.join(_CLASSES)} with an activation of jax.nn, got "
            f"{name} with {arguments['activation']}"
        )
    arguments["activation"] = activation
    key = jax.random.key(0)
    return eqx.filter_eval_shape(_CLASSES[name], **arguments, key=key)


def _name_of(activation: Any) -> str:
    for name, function in _ACTIVATIONS.items():
        if function is activation:
            return name
    raise ValueError(f"{activation!r} has no name here")


def _alike(built: Model, model: Model) -> bool:
    if jax.tree.structure(built) != jax.tree.structure(model):
        return False
    return all(
        (a.shape, a.dtype) == (b.shape, b.dtype)
        if isinstance(a, jax.ShapeDtypeStruct) and eqx.is_array(b)
        else type(a) is type(b)
        for a, b in zip(jax.tree.leaves(built), jax.tree.leaves(model), strict=True)
    )
