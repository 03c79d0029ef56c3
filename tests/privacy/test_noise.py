"""One private gradient: how much noise, which noise, and what the sum is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import mixed_precision
from eqx_mlp.per_example._clipped import clipped_sums
from eqx_mlp.privacy import DPSGD

PRIVATE = DPSGD(
    l2_clip_norm=0.5,
    noise_multiplier=1.5,
    expected_batch_size=6,
    dataset_size=60,
    delta=1e-3,
    accountant="rdp",
)
KEY = jax.random.key(3)


def zero(w, x):
    return 0 * jnp.sum(w) * x


def times(w, x):
    return w * x


@pytest.fixture
def unit_noise(monkeypatch):
    """Each standard normal number is 1."""
    ones = lambda key, shape=(), dtype=jnp.float32: jnp.ones(shape, dtype)
    monkeypatch.setattr(jax.random, "normal", ones)


@pytest.mark.usefixtures("unit_noise")
@pytest.mark.parametrize("expected", [0.5, 2.5, 6])
def test_a_unit_of_noise_is_multiplier_times_norm_over_expected_batch_size(expected):
    private = dataclasses.replace(PRIVATE, expected_batch_size=expected)
    for rows in (1, 4):
        grads, _ = private(zero)(jnp.zeros(3), jnp.ones(rows), key=KEY)
        np.testing.assert_allclose(grads, 1.5 * 0.5 / expected, rtol=1e-6)


@pytest.mark.parametrize("expected", [0.5, 2.5, 6])
def test_the_sum_is_divided_by_the_expected_batch_size_not_by_the_real_one(expected):
    f = dataclasses.replace(PRIVATE, expected_batch_size=expected)(times)
    for x in ([0.1, 0.2], [0.3], [0.1, 0.1, 0.1]):
        got, noise = (
            f(jnp.array(1.0), jnp.asarray(x) * on, key=KEY)[0] for on in (1, 0)
        )
        np.testing.assert_allclose(got - noise, 0.3 / expected, rtol=1e-4)


def test_no_two_settings_add_the_same_normal_numbers():
    changes = {
        "l2_clip_norm": 0.7,
        "noise_multiplier": 1.1,
        "expected_batch_size": 7,
        "dataset_size": 61,
        "sampling": "shuffled",
    }
    drawn = set()
    for name, value in [("delta", 1e-3), *changes.items()]:
        private = dataclasses.replace(PRIVATE, **{name: value})
        grads, _ = private(zero)(jnp.zeros(1), jnp.ones(2), key=KEY)
        deviation = private.noise_multiplier * private.l2_clip_norm
        z = grads[0] * private.expected_batch_size / deviation
        drawn.add(round(float(z), 3))
    assert len(drawn) == 1 + len(changes)


def test_noise_has_the_digits_of_float32():
    n = 100_000
    grads, _ = jax.jit(PRIVATE(zero))(jnp.zeros(n), jnp.ones(2), key=KEY)
    # Of n draws out of the 2**23 that there are, n**2 / 2 / 2**23 meet another.
    assert n - len(np.unique(grads)) < 1.5 * n**2 / 2 / 2**23


def test_sum_and_noise_are_rounded_to_the_parameters_dtype_once():
    private = dataclasses.replace(PRIVATE, l2_clip_norm=100.0)
    f = private(lambda w, x: jnp.sum(w.astype(jnp.float32) * x))
    for x in (0.25, 8.0):
        rows = jnp.full((3, 1000), x)
        wide, _ = f(jnp.zeros(1000, jnp.float32), rows, key=KEY)
        for dtype in (jnp.bfloat16, jnp.float16):
            got, _ = f(jnp.zeros(1000, dtype), rows, key=KEY)
            np.testing.assert_array_equal(got, wide.astype(dtype))


def test_a_weight_below_zero_counts_as_none():
    f = PRIVATE(times)
    x = jnp.array([0.1, 0.2])
    got, stats = f(jnp.array(1.0), x, key=KEY, weight=jnp.array([-7.0, 1.0]))
    wanted, _ = f(jnp.array(1.0), x[1:], key=KEY)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    np.testing.assert_allclose(stats.value, [0, 0.2], rtol=1e-6)


def test_a_chunk_counts_wherever_in_it_an_example_does():
    x = jnp.arange(1.0, 13) / 100
    weight = jnp.zeros(12).at[jnp.array([3, 6, 9])].set(1)
    for chunk_size in (4, 5, 12):
        private = dataclasses.replace(PRIVATE, chunk_size=chunk_size)
        f = jax.jit(private(times))
        got, stats = f(jnp.array(1.0), x, key=KEY, weight=weight)
        noise, _ = f(jnp.array(1.0), 0 * x, key=KEY, weight=weight)
        # By hand: 0.04 + 0.07 + 0.10, over 6.
        np.testing.assert_allclose(got - noise, 0.21 / 6, rtol=1e-4)
        np.testing.assert_allclose(stats.grad_norm, x * weight, rtol=1e-6)


def test_noise_on_complex_parameters_has_its_deviation_in_each_part():
    n = 100_000
    loss = lambda w, x: 0 * jnp.sum(w.real) * x
    grads, _ = PRIVATE(loss)(jnp.zeros(n, jnp.complex64), jnp.ones(2), key=KEY)
    for part in (grads.real, grads.imag):
        z = np.asarray(part, np.float64) / (1.5 * 0.5 / 6)
        assert abs(np.sum(z**2) - n) < 4 * np.sqrt(2 * n)


def weight_norm(w, x):
    return jnp.sum(w / jnp.sqrt(jnp.sum(w * w)) * x)


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (mixed_precision(weight_norm), jnp.float32),
        (lambda w, x: jnp.sum(w.astype(jnp.float32)) * x[0], jnp.bfloat16),
    ],
)
def test_one_example_moves_the_sum_by_no_more_than_the_clipping_norm(loss, dtype):
    # Before noise and before the parameters' own dtype. Sums rounded to bfloat16 on
    # their way would move by whole steps of it.
    sums_of = jax.jit(
        clipped_sums(
            loss,
            l2_clip_norm=1.0,
            normalize_by=1.0,
            method="auto",
            has_aux=False,
            trainable=None,
            chunk_size=None,
            private=True,
        )
    )
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=64), dtype)
    x = jnp.asarray(rng.normal(size=(4096, 64)) * 20 + 20, jnp.float32)
    for rows in (255, 511, 1023, 2047, 2050, 4001):
        first = jnp.zeros(4096).at[:rows].set(1)
        a, b = (
            np.asarray(sums_of(w, x, weight=weight)[0], np.float64)
            for weight in (first, first.at[rows].set(1))
        )
        assert np.linalg.norm(a - b) <= 1.001
