"""Narrow dtypes, tiny and huge gradients, examples that are not finite."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, clipped_grad, explain, losses, per_example_grad_norm


def linear(w, x):
    return jnp.sum((w @ x).astype(jnp.float32))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_narrow_gradient_of_norm_500_is_500(dtype):
    # Its square, 250000, is above what float16 holds.
    w, x = jnp.zeros((4, 2), dtype), jnp.array([[150.0, 200.0]], dtype)
    assert np.asarray(per_example_grad_norm(linear)(w, x)) == pytest.approx(
        500, rel=1e-2
    )
    grads, stats = clipped_grad(linear, l2_clip_norm=1.0)(w, x)
    assert grads.dtype == dtype
    assert stats.grad_norm.dtype == jnp.float32
    np.testing.assert_allclose(
        np.asarray(grads, np.float32), np.tile([0.3, 0.4], (4, 1)), rtol=1e-2
    )


@pytest.mark.parametrize("scale", [1e-25, 1e-10, 1.0, 1e15])
def test_norms_whose_squares_leave_the_range(scale):
    # One row, few rows (Gram) and many (formed): each |a| |d| in the end.
    x = jnp.array([3.0, 4.0]) * scale
    got = per_example_grad_norm(linear)(jnp.zeros((1, 2)), x[None])
    np.testing.assert_allclose(got, [5 * scale], rtol=1e-6)
    for size, rows in ((30, 2), (2, 30)):
        loss = lambda w, x: jnp.sum(x @ w)
        row = jnp.zeros((1, rows, size)).at[0, :, 0].set(scale)
        got = per_example_grad_norm(loss)(jnp.zeros((size, size)), row)
        np.testing.assert_allclose(got, [rows * scale * np.sqrt(size)], rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "powers"), [(jnp.float32, (-36, 37)), (jnp.float64, (-306, 307))]
)
@pytest.mark.usefixtures("x64")
def test_norms_from_one_end_of_the_range_to_the_other_in_one_batch(dtype, powers):
    # Each size also beside a NaN and an infinity, which must not move the others.
    exact = np.array([[3 * 10.0**k, 4 * 10.0**k] for k in range(*powers)])
    bad = np.array([[np.nan, 1], [1, -np.inf], [0, 0]])
    norms = jax.jit(per_example_grad_norm(lambda w, x: jnp.sum(w * x)))
    for rows in (exact, np.concatenate([exact, bad])):
        got = np.asarray(norms(jnp.ones(2, dtype), jnp.array(rows, dtype)))
        want = 5 / 3 * exact[:, 0]
        np.testing.assert_allclose(got[: len(want)], want, rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(got[-3:], [np.nan, np.inf, 0])


def test_an_example_with_no_gradient_has_norm_zero_and_factor_one():
    loss = lambda w, x: jnp.sum(w * x)
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    grads, stats = clipped_grad(loss, l2_clip_norm=1.0)(jnp.ones(2), x)
    np.testing.assert_allclose(stats.grad_norm, [0, 5])
    np.testing.assert_allclose(grads, [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("bad", "jit"), [(jnp.nan, False), (jnp.nan, True), (jnp.inf, True)]
)
def test_an_example_that_is_not_finite_is_reported_and_adds_nothing(bad, jit):
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 5))
    y = jnp.arange(4) % 3
    f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.2)
    f = eqx.filter_jit(f) if jit else f
    spoiled = x.at[2, 1].set(bad)
    rest = jnp.array([0, 1, 3])
    grads, stats = f(model, spoiled, y)
    without, _ = f(model, x[rest], y[rest])
    assert not np.isfinite(stats.grad_norm[2])
    assert np.isfinite(np.asarray(stats.grad_norm)[np.asarray(rest)]).all()
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_an_example_that_is_not_finite_in_rows_and_tables(getkey):
    params = {
        "e": jax.random.normal(getkey(), (9, 4)),
        "w": jnp.ones((4, 4)),
        "b": jnp.ones(4),
    }

    def loss(p, ids, scale):
        h = p["e"][ids] * scale
        return jnp.sum(jnp.sin(h @ p["w"] + p["b"][None]))

    ids = jnp.array([[0, 1], [2, 2], [3, 4]])
    f = jax.jit(clipped_grad(loss, l2_clip_norm=0.2))
    grads, stats = f(params, ids, jnp.array([1.0, jnp.nan, 1.0]))
    without, _ = f(params, ids[::2], jnp.ones(2))
    assert np.isnan(stats.grad_norm[1])
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("jit", [False, True])
def test_one_that_is_not_finite_in_gradients_of_many_entries(jit, getkey):
    # Formed: a matrix that meets 65 rows, and what is added to each of them.
    params = {name: jax.random.normal(getkey(), (65, 65)) for name in ("w", "at")}
    loss = lambda p, x: jnp.sum(jnp.sin(x @ p["w"] + p["at"]))
    x = jax.random.normal(getkey(), (3, 65, 65))
    f = clipped_grad(loss, l2_clip_norm=0.5)
    f = jax.jit(f) if jit else f
    assert {p.rule for p in explain(loss)(params, x).parameters} == {"formed", "direct"}
    grads, stats = f(params, x.at[1, 2, 3].set(jnp.nan))
    without, _ = f(params, x[::2])
    assert np.isnan(stats.grad_norm[1])
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_model_of_an_ensemble_that_is_not_finite_leaves_the_others_as_they_are():
    keys = jax.random.split(jax.random.key(0), 3)
    models = eqx.filter_vmap(lambda key: MLP(5, 3, (4,), key=key))(keys)
    spoil = lambda w: w.at[1, 0].set(jnp.nan)
    models = eqx.tree_at(lambda m: m.layers[0].weight, models, replace_fn=spoil)
    x = jax.random.normal(jax.random.key(1), (4, 5)) * 1e-25
    y = jnp.arange(4) % 3
    f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.2)
    of_all = eqx.filter_vmap(f, in_axes=(eqx.if_array(0), None, None))
    grads, stats = eqx.filter_jit(of_all)(models, x, y)
    np.testing.assert_array_equal(np.isfinite(stats.grad_norm).all(1), [1, 0, 1])
    for i in (0, 2):
        one = jax.tree.map(lambda p, i=i: p[i] if eqx.is_array(p) else p, models)
        want, _ = f(one, x, y)
        for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-5, atol=1e-30)
    assert all((np.asarray(g[1]) == 0).all() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("jit", [False, True])
def test_where_no_example_is_finite_the_sum_is_zero(jit):
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.2)
    f = eqx.filter_jit(f) if jit else f
    grads, stats = f(model, jnp.full((3, 5), jnp.nan), jnp.arange(3))
    assert np.isnan(stats.grad_norm).all()
    assert all((np.asarray(g) == 0).all() for g in jax.tree.leaves(grads))


def test_each_group_leaves_out_the_same_example_that_is_not_finite():
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    norms = jax.tree.map(lambda p: 0.1, eqx.filter(model, eqx.is_array))
    x = jax.random.normal(jax.random.key(1), (4, 5))
    y = jnp.arange(4) % 3
    f = eqx.filter_jit(clipped_grad(losses.cross_entropy, l2_clip_norm=norms))
    grads, _ = f(model, x.at[1, 3].set(jnp.inf), y)
    rest = jnp.array([0, 2, 3])
    without, _ = f(model, x[rest], y[rest])
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_padding_of_nan_adds_exactly_nothing_and_weights_scale():
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 5))
    y = jnp.arange(4) % 3
    f = eqx.filter_jit(clipped_grad(losses.cross_entropy, l2_clip_norm=0.2))
    weight = jnp.array([1.0, 0.0, 1.0, 0.0])
    padded, stats = f(model, x.at[1].set(jnp.nan), y.at[3].set(99), weight=weight)
    alone, _ = f(model, x[::2], y[::2])
    doubled, _ = f(model, x[::2], y[::2], weight=jnp.array([2.0, 2.0]))
    assert (np.asarray(stats.grad_norm)[1::2] == 0).all()
    for a, b, c in zip(*map(jax.tree.leaves, (padded, alone, doubled)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(c, 2 * b, rtol=1e-5, atol=1e-7)


def test_healthy_examples_raise_nothing_under_debug_nans():
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 5)).at[0].set(0)
    f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.2)
    with jax.debug_nans(True):
        grads, stats = eqx.filter_jit(f)(model, x, jnp.arange(4) % 3)
        f(model, x, jnp.arange(4) % 3)
    assert np.isfinite(np.asarray(stats.grad_norm)).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_half_precision_models_agree_with_their_float32_twins():
    model = MLP(6, 3, (8,), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 6))
    y = jnp.arange(4) % 3
    half = jax.tree.map(
        lambda p: p.astype(jnp.bfloat16) if eqx.is_inexact_array(p) else p, model
    )
    loss = lambda m, x, y: losses.cross_entropy(m, x, y).astype(jnp.float32)
    a = per_example_grad_norm(losses.cross_entropy)(model, x, y)
    b = per_example_grad_norm(loss)(half, x.astype(jnp.bfloat16), y)
    np.testing.assert_allclose(a, b, rtol=0.05)


def test_no_examples_give_zeros():
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    for shape in ((0, 3), (0, 5, 3)):
        grads, stats = clipped_grad(loss, l2_clip_norm=1.0)(
            jnp.ones((3, 2)), jnp.ones(shape)
        )
        assert (np.asarray(grads) == 0).all()
        assert stats.grad_norm.shape == (0,)


def test_norms_and_clipped_sums_can_be_differentiated():
    def loss(w, x):
        return 0.5 * jnp.dot(w, x) ** 2

    # The gradient (w.x) x has norm |w.x| |x|, whose derivative is sign(w.x) |x| x.
    w, x = jnp.array([1.0, 2.0]), jnp.array([[3.0, -4.0], [1.0, 0.0], [0.0, 0.0]])
    norms = per_example_grad_norm(loss)
    moved = jax.grad(lambda w: jnp.sum(norms(w, x)))(w)
    np.testing.assert_allclose(moved, [-15 + 1, 20], rtol=1e-6)

    # d/dw of sum_b c_b (w - x_b) at factors 1, 1, 1/2.
    clipped = clipped_grad(lambda w, x: 0.5 * (w - x) ** 2, l2_clip_norm=2.5)
    sums = lambda w: clipped(w, jnp.array([1.0, 4.0, 7.0]))[0]
    _, moved = jax.jvp(sums, (jnp.array(2.0),), (jnp.array(1.0),))
    np.testing.assert_allclose(moved, 2.5, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(sums))(jnp.array(2.0)), 2.5, rtol=1e-6)


def test_clipped_sums_can_be_differentiated_in_reverse_as_by_formed_gradients():
    model = MLP(5, 3, (4,), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 5))

    def length(method):
        f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.2, method=method)
        squares = lambda g: jnp.sum(jnp.square(g))
        sums = lambda x: jax.tree.map(squares, f(model, x, jnp.arange(4) % 3)[0])
        return lambda x: jnp.sum(jnp.stack(jax.tree.leaves(sums(x))))

    expected = jax.grad(length("vmap"))(x)
    moved = jax.jit(jax.grad(length("auto")))(x)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)
    moved = jax.jit(jax.vmap(jax.grad(length("auto"))))(jnp.stack([x, 0 * x]))
    np.testing.assert_allclose(moved[0], expected, rtol=1e-4, atol=1e-7)
    both = lambda xs: jnp.sum(jax.vmap(length("auto"))(xs))
    moved = jax.jit(jax.grad(both))(jnp.stack([x, 0 * x]))
    np.testing.assert_allclose(moved[0], expected, rtol=1e-4, atol=1e-7)


def test_where_every_gradient_is_zero_the_norm_has_derivative_zero():
    # |(a x, b x)| has a corner at a = b = 0; the subgradient is 0, as for one entry.
    norms = per_example_grad_norm(lambda p, x: (p["a"] ** 2 + p["b"] ** 2) * x / 2)
    at_zero = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    moved = jax.grad(lambda p: jnp.sum(norms(p, jnp.ones(2))))(at_zero)
    assert moved == {"a": 0, "b": 0}
