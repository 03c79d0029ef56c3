"""Losses of one example against NumPy, and what they refuse."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import losses


def identity(x, *, key=None):
    return x


LOGITS = np.array([2.0, -1.0, 0.5, 30.0], np.float32)


@pytest.mark.parametrize("label", range(4))
def test_cross_entropy_is_minus_log_softmax_at_the_label(label):
    exact = LOGITS.astype(np.float64)
    wanted = np.log(np.exp(exact).sum()) - exact[label]
    got = losses.cross_entropy(identity, jnp.asarray(LOGITS), label)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_its_gradient_is_softmax_minus_the_one_hot_label():
    grad = jax.grad(lambda x: losses.cross_entropy(identity, x, 2))(jnp.asarray(LOGITS))
    softmax = np.exp(LOGITS - 30.0)
    softmax /= softmax.sum()
    np.testing.assert_allclose(grad, softmax - np.eye(4)[2], atol=1e-6)


def test_smoothing_is_cross_entropy_with_the_smoothed_target():
    target = 0.9 * np.eye(4)[2] + 0.1 / 4
    exact = LOGITS.astype(np.float64)
    log_softmax = exact - np.log(np.exp(exact).sum())
    smoothed = functools.partial(losses.cross_entropy, smoothing=0.1)
    loss, grad = jax.value_and_grad(lambda x: smoothed(identity, x, 2))(LOGITS)
    np.testing.assert_allclose(loss, -target @ log_softmax, rtol=1e-6)
    np.testing.assert_allclose(grad, np.exp(log_softmax) - target, atol=1e-6)


def test_a_class_ruled_out_costs_nothing_without_smoothing():
    logits = jnp.array([0.0, -jnp.inf, 0.0])
    loss = losses.cross_entropy(identity, logits, 0)
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, "0.1"])
def test_smoothing_outside_its_range_is_a_value_error(smoothing):
    with pytest.raises(ValueError, match=r"must be in \[0, 1\), such as 0.1, got"):
        losses.cross_entropy(identity, LOGITS, 0, smoothing=smoothing)


def test_huge_logits_do_not_overflow():
    loss = losses.cross_entropy(identity, jnp.array([1e4, -1e4]), 1)
    np.testing.assert_allclose(loss, 2e4)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_logits_are_summed_in_float32(dtype):
    loss = losses.cross_entropy(identity, jnp.zeros(1000, dtype), 3)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, np.log(1000), rtol=1e-6)


def test_squared_error_is_the_mean_over_outputs():
    x, target = jnp.array([1.0, 2.0, 5.0]), jnp.array([1.0, 4.0, 4.0])
    np.testing.assert_allclose(losses.squared_error(identity, x, target), 5 / 3)
    np.testing.assert_allclose(losses.squared_error(identity, jnp.array([3.0]), 1.0), 4)


def test_the_key_goes_to_a_model_that_takes_one_and_to_no_other():
    def noisy(x, *, key):
        return x + jax.random.normal(key, x.shape)

    key, x = jax.random.key(0), jnp.zeros(3)
    wanted = losses.cross_entropy(identity, jax.random.normal(key, (3,)), 1)
    np.testing.assert_allclose(losses.cross_entropy(noisy, x, 1, key=key), wanted)
    np.testing.assert_allclose(
        losses.cross_entropy(lambda x: x, x, 1, key=key), np.log(3), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("label", "match"),
    [
        (jnp.array(1.0), "got dtype float32"),
        (jnp.array(True), "got dtype bool"),
        (jnp.array([0, 1, 0, 0]), r"one label of shape \(\), got shape \(4,\)"),
        (4, r"must be in 0\.\.3, got 4"),
        (-1, r"must be in 0\.\.3, got -1"),
        (jnp.array(7, jnp.uint8), r"must be in 0\.\.3, got 7"),
    ],
)
def test_what_is_not_a_label_is_a_value_error(label, match):
    with pytest.raises(ValueError, match=match):
        losses.cross_entropy(identity, jnp.asarray(LOGITS), label)


def test_a_label_that_compiled_code_cannot_check_gives_nan():
    compiled = jax.jit(lambda label: losses.cross_entropy(identity, jnp.ones(4), label))
    assert np.isnan(compiled(4))
    assert np.isnan(compiled(-1))
    assert np.isfinite(compiled(3))


def test_a_target_of_another_shape_is_a_value_error():
    for target in (jnp.ones(2), jnp.ones((3, 1)), 1.0):
        with pytest.raises(ValueError, match=r"gives shape \(3,\)"):
            losses.squared_error(identity, jnp.ones(3), target)


def test_a_model_that_gives_no_logits_is_a_value_error():
    for out in (jnp.ones((2, 2)), jnp.ones(3, jnp.int32), jnp.ones(())):
        with pytest.raises(ValueError, match="one floating-point logit a class"):
            losses.cross_entropy(lambda x, out=out: out, jnp.ones(1), 0)


def test_a_bad_label_in_compiled_code_is_a_nan_in_the_gradient_too():
    grad = jax.jit(jax.grad(lambda x, label: losses.cross_entropy(identity, x, label)))
    assert np.all(np.isnan(grad(jnp.ones(4), 4)))
    assert np.all(np.isfinite(grad(jnp.ones(4), 3)))


def test_a_target_that_is_a_list_is_a_value_error():
    with pytest.raises(ValueError, match=r"got list: convert it with jnp\.asarray"):
        losses.squared_error(identity, jnp.ones(2), [1.0, 2.0])
