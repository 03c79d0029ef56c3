"""The tapped engine against values worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import clipped_grad, per_example_grad_norm


def norms(loss, model, *batch):
    return np.asarray(per_example_grad_norm(loss)(model, *batch))


@pytest.mark.parametrize("chunk_size", [None, 1, 2, 3])
@pytest.mark.parametrize(("weight", "total"), [(None, -3.5), ([0.0, 1.0, 1.0], -4.5)])
def test_gradients_1_2_5_clipped_at_2_and_a_half(chunk_size, weight, total):
    f = clipped_grad(
        lambda w, x: 0.5 * (w - x) ** 2, l2_clip_norm=2.5, chunk_size=chunk_size
    )
    weight = None if weight is None else jnp.array(weight)
    grads, stats = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]), weight=weight)
    np.testing.assert_allclose(grads, total, rtol=1e-6)
    expected = np.array([1.0, 2.0, 5.0]) * (1 if weight is None else weight)
    np.testing.assert_allclose(stats.grad_norm, expected, rtol=1e-6)


def test_a_vector_tied_to_its_own_entry():
    table = jnp.array([1.0, 2.0, 3.0])
    loss = lambda e, i: jnp.sum(e * e[i])
    np.testing.assert_allclose(
        norms(loss, table, jnp.array([0])), [np.sqrt(51)], rtol=1e-6
    )
    grads, _ = clipped_grad(loss, l2_clip_norm=jnp.inf)(table, jnp.array([0]))
    np.testing.assert_allclose(grads, [7, 1, 1], rtol=1e-6)


def test_a_bias_adds_its_rows_before_the_norm():
    d = jnp.array([[[1.0, 2.0], [3.0, 4.0]]])
    loss = lambda b, d: jnp.sum(jax.vmap(lambda row: row + b)(jnp.zeros((2, 2))) * d)
    np.testing.assert_allclose(norms(loss, jnp.zeros(2), d), [np.sqrt(52)], rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "cotangents", "norm"),
    [([1, 1], [0.2, 0.2], 0.4), ([2, -1], [1.0, 1.0], 2.0), ([0, 1], [3.0, 4.0], 5.0)],
)
def test_an_embedding_adds_what_one_index_takes_twice(ids, cotangents, norm):
    loss = lambda e, i, d: jnp.sum(e[i][:, 0] * d)
    got = norms(loss, jnp.ones((3, 1)), jnp.array([ids]), jnp.array([cotangents]))
    np.testing.assert_allclose(got, [norm], rtol=1e-6)


@pytest.mark.parametrize(("mode", "norm"), [("clip", 5.0), ("drop", 3.0)])
def test_an_index_out_of_range_counts_as_the_mode_says(mode, norm):
    # Clipped, index 7 is row 2 and adds 2 to the other 3; dropped, it adds nothing.
    def loss(e, i, d):
        taken = e.at[i].get(mode=mode, fill_value=0.0)
        return jnp.sum(taken[:, 0] * d)

    got = norms(loss, jnp.ones((3, 1)), jnp.array([[2, 7]]), jnp.array([[3.0, 2.0]]))
    np.testing.assert_allclose(got, [norm], rtol=1e-6)


def test_a_penalty_adds_to_the_same_gradient():
    loss = lambda w, x: w @ x + 0.25 * jnp.sum(w**2)
    w, x = jnp.array([1.0, 2.0]), jnp.array([[1.0, 0.0], [0.0, -1.0]])
    np.testing.assert_allclose(norms(loss, w, x), [np.sqrt(3.25), 0.5], rtol=1e-6)
    grads, _ = clipped_grad(loss, l2_clip_norm=jnp.inf)(w, x)
    np.testing.assert_allclose(grads, [2, 1], rtol=1e-6)


def test_a_kernel_of_ones_over_ones():
    def loss(kernel, x):
        return jnp.sum(jax.lax.conv(x[None, None], kernel[None, None], (1, 1), "VALID"))

    got = norms(loss, jnp.ones((2, 2)), jnp.ones((1, 3, 3)))
    np.testing.assert_allclose(got, [8], rtol=1e-6)


class Mixed(eqx.Module):
    w: jax.Array
    frozen: jax.Array
    unused: jax.Array
    count: jax.Array
    flag: bool
    call: object


def test_what_is_not_trained_or_not_used_counts_nothing():
    model = Mixed(
        jnp.array([1.0, 2.0]), jnp.ones(2), jnp.ones(3), jnp.array(3), True, jnp.tanh
    )
    trainable = eqx.tree_at(lambda t: t.frozen, jax.tree.map(lambda _: True, model), 0)
    trainable = jax.tree.map(bool, trainable)
    loss = lambda m, x: jnp.sum((m.w + m.frozen) * x) * m.count.astype(x.dtype)
    f = clipped_grad(loss, l2_clip_norm=jnp.inf, trainable=trainable)
    grads, stats = f(model, jnp.array([[3.0, 4.0]]))
    np.testing.assert_allclose(stats.grad_norm, [15], rtol=1e-6)
    np.testing.assert_allclose(grads.w, [9, 12], rtol=1e-6)
    assert grads.frozen is None
    assert grads.count is None
    assert grads.call is None
    assert (np.asarray(grads.unused) == 0).all()


@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_groups_are_clipped_by_their_own_norms(method):
    # Gradients are x and y themselves: norms 5 and 2.
    loss = lambda m, x, y: m["a"] @ x + m["b"]["c"] @ y
    model = {"a": jnp.ones(2), "b": {"c": jnp.ones(1)}}
    x, y = jnp.array([[3.0, 4.0]]), jnp.array([[2.0]])
    clip = {"a": 1.0, "b": 4.0}
    grads, stats = clipped_grad(loss, l2_clip_norm=clip, method=method)(model, x, y)
    np.testing.assert_allclose(grads["a"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(grads["b"]["c"], [2.0], rtol=1e-6)
    np.testing.assert_allclose(stats.grad_norm, [np.sqrt(29)], rtol=1e-6)


def test_a_value_made_of_two_groups_is_split_between_them():
    loss = lambda m, x: jnp.sum(m["a"]) * jnp.sum(m["b"]) * x
    model = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([4.0])}
    # d/da = 4 x each, d/db = 3 x: norms 4 sqrt 2 and 3.
    grads, _ = clipped_grad(loss, l2_clip_norm={"a": 1.0, "b": 1.5})(
        model, jnp.array([1.0])
    )
    np.testing.assert_allclose(grads["a"], [np.sqrt(0.5)] * 2, rtol=1e-6)
    np.testing.assert_allclose(grads["b"], [1.5], rtol=1e-6)


def test_groups_must_be_a_prefix_of_the_model():
    f = clipped_grad(lambda m, x: m["a"] * x, l2_clip_norm={"z": 1.0})
    with pytest.raises(ValueError, match="prefix of the model's tree"):
        f({"a": jnp.array(1.0)}, jnp.ones(2))
    with pytest.raises(ValueError, match=r"l2_clip_norm\['a'\] must be a number"):
        clipped_grad(lambda m, x: m["a"] * x, l2_clip_norm={"a": -1.0})


def test_a_stopped_gradient_counts_nothing():
    loss = lambda w, x: jax.lax.stop_gradient(w) * w * x
    np.testing.assert_allclose(norms(loss, jnp.array(3.0), jnp.array([2.0])), [6])


def test_both_routes_return_what_the_loss_hands_out():
    def loss(w, x):
        return jnp.sum(w * x), {"twice": 2 * x, "w": w}

    for method in ("auto", "vmap"):
        f = clipped_grad(loss, l2_clip_norm=1.0, has_aux=True, method=method)
        _, stats = f(jnp.ones(2), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
        np.testing.assert_allclose(stats.aux["twice"], [[2, 4], [6, 8]])
        np.testing.assert_allclose(stats.aux["w"], np.ones((2, 2)))


def test_no_gradient_of_one_example_exists():
    # An array of batch x parameters is in the reference's program and not in ours.
    n, size = 64, 96
    w, x = jnp.ones((size, size)), jnp.ones((n, size))
    loss = lambda w, x: jnp.sum(jnp.tanh(w @ x))
    for method, formed in (("auto", False), ("vmap", True)):
        f = jax.jit(clipped_grad(loss, l2_clip_norm=1.0, method=method))
        compiled = f.lower(w, x).compile().as_text()
        assert (f"[{n},{size},{size}]" in compiled) == formed
