"""One image moved, turned and bent: by given amounts, and at random."""

from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates
from jaxtyping import Array, Float, Shaped

from .._checked import checked
from .._dtypes import wide
from .._types import ArrayLike, Key

# One number, known before or only inside compiled code.
Number: TypeAlias = float | int | Shaped[ArrayLike, ""]


def _require_image(image: Any, **_: Any) -> None:
    shape, dtype = jnp.shape(image), jnp.result_type(image)
    real = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    if len(shape) not in (2, 3) or not real:
        raise ValueError(
            "deform takes one image of real numbers, [rows, columns] or [rows, "
            f"columns, channels], got shape {shape} and dtype {dtype}: reshape a "
            "vector first, and leave the batch axis to the library or to jax.vmap"
        )


@checked(_require_image)
def deform(
    image: Shaped[ArrayLike, "rows columns *channels"],
    *,
    shift: tuple[Number, Number] = (0.0, 0.0),
    rotation: Number = 0.0,
    scale: tuple[Number, Number] = (1.0, 1.0),
    shear: Number = 0.0,
    displacement: Float[ArrayLike, "2 rows columns"] | None = None,
) -> Shaped[Array, "rows columns *channels"]:
    """One image scaled, sheared, rotated about its centre, shifted and bent.

    What is seen at p was at A^-1 (p - shift) + displacement(p), counted from the
    centre, with A = rotation * shear * scale. It is interpolated linearly, once for all
    of it, and around the image there are zeros. What is left out changes nothing.

    Args:
        image: `[rows, columns]` or `[rows, columns, channels]`.
        shift: pixels down and to the right.
        rotation: degrees counter-clockwise.
        scale: factors of the height and the width.
        shear: pixels to the right for each row further down.
        displacement: for each pixel, rows and columns from there to where it is taken.

    Returns:
        An image of the same shape and dtype; integers are rounded.

    Raises:
        ValueError: what is not one image.

    >>> import jax.numpy as jnp
    >>> deform(jnp.array([[1, 2], [3, 4]]), rotation=90).tolist()
    [[2, 4], [1, 3]]
    """
    image = jnp.asarray(image)
    whole = jnp.issubdtype(image.dtype, jnp.integer)
    dtype = jnp.dtype(jnp.float32) if whole else wide(image.dtype)
    numbers = (*shift, rotation, *scale, shear)
    down, right, degrees, height, width, slope = (
        jnp.asarray(x, dtype) for x in numbers
    )
    middle = [(n - 1) / 2 for n in image.shape[:2]]
    row, column = jnp.indices(image.shape[:2], dtype=dtype)
    row, column = row - (middle[0] + down), column - (middle[1] + right)
    # Back through the rotation, the shear and the scale.
    cos, sin = jnp.cos(jnp.deg2rad(degrees)), jnp.sin(jnp.deg2rad(degrees))
    row, column = cos * row + sin * column, cos * column - sin * row
    row, column = row / height, (column - slope * row) / width
    places = jnp.stack([row + middle[0], column + middle[1]])
    if displacement is not None:
        places = places + jnp.asarray(displacement, dtype)

    def sample(plane: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
        return map_coordinates(plane, list(places), order=1)

    over_channels = sample if image.ndim == 2 else jax.vmap(sample, -1, -1)
    sampled = over_channels(image.astype(dtype))
    return (jnp.round(sampled) if whole else sampled).astype(image.dtype)


def _require_strengths(self: Any, **strengths: Any) -> None:
    for name, value in strengths.items():
        number = isinstance(value, int | float | np.number)
        least = "> 0" if name == "smoothness" else ">= 0"
        if not number or value < 0 or (name == "smoothness" and value == 0):
            raise ValueError(
                f"RandomDeformation: {name} must be a number {least}, got {value!r}"
            )
    if strengths.get("scale", 0) >= 1:
        raise ValueError(
            "RandomDeformation: scale is by how much a factor differs from 1 and must "
            f"be below 1, such as 0.15, got {strengths['scale']}"
        )


class RandomDeformation(eqx.Module):
    """Small random deformations of one image, as `augment=` of `fit` takes them.

    Each call draws a shift, a rotation, a scale and a shear, uniformly up to the given
    size either way, and a smooth random field of displacements. Source: Simard,
    Steinkraus and Platt (2003), "Best practices for convolutional neural networks
    applied to visual document analysis". Their alpha = 34 at sigma = 4 is
    `elastic=1.4, smoothness=4`.

    >>> import jax, jax.numpy as jnp
    >>> augment = jax.jit(RandomDeformation(shift=1, rotation=10, elastic=1))
    >>> image = augment(jnp.ones((28, 28), jnp.uint8), jax.random.key(0))
    >>> image.shape, image.dtype
    ((28, 28), dtype('uint8'))
    """

    shift: float = eqx.field(static=True)
    rotation: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    shear: float = eqx.field(static=True)
    elastic: float = eqx.field(static=True)
    smoothness: float = eqx.field(static=True)

    @checked(_require_strengths)
    def __init__(
        self,
        *,
        shift: float | int = 0.0,
        rotation: float | int = 0.0,
        scale: float | int = 0.0,
        shear: float | int = 0.0,
        elastic: float | int = 0.0,
        smoothness: float | int = 4.0,
    ):
        """Choose how strong each deformation is; 0 is none.

        Args:
            shift: pixels, in each direction.
            rotation: degrees.
            scale: how far the factors of height and width are from 1.
            shear: pixels for each row.
            elastic: pixels, the standard deviation of the displacement of each pixel.
            smoothness: pixels, the standard deviation of the Gaussian that smooths it.

        Raises:
            ValueError: a negative strength, a scale of 1 or more.
        """
        self.shift = float(shift)
        self.rotation = float(rotation)
        self.scale = float(scale)
        self.shear = float(shear)
        self.elastic = float(elastic)
        self.smoothness = float(smoothness)

    @checked(lambda self, image, key: _require_image(image))
    def __call__(
        self, image: Shaped[ArrayLike, "rows columns *channels"], key: Key
    ) -> Shaped[Array, "rows columns *channels"]:
        """The image, deformed by what `key` draws, in its own shape and dtype."""
        affine_key, elastic_key = jax.random.split(key)
        draw = jax.random.uniform(affine_key, (6,), jnp.float32, -1, 1)
        displacement = None
        if self.elastic:
            rows, columns = jnp.shape(image)[:2]
            field = smooth_field(elastic_key, (rows, columns), self.smoothness)
            displacement = self.elastic * field
        return deform(
            image,
            shift=(self.shift * draw[0], self.shift * draw[1]),
            rotation=self.rotation * draw[2],
            scale=(1 + self.scale * draw[3], 1 + self.scale * draw[4]),
            shear=self.shear * draw[5],
            displacement=displacement,
        )


def smooth_field(
    key: Key, shape: tuple[int, int], smoothness: float
) -> Float[Array, "2 rows columns"]:
    """Two fields of Gaussian noise smoothed by a Gaussian, of variance 1 everywhere.

    Smoothing noise N along both axes is S N S'^T. With S = U D V^T, and V^T N V' noise
    like N, that is (U D) N (U' D')^T. D falls so fast that a few of its entries are all
    of it, and so much less noise is drawn.
    """
    row_part, column_part = (_smoothing(n, smoothness) for n in shape)
    size = (2, row_part.shape[1], column_part.shape[1])
    noise = jax.random.normal(key, size, jnp.float32)
    return jnp.einsum("ra,fab,cb->frc", row_part, noise, column_part)


def _smoothing(n: int, smoothness: float) -> Float[np.ndarray, "n rank"]:
    # U D of the smoothing matrix, whose rows have norm 1: each variance is then 1.
    distance = np.subtract.outer(np.arange(n), np.arange(n)) / smoothness
    smoothing = np.exp(-(distance**2) / 2)
    smoothing /= np.linalg.norm(smoothing, axis=1, keepdims=True)
    u, d, _ = np.linalg.svd(smoothing)
    return (u * d)[:, d > 1e-2 * d[0]].astype(np.float32)
