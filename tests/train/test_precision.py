"""Computing in a lower precision than parameters are kept in, and scaling losses."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    clipped_grad,
    fit,
    init_state,
    losses,
    make_step,
    mean_grad,
    mixed_precision,
    with_loss_scale,
)


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree) if eqx.is_array(x)]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_model_computes_in_the_dtype_and_all_else_is_float32(dtype, getkey):
    seen = []

    class Watched(eqx.Module):
        mlp: MLP
        steps: jax.Array

        def __call__(self, x, *, key=None):
            out = self.mlp(x)
            seen.append((x.dtype, self.mlp.layers[0].weight.dtype, out.dtype))
            assert self.steps.dtype == jnp.int32
            return out

    model = Watched(MLP(5, 3, (4,), key=getkey()), jnp.array(1, jnp.int32))
    loss = mixed_precision(losses.squared_error, dtype)
    # A target that float16 could not hold is not cast.
    x, y = jax.random.normal(getkey(), (4, 5)), jnp.full((4, 3), 1e6)
    grads, stats = mean_grad(loss)(model, x, y)
    assert set(seen) == {3 * (jnp.dtype(dtype),)}
    assert stats.value.dtype == jnp.float32
    assert np.all(np.isfinite(stats.value))
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    product = mixed_precision(lambda w, x: w * x, dtype)
    assert product(jnp.array(2.0), jnp.array(3.0)).dtype == jnp.float32


def test_training_in_bfloat16_is_near_training_in_float32(getkey):
    x = jax.random.normal(getkey(), (32, 5))
    y = (x[:, 0] > 0).astype(jnp.int32)
    model = MLP(5, 2, (16,), dropout_rate=0.1, key=getkey())

    def run(loss):
        return fit(
            model,
            (x, y),
            loss=loss,
            optimizer=optax.adam(1e-2),
            key=jax.random.key(1),
            epochs=3,
            batch_size=8,
            progress=False,
        )

    wide, half = run(losses.cross_entropy), run(mixed_precision(losses.cross_entropy))
    assert half.model.layers[0].weight.dtype == jnp.float32
    # bfloat16 has 8 bits: 0.4 % a rounding, of which each path has a few.
    np.testing.assert_allclose(half.history["loss"], wide.history["loss"], rtol=2e-2)
    assert not np.array_equal(half.history["loss"], wide.history["loss"])


def test_a_metric_in_lower_precision_keeps_its_sums_in_float32():
    from eqx_mlp import metrics

    accuracy = mixed_precision(metrics.accuracy)
    measured = accuracy(lambda x: x, jnp.array([0.1, 0.9]), 1)
    assert measured.numerator.dtype == jnp.float32
    assert measured.compute() == 1


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: mixed_precision(losses.cross_entropy, jnp.int8), "floating dtype"),
        (lambda: mixed_precision(losses.cross_entropy, "half of it"), "floating dtype"),
        (lambda: mixed_precision(3), "takes a loss"),
        (lambda: with_loss_scale("adam"), "optax"),
        (lambda: with_loss_scale(optax.sgd(1.0), initial_scale=0.5), "between 1 and"),
        (lambda: with_loss_scale(optax.sgd(1.0), double_after=0), "integer >= 1"),
    ],
)
def test_bad_arguments_are_value_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def tiny(w, x):  # its derivative by w is 1e-3 * x, for x = 1e-5 below float16's least
    return 1e-3 * (w * x)


def one_step(loss, optimizer, x, model=None, **options):
    model = jnp.array(1.0) if model is None else model
    state = init_state(model, optimizer, key=jax.random.key(0))
    return make_step(loss, optimizer, **options)(state, (x,))[0], state


def test_a_gradient_that_float16_cannot_hold_survives_by_the_loss_scale():
    loss = mixed_precision(tiny, jnp.float16)
    x = jnp.full(2, 1e-5)
    lost, _ = one_step(loss, optax.sgd(1e8), x)
    assert lost.model == 1
    kept, _ = one_step(loss, with_loss_scale(optax.sgd(1e8)), x)
    # 1e8 * 1e-3 * 1e-5, where float16 has 1e-5 to 2**-25 only, half of 0.6 %.
    np.testing.assert_allclose(1 - kept.model, 1.0, rtol=4e-3)


def test_a_step_whose_gradient_is_not_finite_is_skipped_and_halves_the_scale():
    loss = mixed_precision(lambda w, x: w * x, jnp.float16)
    optimizer = with_loss_scale(optax.adam(0.1), initial_scale=2.0**15)
    state = init_state(jnp.array(1.0), optimizer, key=jax.random.key(0))
    step = jax.jit(make_step(loss, optimizer))
    # 4 * 2**15 and 4 * 2**14 are above float16's largest number, 65504.
    for scale in (2.0**14, 2.0**13):
        before, (state, _) = state, step(state, (jnp.full(1, 4.0),))
        assert state.opt_state.scale == scale
        assert bits(state.model) == bits(before.model)
        assert bits(state.opt_state.inner) == bits(before.opt_state.inner)
    state, _ = step(state, (jnp.full(1, 4.0),))
    assert state.opt_state.scale == 2.0**13
    np.testing.assert_allclose(state.model, 0.9, rtol=1e-6)  # Adam's first step
    np.testing.assert_allclose(state.opt_state.inner[0].mu, 0.1 * 4, rtol=1e-6)
    assert state.step == 3


def test_the_scale_doubles_after_so_many_finite_steps_in_a_row():
    loss = lambda w, x: w * x
    optimizer = with_loss_scale(optax.sgd(0.1), initial_scale=4.0, double_after=2)
    state = init_state(jnp.array(1.0), optimizer, key=jax.random.key(0))
    step = jax.jit(make_step(loss, optimizer))
    scales = []
    for x in (1, 1, 1, 1, jnp.inf, 1, 1):
        state, _ = step(state, (jnp.full(1, x, jnp.float32),))
        scales.append(float(state.opt_state.scale))
    assert scales == [4, 8, 8, 16, 8, 8, 16]


def test_a_power_of_two_as_scale_changes_no_bit_in_float32(getkey):
    x, y = jax.random.normal(getkey(), (4, 5)), jnp.arange(4) % 3
    model = MLP(5, 3, (4,), dropout_rate=0.5, key=getkey())

    def run(optimizer, gradient):
        state = init_state(model, optimizer, key=jax.random.key(0))
        step = make_step(losses.cross_entropy, optimizer, gradient=gradient)
        return eqx.filter_jit(step)(state, (x, y))[0].model

    for gradient in (
        mean_grad,
        # Clipped at its own length, not at the scaled one.
        functools.partial(clipped_grad, l2_clip_norm=0.5, method="vmap"),
    ):
        plain = run(optax.sgd(0.1), gradient)
        scaled = run(with_loss_scale(optax.sgd(0.1)), gradient)
        assert bits(plain) == bits(scaled)
    engine = functools.partial(clipped_grad, l2_clip_norm=0.5)
    scaled = run(with_loss_scale(optax.sgd(0.1)), engine)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(scaled), strict=True):
        if eqx.is_array(a):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_loss_scale_in_a_chain_is_found_and_two_are_refused():
    once = with_loss_scale(optax.sgd(1.0))
    chained = optax.chain(optax.clip(9.0), once)
    after, _ = one_step(mixed_precision(tiny, jnp.float16), chained, jnp.ones(2))
    np.testing.assert_allclose(1 - after.model, 1e-3, rtol=1e-3)
    with pytest.raises(ValueError, match="wrap the whole optimizer once"):
        one_step(tiny, optax.chain(once, once), jnp.ones(2))
