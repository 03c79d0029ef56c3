"""Moments, products and noise of per-example gradients, against formed gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import (
    MLP,
    fisher_diagonal,
    gradient_moments,
    gradient_noise_scale,
    losses,
    per_example_grad,
    per_example_grad_dot,
)
from eqx_mlp.per_example import GradientMoments

METHODS = ("auto", "vmap")
WEIGHT = np.array([1.0, 2.0, 0.0, 0.5])


def quadratic(w, x):
    """Its gradient is w - x: for w = 2 and x = 1, 4, 7 it is 1, -2 and -5."""
    return 0.5 * (w - x) ** 2


def every_kind_of_site(p, x, ids):
    """A parameter for each form that the engine has."""
    h = -(p["dense"].T) @ x + p["bias"]  # one row, transposed and negated
    h = jnp.tanh(jnp.reshape(p["flat"], (3, 3)) @ h) * p["scale"]

    def step(h, row):
        h = jnp.tanh(p["shared"] @ h + p["wide"] @ row)  # three rows: formed, or Gram
        return h, h

    h, hs = jax.lax.scan(step, h, jnp.stack([x, -x, 2 * x]))
    words = p["table"][ids]  # rows of a table, which is also the output layer
    out = p["table"] @ (h + jnp.sum(words, axis=0))
    # Large enough for Gram products: of two rows, and of an index with a vector.
    rows = jnp.outer(x[:2], jnp.sin(jnp.arange(9.0)))
    square = jnp.sum(jnp.tanh(rows @ p["square"]))
    tied = jnp.sum(jnp.tanh(p["tied"] @ p["tied"][ids[0]]))
    image = jnp.stack([x, jnp.flip(x)])[None]
    out = out + jnp.sum(jax.lax.conv(image, p["kernel"], (1,), "VALID"))
    out = out + p["unit"] / jnp.sqrt(jnp.sum(p["unit"] ** 2)) @ h  # pulled back
    for w in jnp.stack([p["first"], p["second"]]):
        h = jax.checkpoint(lambda w, h: jnp.sin(w @ h))(w, h)
    return jnp.sum(jnp.cos(out)) + jnp.sum(h * hs[0]) + square + tied


SHAPES = {
    "dense": (4, 3),
    "bias": (3,),
    "flat": (9,),
    "scale": (3,),
    "shared": (3, 3),
    "wide": (3, 4),
    "table": (5, 3),
    "square": (9, 9),
    "tied": (20, 20),
    "kernel": (2, 2, 2),
    "unit": (3,),
    "first": (3, 3),
    "second": (3, 3),
    "unused": (2,),
}


@pytest.fixture(scope="module")
def every_kind(double):
    """The engine's moments and products on all kinds of sites, and the gradients."""
    with double(True):
        rng = np.random.default_rng(0)
        p = {name: jnp.asarray(rng.normal(size=s)) for name, s in SHAPES.items()}
        x = jnp.asarray(rng.normal(size=(7, 4)))
        ids = jnp.asarray(rng.integers(-5, 5, size=(7, 2)))

        @jax.jit
        def run(p, x, ids):
            loss, batch, other = every_kind_of_site, (x[:4], ids[:4]), (x[4:], ids[4:])
            return (
                gradient_moments(loss)(p, *batch, weight=jnp.asarray(WEIGHT)),
                per_example_grad_dot(loss)(p, batch, other),
                per_example_grad(loss)(p, x, ids),
            )

        jax.config.update("jax_disable_most_optimizations", True)
        try:
            return jax.tree.map(np.asarray, run(p, x, ids))
        finally:
            jax.config.update("jax_disable_most_optimizations", False)


def test_moments_are_those_of_formed_gradients(every_kind):
    moments, _, grads = every_kind
    for name, g in grads.items():
        g = g[:4]
        mean, square = (np.average(a, axis=0, weights=WEIGHT) for a in (g, g**2))
        np.testing.assert_allclose(moments.mean[name], mean, atol=1e-12)
        np.testing.assert_allclose(moments.square[name], square, atol=1e-12)
    np.testing.assert_allclose(moments.count, 3.5**2 / (1 + 4 + 0.25))


def test_products_are_those_of_formed_gradients(every_kind):
    _, products, grads = every_kind
    rows = np.concatenate([g.reshape(7, -1) for g in grads.values()], axis=1)
    np.testing.assert_allclose(products, rows[:4] @ rows[4:].T, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_weighted_noise_is_that_of_numpys_covariance(method):
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    f = gradient_noise_scale(lambda w, g: w @ g, method=method)
    noise = jax.jit(f)(jnp.zeros(3), rows, weight=jnp.asarray(WEIGHT))
    trace = np.trace(np.cov(rows.T, aweights=WEIGHT))
    mean = np.average(rows, axis=0, weights=WEIGHT)
    n = WEIGHT.sum() ** 2 / (WEIGHT**2).sum()
    np.testing.assert_allclose(noise.trace, trace, rtol=1e-5)
    np.testing.assert_allclose(noise.square, mean @ mean - trace / n, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_noise_scale_of_gradients_given_by_hand(method):
    # 1, -2 and -5: mean -2, variance (9 + 0 + 9) / 2 = 9; |G|^2 = 4 - 9 / 3 = 1.
    f = jax.jit(gradient_noise_scale(quadratic, method=method, chunk_size=2))
    noise = f(jnp.array(2.0), jnp.array([1.0, 4.0, 7.0]))
    # In float32, so not to the 1e-7 that NumPy compares to by default.
    found = [noise.trace, noise.square, noise.scale]
    np.testing.assert_allclose(found, [9, 1, 9], rtol=1e-6)
    # Padding counts for nothing, even where it is NaN.
    padded = jnp.array([1.0, 4.0, jnp.nan, 7.0])
    same = f(jnp.array(2.0), padded, weight=jnp.array([1.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose([same.trace, same.square], [9, 1], rtol=1e-6)


def test_a_gradient_that_noise_hides_has_an_infinite_noise_scale():
    # Gradients -1 and 1: mean 0, variance 2, so |G|^2 is estimated as -1.
    f = jax.jit(gradient_noise_scale(quadratic))
    noise = f(jnp.array(2.0), jnp.array([3.0, 1.0]))
    assert (noise.trace, noise.square, noise.scale) == (2, -1, np.inf)


def test_both_estimators_of_the_noise_scale_are_unbiased():
    # Gradients with mean (1, 2) and covariance L L^T, in 10,000 batches of five.
    mean, factor = np.array([1.0, 2.0]), np.array([[3.0, 0.0], [1.0, 2.0]])
    draws = np.random.default_rng(0).normal(size=(10_000, 5, 2)) @ factor.T + mean
    f = gradient_noise_scale(lambda w, g: w @ g)
    noise = jax.jit(jax.vmap(f, in_axes=(None, 0)))(
        jnp.zeros(2), jnp.asarray(draws, jnp.float32)
    )
    for estimates, truth in (
        (noise.trace, np.trace(factor @ factor.T)),
        (noise.square, mean @ mean),
    ):
        estimates = np.asarray(estimates, np.float64)
        error = estimates.std() / np.sqrt(estimates.size)
        assert abs(estimates.mean() - truth) < 3 * error
        # The bound is no wider than a fortieth: what is biased by 1/n is outside.
        assert 3 * error < truth / 20


@pytest.mark.parametrize("method", METHODS)
def test_moments_by_hand(method):
    moments = gradient_moments(quadratic, method=method, chunk_size=2)(
        jnp.array(2.0), jnp.array([1.0, 4.0, 7.0])
    )
    assert (moments.mean, moments.square, moments.count) == (-2, 10, 3)
    np.testing.assert_allclose(moments.variance, 9, rtol=1e-6)
    np.testing.assert_allclose(moments.signal_to_noise, 4 / 9, rtol=1e-6)


def test_signal_to_noise_is_0_without_signal_and_infinite_without_noise():
    moments = GradientMoments(
        jnp.array([0.0, 2.0]), jnp.array([0.0, 4.0]), jnp.array(3.0)
    )
    assert moments.signal_to_noise.tolist() == [0, np.inf]


@pytest.mark.parametrize("method", METHODS)
def test_fisher_of_a_model_has_its_structure(method):
    model = MLP(3, 2, (4,), key=jax.random.key(0))
    x, y = jnp.ones((3, 3)), jnp.array([0, 1, 1])
    f = eqx.filter_jit(
        fisher_diagonal(losses.cross_entropy, method=method, trainable="layers.1.*")
    )
    fisher = f(model, x, y)
    assert fisher.layers[0].weight is None
    # Of the bias the gradient is softmax - onehot.
    gap = jax.nn.softmax(jax.vmap(model)(x)) - jax.nn.one_hot(y, 2)
    want = np.mean(np.asarray(gap) ** 2, axis=0)
    np.testing.assert_allclose(fisher.layers[1].bias, want, rtol=1e-5)


def test_squares_and_products_out_of_range_on_the_way_come_out_right():
    @jax.jit
    def run(w, x, d, tiny):
        loss = lambda w, x, d: jnp.sum(w @ x * d)
        cosine = per_example_grad_dot(loss, normalize=True)
        big, tiny, zero = (x, d), (tiny, d / 1e25), (0 * tiny, d)
        return (
            fisher_diagonal(loss)(w, x, d),
            per_example_grad_dot(loss)(w, big, big),
            cosine(w, tiny, tiny),
            cosine(w, zero, tiny),
        )

    # g = d x^T with d = 1e25 and x = 1e-25: squares of both leave float32. The product
    # of gradients of norm 1e-30 is not a float32, but their cosine is.
    x, d, tiny = (
        jnp.full((2, 3), 1e-25),
        jnp.full((2, 2), 1e25),
        jnp.full((2, 3), 1e-30),
    )
    fisher, dot, cosine, of_zero = run(jnp.zeros((2, 3)), x, d, tiny)
    np.testing.assert_allclose(fisher, np.ones((2, 3)), rtol=1e-5)
    np.testing.assert_allclose(dot, np.full((2, 2), 6), rtol=1e-5)
    np.testing.assert_allclose(cosine, np.ones((2, 2)), rtol=1e-5)
    assert (np.asarray(of_zero) == 0).all()


def test_cosines_of_gradients_of_many_entries_that_are_there_already(getkey):
    x = jax.random.normal(getkey(), (3, 5000))
    cosine = per_example_grad_dot(lambda w, x: jnp.sum(w * x), normalize=True)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    got = cosine(jnp.ones(5000), (x,), (x[:2],))
    np.testing.assert_allclose(got, unit @ unit[:2].T, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_products_and_cosines_in_chunks(method):
    w, x = jnp.array([1.0, 2.0]), jnp.arange(10.0).reshape(5, 2)

    @jax.jit
    def run(x):
        loss, options = lambda w, x: w @ x, {"method": method, "chunk_size": 2}
        f, g = (
            per_example_grad_dot(loss, normalize=n, **options) for n in (False, True)
        )
        return f(w, (x,), (x[:3],)), g(w, (x,), (x[:3],))

    products, cosines = run(x)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(products, x @ x[:3].T, rtol=1e-6)
    np.testing.assert_allclose(cosines, unit @ unit[:3].T, rtol=1e-6)


def test_no_gradient_of_one_example_is_formed():
    n, size = 64, 96
    w, x = jnp.ones((size, size)), jnp.ones((n, size))
    loss = lambda w, x: jnp.sum(jnp.tanh(w @ x))
    for method, formed in (("auto", False), ("vmap", True)):

        def run(w, x, method=method):
            dot = per_example_grad_dot(loss, method=method)
            return dot(w, (x,), (x[:9],)), fisher_diagonal(loss, method=method)(w, x)

        compiled = jax.jit(run).lower(w, x).compile().as_text()
        assert (f"[{n},{size},{size}]" in compiled) == formed


def test_what_has_no_statistics_is_refused():
    w, x = jnp.array(2.0), jnp.array([1.0])
    with pytest.raises(ValueError, match="at least two examples that count, got 1"):
        gradient_noise_scale(quadratic)(w, x)
    two, weight = jnp.array([1.0, 4.0]), jnp.array([1.0, 0.0])
    with pytest.raises(ValueError, match="at least two examples that count, got 1"):
        gradient_noise_scale(quadratic)(w, two, weight=weight)
    with pytest.raises(ValueError, match="variance needs the gradients of at least"):
        _ = gradient_moments(quadratic)(w, x).variance
    with pytest.raises(ValueError, match="gradient_moments: the batch is empty"):
        gradient_moments(quadratic)(w, x[:0])
    with pytest.raises(ValueError, match="a batch is a tuple of the arrays"):
        per_example_grad_dot(quadratic)(w, x, (x,))
    with pytest.raises(ValueError, match=r"float32\[\].* and .*float32\[2\]"):
        per_example_grad_dot(quadratic)(w, (x,), (jnp.ones((1, 2)),))
    with pytest.raises(ValueError, match="method must be one of"):
        fisher_diagonal(quadratic, method="formed")
