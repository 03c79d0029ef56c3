"""The noise scale that a callback measures while a model is trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import Ensemble, NoiseScale, fit, init_state


def linear(w, x):
    """The gradient of an example is the example itself, wherever `w` is."""
    return w @ x


# Gradients of mean (1, 2), and their covariance over all of the data.
DATA = np.random.default_rng(0).normal(size=(512, 2)) @ [[3.0, 1.0], [0.0, 2.0]]
DATA = (DATA - DATA.mean(axis=0) + [1.0, 2.0]).astype(np.float32)
SGD = optax.sgd(0.0)
TRACE, SQUARE = np.trace(np.cov(DATA.T, bias=True)), 5.0


def state_after(updates):
    state = init_state(jnp.zeros(2), SGD, key=jax.random.key(0))
    return eqx.tree_at(lambda s: s.step, state, jnp.asarray(updates, jnp.int32))


def run(noise, epochs=3, model=None, **changed):
    options = {
        "loss": linear,
        "optimizer": SGD,
        "key": jax.random.key(0),
        "epochs": epochs,
        "batch_size": 256,
        "callbacks": [noise],
        "progress": False,
    } | changed
    return fit(jnp.zeros(2) if model is None else model, (DATA,), **options).history


@pytest.fixture(scope="module")
def measured():
    """What is measured after each of three epochs, without a memory."""
    noise = NoiseScale((DATA,), batch_size=16, batches=64, decay=0)
    return run(noise), noise


def test_it_measures_the_covariance_and_the_mean_of_the_data(measured):
    history, noise = measured
    # Of 3 * 64 batches of 16: the mean has 1 / 3072 of the variance, about 0.07.
    np.testing.assert_allclose(history["grad_trace"].mean(), TRACE, rtol=0.05)
    np.testing.assert_allclose(history["grad_square"].mean(), SQUARE, rtol=0.1)
    ratio = history["grad_trace"] / history["grad_square"]
    np.testing.assert_allclose(history["noise_scale"], ratio, rtol=1e-6)
    # About 14 / 5, of which the nearest power of two is 2 or 4.
    assert noise.suggested_batch_size == 2 ** round(np.log2(ratio[-1]))


def test_numerator_and_denominator_are_averaged_before_they_are_divided(measured):
    history, _ = measured
    running = run(NoiseScale((DATA,), batch_size=16, batches=64, decay=0.5))
    for name in ("grad_trace", "grad_square"):
        a, b, c = history[name]
        want = [a, (b + a / 2) / 1.5, (c + b / 2 + a / 4) / 1.75]
        np.testing.assert_allclose(running[name], want, rtol=1e-5)
    ratio = running["grad_trace"] / running["grad_square"]
    np.testing.assert_allclose(running["noise_scale"], ratio, rtol=1e-6)


class Resumed(NoiseScale):
    """As of a run that goes on, which loads its state after `on_start`."""

    def on_start(self, state, history):
        super().on_start(state, history)
        self.load_state(self.saved, state)


def test_the_running_averages_are_saved_and_go_on():
    options = {"batch_size": 16, "batches": 64}
    want = run(NoiseScale((DATA,), **options))
    first, rest = NoiseScale((DATA,), **options), Resumed((DATA,), **options)
    assert first.save_state() is None
    run(first, epochs=2)
    rest.saved = jax.tree.map(np.asarray, first.save_state())
    got = run(rest, model=state_after(4), key=None)
    assert got["noise_scale"].tolist() == want["noise_scale"][2:].tolist()


def test_it_sees_the_loss_as_it_is_trained_and_each_member():
    # Twice the example is four times the covariance; a member has its own scale.
    noise = NoiseScale((DATA,), batch_size=16, batches=64)
    loss = lambda w, x: linear(w["at"], x) * w["factor"]
    models = [
        {"at": jnp.zeros(2), "factor": jnp.array(factor)} for factor in (1.0, 3.0)
    ]
    history = run(
        noise,
        epochs=1,
        model=Ensemble(models),
        loss=loss,
        augment=lambda x, key: 2 * x,
        trainable="at",
    )
    assert history["noise_scale"].shape == (1, 2)
    want = [4 * TRACE, 36 * TRACE]
    np.testing.assert_allclose(history["grad_trace"][0], want, rtol=0.1)
    assert noise.suggested_batch_size.shape == (2,)


def test_the_suggestion_stays_within_the_data():
    noise = NoiseScale((DATA,))
    noise.load_state({"square": -1.0, "trace": 1.0, "weight": 1.0}, state_after(0))
    assert noise.suggested_batch_size == 512
    noise.load_state({"square": 1.0, "trace": 0.1, "weight": 1.0}, state_after(0))
    assert noise.suggested_batch_size == 1


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="data must be a tuple of the arrays"):
        NoiseScale(DATA)
    with pytest.raises(ValueError, match="batch_size must be at least 2, got 1"):
        NoiseScale((DATA,), batch_size=1)
    with pytest.raises(ValueError, match=r"decay .* must be in \[0, 1\), .* got 1"):
        NoiseScale((DATA,), decay=1)
    with pytest.raises(ValueError, match="nothing has been measured yet"):
        _ = NoiseScale((DATA,)).suggested_batch_size
