"""Initialisers of weight matrices laid out as Equinox does, `[out, in]`."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
from jaxtyping import Array, Float

from .._types import Key

# Called as `init(key, shape, dtype)` with shape `(out, in)`.
Initializer: TypeAlias = Callable[[Key, tuple[int, int], Any], Array]

_he = jax.nn.initializers.variance_scaling(
    2.0, "fan_in", "normal", in_axis=-1, out_axis=-2
)
_glorot = jax.nn.initializers.variance_scaling(
    1.0, "fan_avg", "uniform", in_axis=-1, out_axis=-2
)


def he_normal(key: Key, shape: tuple[int, int], dtype: Any) -> Float[Array, "out in"]:
    """Normal weights of standard deviation sqrt(2 / in).

    Keeps the size of activations through layers of ReLU. Source: He, Zhang, Ren and
    Sun (2015), "Delving deep into rectifiers", equation 10.

    >>> import jax
    >>> he_normal(jax.random.key(0), (3, 4), "float32").shape
    (3, 4)
    """
    return _he(key, shape, dtype)


def glorot_uniform(
    key: Key, shape: tuple[int, int], dtype: Any
) -> Float[Array, "out in"]:
    """Uniform weights in +-sqrt(6 / (in + out)).

    For tanh and linear layers. Source: Glorot and Bengio (2010), "Understanding the
    difficulty of training deep feedforward neural networks", equation 16.

    >>> import jax
    >>> glorot_uniform(jax.random.key(0), (3, 4), "float32").shape
    (3, 4)
    """
    return _glorot(key, shape, dtype)
