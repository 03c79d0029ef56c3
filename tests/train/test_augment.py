"""What `augment` is given, and when."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import clipped_grad, data, fit, init_state, make_step, mean_grad
from eqx_mlp.metrics import Metric

SGD = optax.sgd(0.1)


def squared(w, x, i):
    return jnp.sum((w * x - 1) ** 2)


def add_noise(x, key):
    return x + jax.random.normal(key, x.shape)


def seen(w, x, i):
    """Each example as the loss takes it, told apart by its number."""
    own = jax.nn.one_hot(i, 4)
    return Metric(own * x[0], own)


def batch_of(getkey):
    return jax.random.normal(getkey(), (4, 2)), jnp.arange(4)


def augmented_by_hand(x, key, step):
    own = jax.random.fold_in(jax.random.fold_in(key, step), 2**32 - 1)
    rows = [add_noise(x[i], jax.random.fold_in(own, i)) for i in range(len(x))]
    return jnp.stack(rows)


def test_steps_are_those_on_batches_augmented_by_hand(getkey):
    x, i = batch_of(getkey)
    start = state = by_hand = init_state(jnp.ones(2), SGD, key=getkey())
    step = eqx.filter_jit(
        make_step(squared, SGD, augment=add_noise, metrics={"seen": seen})
    )
    plain = eqx.filter_jit(make_step(squared, SGD))
    for t in range(2):
        state, measured = step(state, (x, i))
        changed = augmented_by_hand(x, start.key, t)
        np.testing.assert_allclose(measured["seen"].compute(), changed[:, 0], rtol=1e-6)
        by_hand, loss = plain(by_hand, (changed, i))
        np.testing.assert_allclose(
            measured["loss"].compute(), loss["loss"].compute(), rtol=1e-5
        )
    np.testing.assert_allclose(state.model, by_hand.model, rtol=1e-5)


@pytest.mark.parametrize(
    "gradient",
    [
        functools.partial(mean_grad, chunk_size=3),
        functools.partial(clipped_grad, l2_clip_norm=1e3, normalize_by=4, chunk_size=2),
    ],
)
def test_chunks_and_other_gradients_see_the_same_examples(gradient, getkey):
    batch = batch_of(getkey)
    state = init_state(jnp.ones(2), SGD, key=getkey())
    steps = [
        eqx.filter_jit(make_step(squared, SGD, augment=add_noise, gradient=g))
        for g in (mean_grad, gradient)
    ]
    (whole, _), (other, _) = (step(state, batch) for step in steps)
    np.testing.assert_allclose(whole.model, other.model, rtol=1e-5)


def test_padding_stays_harmless_and_does_not_shift_the_keys(getkey):
    x, i = batch_of(getkey)
    padded = data.Batch(
        (x.at[1].set(jnp.nan), i), jnp.array([1.0, 0.0, 1.0, 1.0], jnp.float32)
    )
    state = init_state(jnp.ones(2), SGD, key=getkey())
    step = eqx.filter_jit(
        make_step(squared, SGD, augment=add_noise, metrics={"seen": seen})
    )
    after, measured = step(state, padded)
    assert np.all(np.isfinite(after.model))
    wanted = augmented_by_hand(x, state.key, 0)[:, 0].at[1].set(0)
    np.testing.assert_allclose(measured["seen"].numerator, wanted, rtol=1e-6)


def test_it_takes_what_is_stored_and_gives_what_transform_takes(getkey):
    stored = jax.random.randint(getkey(), (4, 3, 3), 0, 256).astype(jnp.uint8)
    types = []

    def augment(image, key):
        types.append((image.shape, image.dtype))
        return jnp.full_like(image, 51)

    step = make_step(
        squared,
        SGD,
        augment=augment,
        transform=data.image_to_vector,
        metrics={"seen": seen},
    )
    state = init_state(jnp.ones(9), SGD, key=getkey())
    _, measured = eqx.filter_jit(step)(state, (stored, jnp.arange(4)))
    assert types == [((3, 3), jnp.uint8)]
    np.testing.assert_allclose(measured["seen"].compute(), 0.2)


def test_validation_is_never_augmented(getkey):
    x, i = batch_of(getkey)
    _, history = fit(
        jnp.ones(2),
        (x, i),
        loss=squared,
        optimizer=SGD,
        key=getkey(),
        epochs=2,
        batch_size=4,
        augment=lambda x, key: jnp.zeros_like(x),
        validation=(x, i),
        metrics={"seen": seen},
        progress=False,
    )
    np.testing.assert_array_equal(history["seen"], np.zeros((2, 4)))
    np.testing.assert_allclose(history["val_seen"], [x[:, 0], x[:, 0]], rtol=1e-6)
