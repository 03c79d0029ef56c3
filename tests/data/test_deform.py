"""Deformed images against NumPy and SciPy, and what is drawn at random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage

from eqx_mlp import data
from eqx_mlp.data._deform import smooth_field

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (6, 5), dtype=np.uint8)
SQUARE = RNG.normal(size=(5, 5)).astype(np.float32)
deform = jax.jit(data.deform)


@pytest.mark.parametrize(("down", "right"), [(2, 0), (0, -1), (-3, 2), (9, 0)])
def test_a_shift_by_whole_pixels_is_a_roll_filled_with_zeros(down, right):
    wanted = np.zeros((20, 20), np.uint8)
    wanted[10 : 10 + 6, 10 : 10 + 5] = IMAGE
    wanted = np.roll(wanted, (down, right), (0, 1))[10:16, 10:15]
    np.testing.assert_array_equal(deform(IMAGE, shift=(down, right)), wanted)


def test_half_a_pixel_is_the_mean_of_two():
    row = jnp.array([[0.0, 4.0, 8.0]])
    np.testing.assert_allclose(deform(row, shift=(0.0, 0.5)), [[0, 2, 6]])


@pytest.mark.parametrize("turns", [1, 2, -1])
def test_a_rotation_by_90_degrees_is_rot90(turns):
    got = deform(SQUARE, rotation=90 * turns)
    np.testing.assert_allclose(got, np.rot90(SQUARE, turns), atol=1e-5)


def test_the_defaults_and_strength_zero_are_the_identity():
    for image in (IMAGE, SQUARE):
        np.testing.assert_array_equal(deform(image), image)
        same = jax.jit(data.RandomDeformation())(image, jax.random.key(0))
        np.testing.assert_array_equal(same, image)


def test_scale_2_repeats_what_is_in_the_middle():
    # 1 2 3 about the middle: at twice the height -1 -1/2 0 1/2 1 come from there.
    column = jnp.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    wanted = [[1], [1.5], [2], [2.5], [3]]
    np.testing.assert_allclose(deform(column, scale=(2.0, 1.0)), wanted)


def test_a_shear_moves_each_row_by_its_distance_from_the_middle():
    line = np.zeros((3, 5), np.uint8)
    line[:, 2] = 7
    np.testing.assert_array_equal(
        deform(line, shear=2), np.eye(5, dtype=np.uint8)[::2] * 7
    )


def test_it_is_scipys_interpolation_at_the_places_worked_out_by_matrices():
    image, field = RNG.normal(size=(9, 7)), RNG.normal(size=(2, 9, 7))
    angle = np.deg2rad(20)
    # Acting on (row, column), with rows counted downwards.
    rotation = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    matrix = rotation @ np.array([[1, 0], [0.3, 1]]) @ np.diag([1.2, 0.9])
    middle, shift = (
        np.array([4, 3])[:, None, None],
        np.array([1.3, -0.6])[:, None, None],
    )
    seen = np.indices((9, 7)) - middle - shift
    places = np.einsum("ij,jrc->irc", np.linalg.inv(matrix), seen) + middle + field
    wanted = ndimage.map_coordinates(image, places, order=1, mode="grid-constant")
    got = deform(
        image.astype(np.float32),
        shift=(1.3, -0.6),
        rotation=20,
        scale=(1.2, 0.9),
        shear=0.3,
        displacement=field.astype(np.float32),
    )
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int32, jnp.bfloat16, jnp.float32])
def test_the_dtype_stays_and_channels_move_together(dtype):
    image = RNG.integers(0, 256, (6, 5, 3)).astype(dtype)
    got = deform(image, shift=(0.25, 1.5), rotation=10)
    assert got.dtype == dtype
    for channel in range(3):
        alone = deform(image[..., channel], shift=(0.25, 1.5), rotation=10)
        rtol = 2**-7 if dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            got[..., channel].astype(jnp.float32), alone.astype(jnp.float32), rtol=rtol
        )


def test_a_shift_inside_the_image_keeps_its_mass():
    image = np.zeros((8, 8), np.float32)
    image[3:5, 3:6] = RNG.random((2, 3))
    got = deform(image, shift=(1.7, -0.4))
    np.testing.assert_allclose(got.sum(), image.sum(), rtol=1e-6)


def test_whole_numbers_are_rounded_and_stay_in_range():
    image = np.array([[0, 255, 255, 254]], np.uint8)
    # 0.4 * 255 = 102; a truncated 254.6 would be 254.
    got = deform(image, shift=(0.0, 0.6))
    np.testing.assert_array_equal(got, [[0, 102, 255, 255]])


FULL = data.RandomDeformation(
    shift=2, rotation=10, scale=0.1, shear=0.1, elastic=1.0, smoothness=3
)


def test_a_key_says_what_is_drawn_and_another_key_something_else():
    image = jnp.asarray(RNG.random((12, 12)), jnp.float32)
    keys = jax.random.split(jax.random.key(0), 4)
    both = jax.jit(jax.vmap(FULL, in_axes=(None, 0)))
    many = both(image, keys)
    assert np.unique(np.asarray(many), axis=0).shape[0] == 4
    np.testing.assert_array_equal(both(image, keys[::-1]), many[::-1])


@pytest.mark.parametrize("name", ["shift", "rotation", "scale", "shear", "elastic"])
def test_each_strength_alone_changes_the_image(name):
    augment = data.RandomDeformation(**{name: 0.5})
    image = jnp.asarray(RNG.random((12, 12)), jnp.float32)
    got = jax.jit(augment)(image, jax.random.key(0))
    assert 1e-3 < np.abs(got - image).max() < 2


def test_shifts_reach_their_size_both_ways_and_not_further():
    # The centre of mass of a dot says where it went.
    dot = jnp.zeros((21, 21)).at[10, 10].set(1.0)
    keys = jax.random.split(jax.random.key(1), 500)
    shift = jax.vmap(data.RandomDeformation(shift=3), in_axes=(None, 0))
    moved = np.asarray(jax.jit(shift)(dot, keys))
    for axis in (0, 1):
        centre = moved.sum(axis=2 - axis) @ np.arange(21) - 10
        assert -3.001 < centre.min() < -2.9
        assert 2.9 < centre.max() < 3.001
        # A uniform number in [-3, 3] has standard deviation sqrt(3).
        np.testing.assert_allclose(centre.std(), 3**0.5, rtol=0.05)


def test_the_field_is_smoothed_noise_of_variance_1():
    # The correlation of Gaussian noise smoothed with sigma s is exp(-d^2 / (4 s^2))
    # away from the edges.
    # So many that 5 % are seven standard errors of a standard deviation.
    keys = jax.random.split(jax.random.key(2), 10_000)
    draw = jax.vmap(lambda key: smooth_field(key, (20, 18), 3.0))
    field = np.asarray(jax.jit(draw)(keys))
    np.testing.assert_allclose(field.std(axis=0), 1, rtol=0.05)
    np.testing.assert_allclose(field.mean(axis=0), 0, atol=0.1)
    middle = field[:, 0, 8, 7]
    for down, right in ((0, 2), (3, 0), (3, 4)):
        other = field[:, 0, 8 + down, 7 + right]
        wanted = np.exp(-(down**2 + right**2) / 36)
        np.testing.assert_allclose(np.mean(middle * other), wanted, atol=0.05)
    # The two directions are independent.
    np.testing.assert_allclose(np.mean(middle * field[:, 1, 8, 7]), 0, atol=0.05)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: data.deform(jnp.ones(784)), r"got shape \(784,\)"),
        (lambda: data.deform(jnp.ones((3, 3), bool)), "and dtype bool"),
        (lambda: data.RandomDeformation(shift=-1.0), "shift must be a number >= 0"),
        (lambda: data.RandomDeformation(smoothness=0.0), "smoothness must be .* > 0"),
        (lambda: data.RandomDeformation(rotation="10"), "rotation must be a number"),
        (lambda: data.RandomDeformation(scale=1.5), "below 1, such as 0.15, got 1.5"),
        (lambda: FULL(jnp.ones(9), jax.random.key(0)), "reshape a vector first"),
    ],
)
def test_what_makes_no_sense_is_a_value_error(call, match):
    with pytest.raises(ValueError, match=match):
        call()
