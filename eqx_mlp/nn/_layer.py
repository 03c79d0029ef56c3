"""What MLP and ResidualMLP share: layers from an initialiser, and input checks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._display import call
from .._keys import require_key
from .._types import Key
from ._init import Initializer


def linear(
    in_size: int,
    out_size: int,
    *,
    use_bias: bool,
    init: Initializer,
    dtype: Any,
    key: Key,
) -> eqx.nn.Linear:
    """An `eqx.nn.Linear` with weights from `init` and a zero bias."""
    # The layer's own initialiser is only traced, for its shapes: it would compile and
    # draw numbers that are thrown away.
    layer = eqx.filter_eval_shape(
        eqx.nn.Linear, in_size, out_size, use_bias=use_bias, dtype=dtype, key=key
    )
    weight = init(key, (out_size, in_size), layer.weight.dtype)
    if weight.shape != layer.weight.shape or weight.dtype != layer.weight.dtype:
        raise ValueError(
            f"init must return weights of shape {layer.weight.shape} and dtype "
            f"{layer.weight.dtype}, got {weight.shape} and {weight.dtype}"
        )
    layer = eqx.tree_at(lambda m: m.weight, layer, weight)
    if use_bias:
        layer = eqx.tree_at(lambda m: m.bias, layer, jnp.zeros(out_size, weight.dtype))
    return layer


def require_sizes(owner: str, **sizes: Any) -> None:
    """Raise a ValueError unless each size is a positive integer."""
    for name, size in sizes.items():
        ok = isinstance(size, int | np.integer) and not isinstance(size, bool)
        if not ok or size < 1:
            raise ValueError(f"{owner}: {name} must be an integer >= 1, got {size!r}")


def require_options(
    owner: str,
    *,
    activation: Any = jax.nn.relu,
    dropout_rate: Any = 0.0,
    dtype: Any = None,
    key: Any = None,
    **_: Any,
) -> None:
    """Raise a ValueError unless a model's constructor got what it needs."""
    require_key(owner, key)
    if not callable(activation):
        raise ValueError(
            f"{owner}: activation must be a function such as jax.nn.relu, got "
            f"{activation!r}"
        )
    if isinstance(dropout_rate, float | int) and not 0 <= dropout_rate < 1:
        raise ValueError(
            f"{owner}: dropout_rate is the probability of dropping a hidden unit and "
            f"must be in [0, 1), got {dropout_rate}"
        )
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ValueError(
            f"{owner}: parameters must be of a floating dtype such as jnp.float32, got "
            f"{jnp.dtype(dtype)}"
        )


def require_example(owner: str, in_size: int, x: Any) -> None:
    """Raise a ValueError unless `x` is the features of one example."""
    if not eqx.is_array(x):
        message = f"{owner} takes an array of shape ({in_size},), got a "
        message += type(x).__name__
        if isinstance(x, eqx.Module):
            message += (
                ". If an optimiser called the model, its label tree is a callable "
                "Module: use eqx_mlp.multi_transform, or wrap it as lambda _: labels"
            )
        raise ValueError(message)
    if x.shape != (in_size,):
        if x.ndim == 2 and x.shape[1] == in_size:
            mend = "for a batch use jax.vmap(model)(x)"
        elif x.size == in_size:
            mend = "flatten it first: x.reshape(-1)"
        else:
            mend = f"the model was built with in_size={in_size}"
        raise ValueError(
            f"{owner} takes one example of shape ({in_size},), got shape "
            f"{tuple(x.shape)}: {mend}"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"{owner} takes floating-point features, got {x.dtype}: cast them first, "
            "for images x.astype(jnp.float32) / 255, or pass transform="
        )


def dropout_keys(
    owner: str, dropout: eqx.nn.Dropout, key: Key | None, inference: bool | None, n: int
) -> list[Key | None]:
    """A key for each of `n` dropouts, or Nones where none will be drawn."""
    off = dropout.inference if inference is None else inference
    if off or (isinstance(dropout.p, float | int) and dropout.p == 0):
        return [None] * n
    if key is None:
        raise ValueError(
            f"{owner} with dropout_rate={dropout.p} draws a mask in training and needs "
            "a key: pass key=..., or inference=True to switch dropout off"
        )
    return list(jax.random.split(key, n))


def described(self: Any) -> str:
    """A model as the call that makes it, without what is so by default.

    What has a model's structure and is none, its gradient or a mask, is shown as
    Equinox does, as a tree.
    """
    try:
        arguments = self._arguments()
        settings = {
            "activation": self.activation,
            "dropout_rate": self.dropout.p,
            "remat": getattr(self, "remat", False),
            "inference": self.dropout.inference,
        }
    except (AttributeError, TypeError, IndexError):
        return eqx.tree_pformat(self)
    if not callable(self.activation):
        return eqx.tree_pformat(self)
    defaults = {
        "hidden_size": arguments.get("width"),
        "use_bias": True,
        "dtype": "float32",
        "activation": jax.nn.relu,
        "dropout_rate": 0.0,
        "remat": False,
        "inference": False,
    }
    options = {
        name: tuple(x) if isinstance(x, list) else x
        for name, x in (arguments | settings).items()
        if eqx.is_array(x) or name not in defaults or x != defaults[name]
    }
    sizes = options.pop("in_size"), options.pop("out_size")
    return call(type(self).__name__, *sizes, **options)
