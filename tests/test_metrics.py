"""Metrics: sums that merge exactly, divided once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import losses, metrics
from eqx_mlp.metrics import Metric, sum_metric


def identity(x, *, key=None):
    return x


def over(metric, logits, labels, weight=None):
    return sum_metric(lambda x, y: metric(identity, x, y), weight)(logits, labels)


def test_four_right_then_one_wrong_is_four_fifths_not_a_half():
    right = over(metrics.accuracy, jnp.eye(4), jnp.arange(4))
    wrong = over(metrics.accuracy, jnp.eye(4)[:1], jnp.array([2]))
    assert float(right.merge(wrong).compute()) == pytest.approx(0.8)


def test_merging_does_not_depend_on_the_split():
    key = jax.random.key(0)
    logits = jax.random.normal(key, (23, 5))
    labels = jax.random.randint(key, (23,), 0, 5)
    predicted = np.argmax(logits, axis=1)
    whole = over(metrics.confusion_matrix, logits, labels)
    confusion = np.zeros((5, 5))
    np.add.at(confusion, (np.asarray(labels), predicted), 1)
    np.testing.assert_array_equal(whole.compute(), confusion)
    for split in (1, 9, 22):
        parts = [
            over(metrics.confusion_matrix, logits[s], labels[s])
            for s in (slice(split), slice(split, None))
        ]
        np.testing.assert_array_equal(parts[0].merge(parts[1]).compute(), confusion)


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_top_k_is_membership_in_the_k_largest(k):
    key = jax.random.key(1)
    logits = jax.random.normal(key, (50, 6))
    labels = jax.random.randint(key, (50,), 0, 6)
    largest = np.argsort(-np.asarray(logits), axis=1)[:, :k]
    wanted = np.mean(
        [y in row for y, row in zip(np.asarray(labels), largest, strict=True)]
    )
    got = over(metrics.top_k(k), logits, labels).compute()
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_weights_count_and_weight_zero_is_nothing_even_where_it_is_nan():
    values = jnp.array([1.0, 3.0, jnp.nan])
    mean = sum_metric(lambda x: x, jnp.array([1.0, 3.0, 0.0]))(values)
    assert mean.compute() == (1 + 9) / 4
    counts = over(
        metrics.confusion_matrix, jnp.eye(3), jnp.arange(3), jnp.array([2.0, 1.0, 0.0])
    )
    np.testing.assert_array_equal(np.diag(counts.compute()), [2, 1, 0])


def test_a_mean_over_nothing_is_a_value_error_and_not_nan():
    nothing = sum_metric(lambda x: x, jnp.zeros(2))(jnp.ones(2))
    with pytest.raises(ValueError, match="over no example"):
        nothing.compute()


def test_metrics_are_pytrees_that_merge_inside_compiled_code():
    @jax.jit
    def total(values):
        def body(sums, value):
            return sums.merge(Metric(value, jnp.ones(()))), None

        zero = Metric(jnp.zeros(()), jnp.zeros(()))
        return jax.lax.scan(body, zero, values)[0]

    assert total(jnp.array([1.0, 2.0, 6.0])).compute() == 3


def test_what_is_not_one_number_is_a_value_error():
    with pytest.raises(ValueError, match="one number or a Metric"):
        sum_metric(lambda x: x)(jnp.ones((3, 2)))


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_top_k_wants_a_count(k):
    with pytest.raises((ValueError, TypeError), match="k"):
        metrics.top_k(k)


@pytest.mark.parametrize(
    "metric", [metrics.accuracy, metrics.top_k(2), metrics.confusion_matrix]
)
def test_labels_are_checked_as_the_losses_check_them(metric):
    with pytest.raises(ValueError, match=r"must be in 0\.\.2, got 3"):
        metric(identity, jnp.ones(3), 3)
    with pytest.raises(ValueError, match="got dtype float32"):
        metric(identity, jnp.ones(3), jnp.array(1.0))


def test_metrics_and_losses_compute_in_float64_too():
    if hasattr(jax, "enable_x64"):
        enable_x64 = jax.enable_x64
    else:  # before jax 0.8
        from jax.experimental import enable_x64
    with enable_x64(True):
        x = jnp.array([0.1, 0.9, 0.3])
        for metric in (metrics.accuracy, metrics.top_k(2), metrics.confusion_matrix):
            assert metric(identity, x, 1).numerator.dtype == np.float64
        loss = losses.cross_entropy(identity, x, 1)
        exact = np.log(np.exp([0.1, 0.9, 0.3]).sum()) - 0.9
        np.testing.assert_allclose(loss, exact, rtol=1e-14)
