"""Examples side by side, and the order in which an epoch visits them."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Int, PyTree, Shaped

from .._types import ArrayLike, Key, Weight


class Batch(eqx.Module):
    """Examples side by side, and how much each one counts.

    `example` holds the loss's arguments, each leaf with a leading batch axis. `weight`
    is None where every example counts 1; weight 0 is padding.

    >>> import jax.numpy as jnp
    >>> Batch((jnp.ones((3, 2)), jnp.zeros(3)), weight=jnp.array([1., 1., 0.])).size
    3
    """

    example: tuple[PyTree[Shaped[ArrayLike, "batch ..."]], ...]
    weight: Weight | None = None

    @property
    def size(self) -> int:
        """The number of rows, padding included."""
        return jax.tree.leaves(self.example)[0].shape[0]


def epoch_permutation(key: Key, epoch: int, n: int) -> Int[np.ndarray, " n"]:
    """The order in which epoch number `epoch` visits `n` examples.

    A function of its arguments alone, so a resumed run sees the order of the run that
    never stopped. Drawn on the host, where sorting is not the price of shuffling.

    >>> import jax
    >>> sorted(epoch_permutation(jax.random.key(0), 3, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    if jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    seed = [*(int(word) for word in np.asarray(key).ravel()), epoch]
    return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.int32))
