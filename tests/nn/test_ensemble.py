"""Ensembles: what is stacked, what they predict, and that members train as if alone."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Ensemble,
    clipped_grad,
    decay_mask,
    ema_model,
    evaluate,
    fit,
    init_state,
    losses,
    make_step,
    metrics,
    predict,
    with_ema,
)
from eqx_mlp.data import epoch_permutation

OPTIMIZER = optax.adam(1e-2)


class Logits(eqx.Module):
    """A model whose outputs are its parameters, but for an offset."""

    logits: jax.Array

    def __call__(self, x):
        return self.logits + x


def model_of(seed, **options):
    return MLP(5, 3, (4,), **options, key=jax.random.key(seed))


def data_of(n=22):
    x = jax.random.normal(jax.random.key(8), (n, 5))
    return x, jnp.arange(n) % 3


def options(**changed):
    return {
        "loss": losses.cross_entropy,
        "optimizer": OPTIMIZER,
        "key": jax.random.key(5),
        "epochs": 2,
        "batch_size": 8,
        "metrics": {"accuracy": metrics.accuracy},
        "progress": False,
    } | changed


def assert_same(a, b):
    """Equal leaf by leaf, arrays to float32 rounding."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        if eqx.is_array(x):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        else:
            assert type(x) is type(y)
            assert x == pytest.approx(y) if isinstance(x, float) else x == y


def test_arrays_are_stacked_and_what_is_static_is_not():
    models = [model_of(0, dropout_rate=0.5), model_of(1, dropout_rate=0.5)]
    ensemble = Ensemble(models)
    assert ensemble.members.layers[0].weight.shape == (2, 4, 5)
    assert ensemble.members.activation is models[0].activation
    assert ensemble.members.dropout == models[0].dropout
    assert ensemble.members.in_size == 5
    assert len(ensemble) == 2
    for own, model in zip(ensemble, models, strict=True):
        assert eqx.tree_equal(own, model)
    assert eqx.tree_equal(ensemble[-1], models[1])
    with pytest.raises(IndexError, match="member 2 of an ensemble of 2"):
        ensemble[2]


def test_members_equal_the_models_trained_alone_by_seed_rate_decay_and_dropout():
    rates, decays, dropouts = [1e-2, 1e-3], [0.5, 0.0], [0.2, 0.6]
    models = [model_of(i, dropout_rate=p) for i, p in enumerate(dropouts)]
    adamw = optax.inject_hyperparams(optax.adamw, static_args="mask")

    def run(model, rate, decay):
        inner = adamw(learning_rate=rate, weight_decay=decay, mask=decay_mask)
        optimizer = with_ema(inner, 0.5)
        return fit(model, data_of(), **options(optimizer=optimizer))

    together = run(Ensemble(models), jnp.asarray(rates), np.asarray(decays))
    assert together.model.members.dropout.p.shape == (2,)
    assert eqx.tree_equal(
        together.model.members.dropout, Ensemble(models).members.dropout
    )
    assert together.state.step == 6
    average = ema_model(together.state)
    for i, (model, rate, decay) in enumerate(zip(models, rates, decays, strict=True)):
        alone = run(model, rate, decay)
        assert_same(together.model[i], alone.model)
        own = jax.tree.map(lambda x, i=i: x[i], together.state.opt_state)
        assert_same(own.inner.inner_state, alone.state.opt_state.inner.inner_state)
        assert_same(average[i], ema_model(alone.state))
        for name, values in alone.history.items():
            if "seconds" not in name:
                assert together.history[name].shape == (*values.shape, 2), name
                np.testing.assert_allclose(
                    together.history[name][:, i], values, rtol=1e-5, atol=1e-6
                )
    assert not np.allclose(*together.history["loss"].T, rtol=0.01)


def test_an_ensemble_goes_on_from_its_state_bit_for_bit():
    ensemble = Ensemble([model_of(0, dropout_rate=0.5), model_of(1, dropout_rate=0.5)])
    validated = options(validation=data_of(7), metrics={})
    whole = fit(ensemble, data_of(), **validated)
    half = fit(ensemble, data_of(), **validated | {"epochs": 1})
    rest = fit(half.state, data_of(), **validated | {"key": None})
    assert eqx.tree_equal(rest.state, whole.state)
    assert whole.history["val_loss"].shape == (2, 2)
    np.testing.assert_array_equal(
        rest.history["val_loss"], whole.history["val_loss"][1:]
    )
    with pytest.raises(ValueError, match="made for another optimizer"):
        fit(half.state, data_of(), **options(key=None, optimizer=optax.sgd(0.1)))


def test_a_step_clips_and_freezes_each_member_as_if_alone():
    models = [model_of(0), model_of(1)]
    optimizer = optax.sgd(1.0)
    made = dict(
        gradient=functools.partial(clipped_grad, l2_clip_norm=0.1, normalize_by=4.0),
        trainable="layers.1",
    )
    step = eqx.filter_jit(make_step(losses.cross_entropy, optimizer, **made))

    def after(model):
        state = init_state(
            model, optimizer, key=jax.random.key(0), trainable=made["trainable"]
        )
        return step(state, data_of(4))[0].model

    together = after(Ensemble(models))
    for own, model in zip(together, models, strict=True):
        assert_same(own, after(model))
        assert eqx.tree_equal(own.layers[0], model.layers[0])


def test_a_dropout_rate_that_is_an_array_is_never_trained():
    model = model_of(0, dropout_rate=0.5)
    rate = jnp.asarray(0.5)
    model = eqx.tree_at(lambda m: m.dropout.p, model, rate)
    optimizer = optax.adamw(0.1, weight_decay=1.0)
    for trainable in (eqx.is_inexact_array, "**", True, None):
        state = init_state(model, optimizer, key=jax.random.key(0), trainable=trainable)
        assert state.opt_state[0].mu.dropout.p is None
        assert state.opt_state[0].mu.layers[0].weight.shape == (4, 5)
    step = eqx.filter_jit(make_step(losses.cross_entropy, optimizer))
    assert step(state, data_of(4))[0].model.dropout.p == rate


def test_evaluate_gives_a_value_a_member_and_predict_their_outputs():
    models = [model_of(0, dropout_rate=0.5), model_of(1, dropout_rate=0.5)]
    ensemble, (x, y) = Ensemble(models), data_of()
    wanted = {
        "loss": losses.cross_entropy,
        "confusion": metrics.confusion_matrix,
    }
    together = evaluate(ensemble, (x, y), metrics=wanted, batch_size=5)
    outputs = predict(ensemble, x, batch_size=5)
    assert outputs.shape == (22, 2, 3)
    for i, model in enumerate(models):
        alone = evaluate(model, (x, y), metrics=wanted, batch_size=5)
        np.testing.assert_allclose(together["loss"][i], alone["loss"], rtol=1e-6)
        np.testing.assert_array_equal(together["confusion"][i], alone["confusion"])
        np.testing.assert_allclose(outputs[:, i], predict(model, x), rtol=1e-5)
    with pytest.raises(ValueError, match=r"a label must be in 0\.\.2, got 3"):
        evaluate(ensemble, (x, y + 1), metrics=wanted)
    # In the second of three batches of the first epoch.
    wrong = y.at[epoch_permutation(jax.random.key(5), 0, 22)[11]].set(3)
    with pytest.raises(ValueError, match=r"a label must be in 0\.\.2, got 3"):
        fit(ensemble, (x, wrong), **options(epochs=1, metrics={}))


def test_probabilities_are_averaged_and_disagreement_is_mutual_information():
    p = np.array([[0.8, 0.2], [0.4, 0.6]])
    ensemble = Ensemble([Logits(jnp.asarray(np.log(row), jnp.float32)) for row in p])
    mean = ensemble.log_probability(jnp.array(7.0))  # a common offset changes nothing
    np.testing.assert_allclose(np.exp(mean), [0.6, 0.4], rtol=1e-6)
    entropy = lambda p: -np.sum(p * np.log(p), axis=-1)
    np.testing.assert_allclose(
        ensemble.disagreement(jnp.array(0.0)),
        entropy(p.mean(0)) - entropy(p).mean(),
        rtol=1e-5,
    )
    # -log 0.4, by the mean probability and not by the mean loss.
    data = (jnp.zeros(1), jnp.array([1]))
    value = evaluate(
        ensemble.log_probability, data, metrics={"loss": losses.cross_entropy}
    )
    assert value["loss"] == pytest.approx(-np.log(0.4), rel=1e-6)
    certain = Ensemble(
        [Logits(jnp.array([0.0, -jnp.inf])), Logits(jnp.array([-200.0, 0]))]
    )
    assert certain.disagreement(jnp.array(0.0)) == pytest.approx(np.log(2), rel=1e-6)
    alike = Ensemble([ensemble[0], ensemble[0]])
    assert 0 <= alike.disagreement(jnp.array(0.3)) < 1e-7


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Ensemble([]), "takes a list of models"),
        (lambda: Ensemble(model_of(0)), "takes a list of models"),
        (lambda: Ensemble([jax.nn.relu]), "hold no array"),
        (
            lambda: Ensemble([model_of(0), MLP(5, 3, (6,), key=jax.random.key(0))]),
            r"layers\.0\.weight models\[0\] has float32\[4, 5\] and models\[1\] has "
            r"float32\[6, 5\]",
        ),
        (
            lambda: Ensemble([model_of(0), model_of(1, activation=jax.nn.tanh)]),
            "at activation models",
        ),
        (
            lambda: Ensemble([model_of(0), eqx.nn.inference_mode(model_of(1))]),
            r"at dropout\.inference models\[0\] has False and models\[1\] has True",
        ),
        (
            lambda: Ensemble([model_of(0), model_of(1, use_bias=False)]),
            r"only one of them has layers\.0\.bias",
        ),
        (
            lambda: Ensemble(
                [
                    eqx.nn.LayerNorm(3),
                    eqx.nn.LayerNorm(3, eps=1e-3),
                ]
            ),
            "their static fields differ",
        ),
        (
            lambda: init_state(
                Ensemble([model_of(0), model_of(1)]),
                optax.inject_hyperparams(optax.sgd)(learning_rate=jnp.ones(3)),
                key=jax.random.key(0),
            ),
            r"'learning_rate'\] must be one number, or one for each of the 2 members",
        ),
        (
            lambda: Ensemble([Logits(jnp.ones(()))]).disagreement(jnp.ones(())),
            r"one floating-point logit a class, shape \(classes,\), got shape \(\)",
        ),
    ],
)
def test_bad_arguments_are_value_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()
