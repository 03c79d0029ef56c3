"""A network's outputs, whatever the number of rows, in few compiled programs."""

import contextlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ...nn import MLP
from ...train import predict

if hasattr(jax, "enable_x64"):
    _enable_x64: Any = jax.enable_x64
else:  # before JAX 0.8
    import jax.experimental

    _enable_x64 = jax.experimental.enable_x64  # pyright: ignore

# Rows of one call at most and at least.
_MOST, _LEAST = 4096, 32


def precision_of(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """Have JAX compute in float64 exactly where the data are."""
    return _enable_x64(dtype == np.float64)


def outputs_of(
    model: MLP, X: Float[np.ndarray, "rows in"]
) -> Float[np.ndarray, "rows out"]:
    """The model's outputs, with rows filled up to a power of two."""
    outputs = []
    for start in range(0, len(X), _MOST):
        rows = X[start : start + _MOST]
        size = max(_LEAST, 1 << (len(rows) - 1).bit_length())
        filled = np.zeros((size, X.shape[1]), X.dtype)
        filled[: len(rows)] = rows
        given = predict(model, filled, batch_size=size)
        outputs.append(np.asarray(given)[: len(rows)])
    return np.concatenate(outputs)
