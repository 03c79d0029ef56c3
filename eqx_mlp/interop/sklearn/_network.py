"""The network as scikit-learn keeps it, lists of arrays, and as a model."""

import functools
import itertools
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ...nn import MLP

ACTIVATIONS = {
    "logistic": jax.nn.sigmoid,
    **{
        name: getattr(jax.nn, name)
        for name in ("identity", "tanh", "relu", "elu", "gelu", "silu", "mish")
    },
}


# Of each layer the weights `[in, out]`, and the biases `[out]`, on the host.
Weights: TypeAlias = list[Float[np.ndarray, "_ _"]]
Biases: TypeAlias = list[Float[np.ndarray, " _"]]


def first_coefficients(
    sizes: tuple[int, ...], activation: str, dtype: Any, random: np.random.RandomState
) -> tuple[Weights, Biases]:
    """Those that scikit-learn's networks begin with, drawn in the same order.

    Uniform in +-sqrt(6 / (in + out)), or +-sqrt(2 / (in + out)) for the logistic
    activation. Source: Glorot and Bengio (2010), equation 16.
    """
    weights, biases = [], []
    for m, n in itertools.pairwise(sizes):
        bound = np.sqrt((2 if activation == "logistic" else 6) / (m + n))
        weights.append(random.uniform(-bound, bound, (m, n)).astype(dtype))
        biases.append(random.uniform(-bound, bound, n).astype(dtype))
    return weights, biases


def model_of(
    weights: Weights, biases: Biases, activation: str, dropout_rate: float
) -> MLP:
    """The model with these coefficients."""
    sizes = (weights[0].shape[0], *(b.shape[0] for b in biases))
    shaped = _shaped(sizes, activation, dropout_rate, weights[0].dtype)
    arrays = [jnp.asarray(w.T) for w in weights] + [jnp.asarray(b) for b in biases]
    return eqx.tree_at(_arrays_of, shaped, arrays)


def coefficients_of(model: MLP) -> tuple[Weights, Biases]:
    """The coefficients of a model, copied to the host."""
    arrays = [np.asarray(x) for x in _arrays_of(model)]
    half = len(model.layers)
    # Copies, since what JAX gives is read-only.
    weights = [np.array(w.T, order="C") for w in arrays[:half]]
    return weights, [b.copy() for b in arrays[half:]]


def _arrays_of(model: MLP) -> list[Any]:
    layers = model.layers
    return [layer.weight for layer in layers] + [layer.bias for layer in layers]


@functools.lru_cache(maxsize=64)
def _shaped(
    sizes: tuple[int, ...], activation: str, dropout_rate: float, dtype: Any
) -> Any:
    # Nothing is drawn or compiled: shapes stand where the arrays will.
    first, *hidden, last = sizes
    make = functools.partial(
        MLP,
        activation=ACTIVATIONS[activation],
        dropout_rate=dropout_rate,
        dtype=dtype,
    )
    return eqx.filter_eval_shape(make, first, last, hidden, key=jax.random.key(0))
