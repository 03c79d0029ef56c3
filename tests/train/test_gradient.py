"""Gradients of a batch: in chunks, clipped, in lower precision."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import MLP, data, fit, init_state, losses, make_step, mean_grad


def model_of(dtype=None):
    return MLP(5, 3, (4,), dtype=dtype, key=jax.random.key(0))


def batch_of(getkey, n):
    return jax.random.normal(getkey(), (n, 5)), jnp.arange(n) % 3


def assert_close(a, b, rtol=1e-6, atol=1e-7):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 20])
def test_chunks_of_unequal_weight_give_the_gradient_of_the_whole_batch(
    chunk_size, getkey
):
    model, (x, y) = model_of(), batch_of(getkey, 11)
    weight = np.array([3, 0, 0.25, 1, 0, 0, 0, 2, 1, 0.5, 7], np.float32)
    x = x.at[4].set(jnp.nan)  # padding
    (rows,) = np.nonzero(weight)

    def by_hand(model):
        values = jax.vmap(losses.cross_entropy, (None, 0, 0))(model, x[rows], y[rows])
        return jnp.dot(weight[rows], values) / weight.sum()

    wanted = eqx.filter_jit(eqx.filter_grad(by_hand))(model)
    f = eqx.filter_jit(mean_grad(losses.cross_entropy, chunk_size=chunk_size))
    grads, stats = f(model, x, y, weight=weight)
    assert_close(grads, wanted)
    assert stats.value.shape == (11,)
    np.testing.assert_array_equal(stats.value == 0, weight == 0)
    # Without weights every row counts 1, and the filling of the last chunk nothing.
    x = x.at[4].set(0)
    ones, _ = f(model, x, y, weight=jnp.ones(11))
    assert_close(f(model, x, y)[0], ones)


def test_chunks_draw_what_the_whole_batch_draws(getkey):
    def loss(model, x, y, *, key):
        noise = jax.random.normal(key, x.shape)
        return losses.cross_entropy(model, x + noise, y), noise

    model, (x, y) = model_of(), batch_of(getkey, 7)
    (a, whole), (b, chunked) = (
        eqx.filter_jit(mean_grad(loss, has_aux=True, chunk_size=chunk_size))(
            model, x, y, key=jax.random.key(3)
        )
        for chunk_size in (None, 3)
    )
    np.testing.assert_array_equal(whole.aux, chunked.aux)
    assert_close(a, b)


def test_chunks_of_bfloat16_gradients_are_added_in_float32():
    # 1 + 256 * 2**-9: each addition in bfloat16 would be lost.
    x = jnp.array([1.0] + 256 * [2**-9], jnp.bfloat16)
    f = mean_grad(lambda w, x: w * x, chunk_size=1)
    grads, _ = f(jnp.ones((), jnp.bfloat16), x)
    assert grads.dtype == jnp.bfloat16
    np.testing.assert_allclose(grads.astype(jnp.float32), 1.5 / 257, rtol=2**-8)


def test_a_batch_in_which_nothing_counts_has_gradient_zero_in_chunks_too():
    f = mean_grad(lambda w, x: w * x, chunk_size=2)
    grads, _ = f(jnp.array(1.0), jnp.ones(3), weight=jnp.zeros(3))
    assert grads == 0


def test_chunks_bound_the_memory_of_activations():
    model = MLP(8, 3, (512, 512), key=jax.random.key(0))
    x, y = jnp.ones((256, 8)), jnp.zeros(256, jnp.int32)

    def bytes_of(chunk_size):
        f = eqx.filter_jit(mean_grad(losses.cross_entropy, chunk_size=chunk_size))
        return f.lower(model, x, y).compile().compiled.memory_analysis()

    whole, chunked = (bytes_of(n).temp_size_in_bytes for n in (None, 16))
    parameters = sum(p.nbytes for p in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    # An activation of the whole batch is 256 * 512 floats, half a parameter's size.
    assert whole > 2 * 256 * 512 * 4
    assert chunked < whole
    assert chunked < 3 * parameters


@pytest.mark.parametrize("chunk_size", [0, -1, True])
def test_a_chunk_size_below_one_is_a_value_error(chunk_size):
    with pytest.raises(ValueError, match="chunk_size is the number of examples"):
        mean_grad(losses.cross_entropy, chunk_size=chunk_size)


def test_fit_in_chunks_is_fit(getkey):
    x, y = batch_of(getkey, 22)

    def run(gradient):
        return fit(
            model_of(),
            (x, y),
            loss=losses.cross_entropy,
            optimizer=optax.sgd(0.1),
            key=jax.random.key(1),
            epochs=2,
            batch_size=8,
            gradient=gradient,
            progress=False,
        )

    whole = run(mean_grad)
    chunked = run(functools.partial(mean_grad, chunk_size=3))
    np.testing.assert_allclose(
        whole.history["step_loss"], chunked.history["step_loss"], rtol=1e-5
    )
    assert_close(
        *(eqx.filter(r.model, eqx.is_array) for r in (whole, chunked)), rtol=1e-5
    )


def test_the_global_norm_is_clipped_over_all_that_is_trained():
    model = {"a": jnp.array([0.0, 0.0]), "b": jnp.array(0.0), "c": jnp.array(0.0)}
    # The mean gradient is 3, 4 and 12, of norm 13, and would be longer with c.
    loss = lambda m, x: x * (3 * m["a"][0] + 4 * m["a"][1] + 12 * m["b"] + 99 * m["c"])
    optimizer = optax.chain(optax.clip_by_global_norm(6.5), optax.sgd(1.0))
    trainable = {"a": True, "b": True, "c": False}
    state = init_state(model, optimizer, key=jax.random.key(0), trainable=trainable)
    step = make_step(loss, optimizer, trainable=trainable)
    weight = jnp.array([1.0, 3.0, 0.0])
    batch = data.Batch((jnp.array([4.0, 0.0, 50.0]),), weight)
    after, _ = step(state, batch)
    np.testing.assert_allclose(after.model["a"], [-1.5, -2.0], rtol=1e-6)
    np.testing.assert_allclose(after.model["b"], -6.0, rtol=1e-6)
    assert after.model["c"] == 0
