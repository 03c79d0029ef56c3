"""The order of an epoch."""

import jax
import numpy as np

from eqx_mlp import data


def test_a_permutation_is_a_function_of_key_and_epoch():
    key = jax.random.key(0)
    first = data.epoch_permutation(key, 0, 1000)
    np.testing.assert_array_equal(np.sort(first), np.arange(1000))
    np.testing.assert_array_equal(first, data.epoch_permutation(key, 0, 1000))
    legacy = data.epoch_permutation(jax.random.PRNGKey(0), 0, 1000)
    np.testing.assert_array_equal(first, legacy)
    for other in (
        data.epoch_permutation(key, 1, 1000),
        data.epoch_permutation(jax.random.key(1), 0, 1000),
    ):
        assert np.mean(first == other) < 0.02


def test_places_are_uniform():
    # Where example 0 lands in 2,000 epochs of 10: chi-squared with 9 degrees of freedom
    # exceeds 27.9 with probability 0.001, and the draws are fixed.
    key = jax.random.key(0)
    places = [
        int(np.flatnonzero(data.epoch_permutation(key, epoch, 10) == 0)[0])
        for epoch in range(2000)
    ]
    counts = np.bincount(places, minlength=10)
    assert np.sum((counts - 200) ** 2 / 200) < 27.9


def test_images_become_vectors_between_0_and_1():
    image = np.arange(6, dtype=np.uint8).reshape(2, 3) * 51
    np.testing.assert_allclose(
        data.image_to_vector(jax.numpy.asarray(image)), np.arange(6) / 5, rtol=1e-6
    )
