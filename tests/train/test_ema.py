"""The moving average of the weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    ema_model,
    evaluate,
    fit,
    init_state,
    losses,
    make_step,
    metrics,
    with_ema,
)

ADDS_X = lambda w, x: -w * x  # with sgd(1) an update adds x


@pytest.mark.parametrize(
    ("debias", "averages"),
    [
        # Weights 5, 6, 4, 8 by updates of 1, -2, 4. From zero, divided by 1 - 0.5**t:
        # 6; (6/4 + 4/2) / (3/4); (6/8 + 4/4 + 8/2) / (7/8).
        (True, [6.0, 3.5 / 0.75, 5.75 / 0.875]),
        # From the first weight: 5/2 + 6/2; 5.5/2 + 4/2; 4.75/2 + 8/2.
        (False, [5.5, 4.75, 6.375]),
    ],
)
def test_the_average_over_three_updates_is_the_one_by_hand(debias, averages):
    optimizer = with_ema(optax.sgd(1.0), decay=0.5, debias=debias)
    state = init_state(jnp.array(5.0), optimizer, key=jax.random.key(0))
    assert ema_model(state) == 5
    step = jax.jit(make_step(ADDS_X, optimizer))
    for x, weight, average in zip((1, -2, 4), (6, 4, 8), averages, strict=True):
        state, _ = step(state, (jnp.full(1, x, jnp.float32),))
        assert state.model == weight
        np.testing.assert_allclose(ema_model(state), average, rtol=1e-6)


def test_the_average_changes_no_update_and_takes_what_is_trained_alone(getkey):
    model = MLP(5, 3, (4,), dropout_rate=0.5, key=getkey())
    x, y = jax.random.normal(getkey(), (4, 5)), jnp.arange(4) % 3

    def run(optimizer):
        state = init_state(
            model, optimizer, key=jax.random.key(0), trainable="**.weight"
        )
        step = make_step(losses.cross_entropy, optimizer, trainable="**.weight")
        return eqx.filter_jit(step)(state, (x, y))[0]

    plain, averaged = run(optax.adam(0.1)), run(with_ema(optax.adam(0.1), 0.9))
    assert eqx.tree_equal(plain.model, averaged.model)
    assert eqx.tree_equal(plain.opt_state, averaged.opt_state.inner)
    shapes = [p.shape for p in jax.tree.leaves(averaged.opt_state.average)]
    assert shapes == [(4, 5), (3, 4)]
    ema = ema_model(averaged)
    assert ema.activation is model.activation
    assert eqx.tree_equal(ema.layers[0].bias, model.layers[0].bias)
    # After one update the average is the updated weight.
    np.testing.assert_allclose(
        ema.layers[0].weight, averaged.model.layers[0].weight, rtol=1e-6
    )


def test_the_average_of_bfloat16_parameters_is_kept_in_float32():
    optimizer = with_ema(optax.sgd(0.0), decay=0.999, debias=False)
    state = init_state(jnp.ones(2, jnp.bfloat16), optimizer, key=jax.random.key(0))
    assert state.opt_state.average.dtype == jnp.float32
    state = eqx.tree_at(lambda s: s.opt_state.average, state, jnp.zeros(2))
    step = make_step(lambda w, x: jnp.sum(w * x), optimizer)
    state, _ = step(state, (jnp.ones((1, 2), jnp.bfloat16),))
    np.testing.assert_allclose(state.opt_state.average, 0.001, rtol=1e-4)
    assert ema_model(state).dtype == jnp.bfloat16


def test_accumulation_over_steps_averages_over_updates_alone():
    optimizer = optax.MultiSteps(with_ema(optax.sgd(1.0), 0.5), every_k_schedule=2)
    state = init_state(jnp.array(0.0), optimizer, key=jax.random.key(0))
    step = jax.jit(make_step(ADDS_X, optimizer))
    for x in (1, 3, 4, 6):  # two updates, by 2 and by 5
        state, _ = step(state, (jnp.full(1, x, jnp.float32),))
    assert state.model == 7
    np.testing.assert_allclose(ema_model(state), (2 / 4 + 7 / 2) / 0.75, rtol=1e-6)


def test_fit_validates_the_model_and_its_average_and_resumes_both(getkey):
    x = jax.random.normal(getkey(), (22, 5))
    y = jnp.arange(22) % 3
    model = MLP(5, 3, (4,), dropout_rate=0.5, key=getkey())
    options = dict(
        loss=losses.cross_entropy,
        optimizer=with_ema(optax.adam(1e-2), 0.8),
        batch_size=8,
        validation=(x[:7], y[:7]),
        metrics={"accuracy": metrics.accuracy},
        progress=False,
    )
    whole = fit(model, (x, y), key=jax.random.key(0), epochs=2, **options)
    for prefix, trained in (("", whole.model), ("ema_", ema_model(whole.state))):
        values = evaluate(
            trained, (x[:7], y[:7]), metrics={"loss": losses.cross_entropy}
        )
        history = whole.history[f"{prefix}val_loss"]
        assert history.shape == (2,)
        np.testing.assert_allclose(history[-1], values["loss"], rtol=1e-6)
        assert whole.history[f"{prefix}val_accuracy"].shape == (2,)
    assert whole.history["ema_val_loss"][-1] != whole.history["val_loss"][-1]
    half = fit(model, (x, y), key=jax.random.key(0), epochs=1, **options)
    rest = fit(half.state, (x, y), epochs=2, **options)
    assert eqx.tree_equal(rest.state, whole.state)
    without = {k: v for k, v in options.items() if k != "validation"}
    short = fit(model, (x, y), key=jax.random.key(0), epochs=1, **without)
    assert not [name for name in short.history if "val" in name]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: with_ema("adam", 0.5), "optax"),
        (lambda: with_ema(optax.sgd(1.0), 1.0), r"must be in \[0, 1\), such as 0.999"),
        (lambda: with_ema(optax.sgd(1.0), "0.9"), "decay is what the average keeps"),
        (
            lambda: ema_model(
                init_state(jnp.ones(1), optax.sgd(1.0), key=jax.random.key(0))
            ),
            r"with_ema\(optimizer, decay=0.999\)",
        ),
    ],
)
def test_bad_arguments_are_value_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()
