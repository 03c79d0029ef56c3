"""Per-example gradients by the reference route, against values worked out by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import (
    MLP,
    clipped_grad,
    losses,
    mean_grad,
    per_example_grad,
    per_example_grad_norm,
    per_example_value_and_grad,
)


def half_squared(model, x, y):
    return 0.5 * jnp.square(model["w"][0] @ x + model["b"][0] - y)


MODEL = {"w": jnp.array([[1.0, 2.0]]), "b": jnp.zeros(1)}
X = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
Y = jnp.array([0.0, 0.0, 1.0])


def test_each_gradient_of_a_linear_model_is_the_residual_times_the_input():
    value, grads = per_example_value_and_grad(half_squared)(MODEL, X, Y)
    np.testing.assert_allclose(value, [0.5, 2, 4.5])
    np.testing.assert_allclose(grads["w"][:, 0], [[1, 0], [0, 2], [6, 3]])
    np.testing.assert_allclose(grads["b"][:, 0], [1, 2, 3])
    norms = per_example_grad_norm(half_squared)(MODEL, X, Y)
    np.testing.assert_allclose(norms**2, [2, 8, 54], rtol=1e-6)


def test_the_mean_of_the_examples_gradients_is_the_gradient_of_the_mean_loss():
    grads = per_example_grad(half_squared)(MODEL, X, Y)
    mean, _ = mean_grad(half_squared)(MODEL, X, Y)
    np.testing.assert_allclose(mean["w"], [[7 / 3, 5 / 3]], rtol=1e-6)
    np.testing.assert_allclose(mean["w"], grads["w"].mean(0), rtol=1e-6)


def test_clipping_at_root_two_scales_the_longer_gradients():
    f = clipped_grad(half_squared, l2_clip_norm=np.sqrt(2))
    grads, stats = f(MODEL, X, Y)
    np.testing.assert_allclose(grads["w"], [[2.15470, 1.57735]], rtol=1e-5)
    np.testing.assert_allclose(grads["b"], [2.57735], rtol=1e-5)
    # An example that is fitted exactly has gradient zero, and norm zero is no division.
    with_zero, stats = f(
        MODEL, jnp.concatenate([X, jnp.zeros((1, 2))]), jnp.append(Y, 0.0)
    )
    np.testing.assert_allclose(with_zero["w"], grads["w"], rtol=1e-6)
    np.testing.assert_allclose(with_zero["b"], grads["b"], rtol=1e-6)
    assert stats.grad_norm[-1] == 0


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_chunks_change_no_result_and_leak_nothing_from_their_filling(
    chunk_size, getkey
):
    model = MLP(5, 3, (4,), dropout_rate=0.5, key=getkey())
    x = jax.random.normal(getkey(), (7, 5))
    y = jnp.arange(7) % 3
    key = getkey()
    jit = eqx.filter_jit
    whole = jit(per_example_value_and_grad(losses.cross_entropy))(model, x, y, key=key)
    parts = jit(
        per_example_value_and_grad(losses.cross_entropy, chunk_size=chunk_size)
    )(model, x, y, key=key)
    assert_trees_close(whole, parts)
    options = {"l2_clip_norm": 0.3, "normalize_by": 7.0}
    whole = jit(clipped_grad(losses.cross_entropy, **options))(model, x, y, key=key)
    parts = jit(clipped_grad(losses.cross_entropy, chunk_size=chunk_size, **options))(
        model, x, y, key=key
    )
    assert_trees_close(whole, parts)
    norms = jit(per_example_grad_norm(losses.cross_entropy, chunk_size=chunk_size))(
        model, x, y, key=key
    )
    np.testing.assert_allclose(norms, whole[1].grad_norm, rtol=1e-6)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_padding_rows_contribute_exactly_nothing_even_where_they_are_nan(
    chunk_size, getkey
):
    model = MLP(5, 3, (4,), key=getkey())
    x = jax.random.normal(getkey(), (5, 5))
    y = jnp.array([0, 1, 2, 0, 1])
    padded = jnp.concatenate([x, jnp.full((3, 5), jnp.nan)])
    labels = jnp.append(y, jnp.array([7, -1, 99]))
    weight = jnp.array([1.0] * 5 + [0.0] * 3)
    f = eqx.filter_jit(
        clipped_grad(losses.cross_entropy, l2_clip_norm=0.5, chunk_size=chunk_size)
    )
    grads, stats = f(model, padded, labels, weight=weight)
    wanted, wanted_stats = f(model, x, y)
    assert_trees_close(grads, wanted)
    np.testing.assert_allclose(stats.value[:5], wanted_stats.value, rtol=1e-6)
    assert np.all(np.asarray(stats.value[5:]) == 0)
    assert np.all(np.asarray(stats.grad_norm[5:]) == 0)
    rows = eqx.filter_jit(
        per_example_grad(losses.cross_entropy, chunk_size=chunk_size)
    )(model, padded, labels, weight=weight)
    for leaf in jax.tree.leaves(rows):
        assert np.all(np.asarray(leaf[5:]) == 0)
    f = eqx.filter_jit(mean_grad(losses.cross_entropy))
    mean, _ = f(model, padded, labels, weight=weight)
    assert_trees_close(mean, f(model, x, y)[0])


def test_a_batch_of_padding_alone_gives_zeros(getkey):
    model = MLP(5, 3, (4,), key=getkey())
    x, y = jnp.full((2, 5), jnp.nan), jnp.array([0, 9])
    weight = jnp.zeros(2)
    for f in (
        clipped_grad(losses.cross_entropy, l2_clip_norm=1.0),
        mean_grad(losses.cross_entropy),
    ):
        grads, _ = eqx.filter_jit(f)(model, x, y, weight=weight)
        assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_an_empty_batch_gives_zeros(getkey):
    model = MLP(5, 3, (4,), key=getkey())
    x, y = jnp.zeros((0, 5)), jnp.zeros(0, jnp.int32)
    f = eqx.filter_jit(clipped_grad(losses.cross_entropy, l2_clip_norm=1.0))
    grads, stats = f(model, x, y)
    assert stats.grad_norm.shape == (0,)
    assert all(np.all(np.asarray(g) == 0) for g in jax.tree.leaves(grads))


def test_weights_scale_each_clipped_gradient():
    f = clipped_grad(lambda w, x: 0.5 * (w - x) ** 2, l2_clip_norm=2.5)
    x = jnp.array([1.0, 4.0, 7.0])
    assert f(jnp.array(2.0), x)[0] == -3.5
    assert f(jnp.array(2.0), x, weight=jnp.array([0.0, 1.0, 1.0]))[0] == -4.5
    assert f(jnp.array(2.0), x, weight=jnp.array([3.0, 0.0, 0.5]))[0] == 3 - 1.25


def test_one_example_with_a_nan_is_reported_and_poisons_nothing():
    f = clipped_grad(lambda w, x: 0.5 * (w - x) ** 2, l2_clip_norm=2.5)
    grads, stats = f(jnp.array(2.0), jnp.array([1.0, jnp.nan, 7.0]))
    assert grads == 1 - 2.5
    assert np.isnan(stats.grad_norm[1])


@pytest.mark.parametrize(
    ("dtype", "size"), [(jnp.float16, 300.0), (jnp.float32, 1e-25), (jnp.float32, 1e25)]
)
def test_norms_survive_squares_that_would_over_or_underflow(dtype, size):
    x = jnp.full((1, 4), size, dtype)
    norm = per_example_grad_norm(lambda w, x: jnp.sum(w * x))(jnp.ones(4, dtype), x)
    np.testing.assert_allclose(norm, [2 * size], rtol=1e-3)
    assert norm.dtype == jnp.float32


def test_leaves_that_are_not_trainable_are_left_alone_and_unused_ones_are_zeros():
    class Mixed(eqx.Module):
        w: jax.Array
        unused: jax.Array
        count: jax.Array
        flag: bool
        activation: callable

    model = Mixed(jnp.ones(2), jnp.ones(3), jnp.array(1), True, jax.nn.relu)
    loss = lambda model, x: jnp.sum(model.activation(model.w * x))
    grads = per_example_grad(loss)(model, jnp.ones((4, 2)))
    np.testing.assert_array_equal(grads.w, np.ones((4, 2)))
    np.testing.assert_array_equal(grads.unused, np.zeros((4, 3)))
    assert (grads.count, grads.flag, grads.activation) == (None, None, None)
    frozen = Mixed(True, False, False, False, False)
    only_w = per_example_grad(loss, trainable=frozen)(model, jnp.ones((4, 2)))
    assert only_w.unused is None
    np.testing.assert_array_equal(only_w.w, np.ones((4, 2)))


def test_aux_comes_back_with_a_batch_axis():
    loss = lambda w, x: (w * x, {"input": x})
    w, x = jnp.array(2.0), jnp.array([1.0, 3.0])
    (value, aux), grads = per_example_value_and_grad(loss, has_aux=True)(w, x)
    np.testing.assert_array_equal(value, [2, 6])
    np.testing.assert_array_equal(aux["input"], x)
    np.testing.assert_array_equal(grads, x)
    norm, aux = per_example_grad_norm(loss, has_aux=True, chunk_size=1)(w, x)
    np.testing.assert_array_equal(norm, x)
    np.testing.assert_array_equal(aux["input"], x)
    _, stats = clipped_grad(loss, has_aux=True, l2_clip_norm=1.0)(w, x)
    np.testing.assert_array_equal(stats.aux["input"], x)


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
def test_dropout_masks_differ_between_examples_and_do_not_depend_on_chunks(
    chunk_size, getkey
):
    def masked(model, x, *, key):
        return jnp.sum(eqx.nn.Dropout(0.5)(model * x, key=key))

    key = getkey()
    f = per_example_grad(masked, chunk_size=chunk_size)
    masks = np.asarray(f(jnp.ones(1000), jnp.ones((4, 1000)), key=key))
    assert set(np.unique(masks)) == {0, 2}
    assert all(np.any(masks[0] != masks[i]) for i in range(1, 4))
    # The rule itself: example i draws from fold_in(key, i).
    for i in range(4):
        alone = eqx.nn.Dropout(0.5)(jnp.ones(1000), key=jax.random.fold_in(key, i))
        np.testing.assert_array_equal(masks[i], alone)


def test_bfloat16_sums_are_kept_in_float32():
    # 256 + 1 is 256 in bfloat16: adding in it would lose every one of the ones.
    x = jnp.concatenate([jnp.array([256.0]), jnp.ones(256)]).astype(jnp.bfloat16)
    f = clipped_grad(lambda w, x: w * x, l2_clip_norm=np.inf)
    grads, _ = f(jnp.ones((), jnp.bfloat16), x)
    assert grads.dtype == jnp.bfloat16
    assert grads == 512


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: f(MODEL, X, Y[:2]), r"argument 0: 3, argument 1: 2"),
        (lambda f: f(MODEL), "batch of examples"),
        (lambda f: f(MODEL, X, 1.0), "no axis 0"),
        (
            lambda f: f(MODEL, X, Y, weight=jnp.ones(2)),
            r"shape \(3,\), got shape \(2,\)",
        ),
        (lambda f: f({"n": jnp.arange(3)}, X, Y), "no trainable parameter"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [per_example_grad, per_example_grad_norm, mean_grad],
    ids=lambda f: f.__name__,
)
def test_a_bad_batch_or_model_is_a_value_error(call, match, make):
    with pytest.raises(ValueError, match=match):
        call(make(half_squared))


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda m, x: m * jnp.ones(10), r"one floating-point number.*shape \(10,\)"),
        (lambda m, x: jnp.int32(3), "dtype int32"),
        (lambda m, x: (m * x, x), "has_aux=True"),
    ],
)
def test_what_is_not_a_loss_of_one_example_is_a_value_error(loss, match):
    with pytest.raises(ValueError, match=match):
        per_example_grad(loss)(jnp.array(1.0), jnp.ones(3))


@pytest.mark.parametrize("l2_clip_norm", [-1.0, float("nan")])
def test_a_negative_or_nan_clipping_norm_is_a_value_error(l2_clip_norm):
    with pytest.raises(ValueError, match="l2_clip_norm must be a number at least 0"):
        clipped_grad(half_squared, l2_clip_norm=l2_clip_norm)


@pytest.mark.parametrize("normalize_by", [0, -1.0, float("nan")])
def test_a_divisor_not_above_zero_is_a_value_error(normalize_by):
    with pytest.raises(ValueError, match="normalize_by must be a number above 0"):
        clipped_grad(half_squared, l2_clip_norm=1.0, normalize_by=normalize_by)


@pytest.mark.parametrize("chunk_size", [0, -1, 1.5, True])
def test_a_chunk_size_that_is_no_count_is_a_value_error(chunk_size):
    with pytest.raises((ValueError, TypeError), match="chunk_size"):
        per_example_grad(half_squared, chunk_size=chunk_size)


def test_a_label_outside_the_classes_is_found_when_values_are_known(getkey):
    model = MLP(5, 3, (), key=getkey())
    with pytest.raises(ValueError, match=r"in 0\.\.2, got 3"):
        per_example_grad(losses.cross_entropy)(
            model, jnp.ones((2, 5)), jnp.array([0, 3])
        )


def assert_trees_close(a, b):
    a, b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
