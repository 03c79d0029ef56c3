"""The learning-rate range test, by hand."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import MLP, Ensemble, RateRange, learning_rate_range, losses

SQUARE = lambda w, x: (w - x) ** 2


def run(**changed):
    options = {
        "loss": SQUARE,
        "optimizer": optax.sgd,
        "key": jax.random.key(0),
        "batch_size": 4,
        "low": 1e-3,
        "steps": 40,
        "smoothing": 0.5,
    } | changed
    return learning_rate_range(jnp.array(1.0), (jnp.zeros(8),), **options)


def by_hand(rates):
    w, loss, smooth, average = 1.0, [], [], 0.0
    for i, rate in enumerate(rates):
        loss.append(w**2)
        average = average / 2 + loss[-1] / 2
        smooth.append(average / (1 - 0.5 ** (i + 1)))
        w -= rate * 2 * w
    return np.array(loss), np.array(smooth)


def test_the_losses_of_gradient_descent_are_those_by_hand():
    found = run(high=0.1)
    rates = 1e-3 * 100 ** (np.arange(40) / 39)
    loss, smooth = by_hand(rates)
    np.testing.assert_allclose(found.rate, rates, rtol=1e-5)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-4)
    np.testing.assert_allclose(found.smooth, smooth, rtol=1e-4)


def test_it_is_cut_where_the_loss_is_four_times_its_lowest():
    found = run(low=0.9, high=1.8, smoothing=0.0)  # above a rate of 1 it diverges
    loss, _ = by_hand(0.9 * 2 ** (np.arange(40) / 39))
    end = next(i for i in range(40) if loss[i] > 4 * loss[: i + 1].min())
    assert 2 < end < 40
    assert len(found.rate) == len(found.loss) == len(found.smooth) == end


def test_examples_are_seen_in_the_order_of_epochs():
    # Each epoch of two steps sees every example once: the sum of its losses is fixed.
    found = learning_rate_range(
        {"w": jnp.zeros(2), "b": jnp.array(0.0)},
        (jnp.arange(8.0),),
        loss=lambda model, x: x + 0 * jnp.sum(model["w"]),
        key=jax.random.key(1),
        batch_size=4,
        steps=6,
    )
    np.testing.assert_allclose(found.loss.reshape(3, 2).sum(axis=1), 2 * 3.5)
    assert len({*found.loss[::2].tolist()}) > 1


def test_the_steepest_fall_is_where_a_known_curve_has_it():
    rate = np.geomspace(1e-5, 1e2, 71)
    curve = np.where(rate < 1, -np.tanh(np.log(rate / 1e-2)), 150 - 50 * np.log10(rate))
    found = RateRange(rate, curve, curve)
    # The curve is steeper yet at the far end, but lies above its lowest value there.
    assert found.steepest == pytest.approx(1e-2, rel=1e-6)


def test_the_plot_shows_both_losses_and_the_steepest_fall():
    rate = np.geomspace(1e-4, 1, 5)
    found = RateRange(
        rate, np.array([5.0, 4, 2, 1, 3]), np.array([5.0, 4.5, 3, 2, 2.5])
    )
    ax = found.plot()
    each, smooth, line = ax.get_lines()
    np.testing.assert_array_equal(each.get_xydata().T, [found.rate, found.loss])
    np.testing.assert_array_equal(smooth.get_xydata().T, [found.rate, found.smooth])
    assert line.get_xdata() == [found.steepest, found.steepest]
    assert ax.get_xscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("learning rate", "loss")
    assert found.plot(ax) is ax


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"eqx-mlp\[plot\]"):
        RateRange(np.ones(2), np.ones(2), np.ones(2)).plot()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"optimizer": optax.sgd(0.1)}, "a function of a learning rate"),
        ({"low": 0.0}, "0 < low < high, got low=0.0"),
        ({"high": 1e-4}, "0 < low < high"),
        ({"steps": 1}, "at least 2"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"smoothing": 1.0}, "smoothing must be in"),
        ({"key": None}, "needs a random key"),
        ({"loss": lambda w, x: w / 0}, "diverges at once"),
    ],
)
def test_bad_arguments_are_value_errors(changed, match):
    with pytest.raises(ValueError, match=match):
        run(**changed)


def test_a_bad_label_and_an_ensemble_are_named():
    model = MLP(2, 2, (), key=jax.random.key(0))
    options = {"loss": losses.cross_entropy, "key": jax.random.key(1), "batch_size": 2}
    with pytest.raises(ValueError, match=r"must be in 0\.\.1, got 5"):
        learning_rate_range(model, (jnp.ones((2, 2)), jnp.array([0, 5])), **options)
    with pytest.raises(ValueError, match=r"takes one model, such as ensemble\[0\]"):
        learning_rate_range(Ensemble([model]), (jnp.ones((2, 2)),), **options)
