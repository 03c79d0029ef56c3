"""In-memory data as the loops take it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..per_example import require_batch


def require_count(owner: str, **counts: Any) -> None:
    """Raise a ValueError unless each count is a positive integer."""
    for name, count in counts.items():
        integer = isinstance(count, int | np.integer) and not isinstance(count, bool)
        if not integer or count < 1:
            raise ValueError(f"{owner}: {name} must be an integer >= 1, got {count!r}")


def require_data(owner: str, name: str, data: Any) -> None:
    """Raise a ValueError unless `data` is a tuple of arrays with examples in them."""
    if not isinstance(data, tuple):
        raise ValueError(
            f"{owner}: {name} must be a tuple of the arrays that the loss takes after "
            f"the model, such as (x, y), got {type(data).__name__}"
        )
    require_batch(f"{owner}: {name}", data)
    if size_of(data) == 0:
        raise ValueError(f"{owner}: {name} holds zero examples: at least one is needed")


def size_of(data: Any) -> int:
    """The number of examples."""
    return jnp.shape(jax.tree.leaves(data)[0])[0]


def padded(order: np.ndarray, batch_size: int) -> np.ndarray:
    """`order` filled up with its first entries to whole batches."""
    return np.resize(order, -(-order.size // batch_size) * batch_size)
