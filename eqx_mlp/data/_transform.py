"""From one stored example to what a model takes, inside the compiled step."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from .._types import ArrayLike


def image_to_vector(image: Shaped[ArrayLike, "..."]) -> Float[Array, " pixels"]:
    """One uint8 image of any shape as float32 in [0, 1], flattened.

    >>> import jax.numpy as jnp
    >>> image_to_vector(jnp.full((28, 28), 255, jnp.uint8)).shape
    (784,)
    """
    return jnp.asarray(image).reshape(-1).astype(jnp.float32) / 255
