"""The door for jax_privacy's users, against values worked out by hand."""

import enum

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import MLP, losses
from eqx_mlp import clipped_grad as our_clipped_grad
from eqx_mlp.interop.jax_privacy import clipped_fun, clipped_grad

# Of w = 2: losses 0.5, 2, 12.5 and gradients 1, -2, -5.
W, X = jnp.array([2.0]), jnp.array([[1.0], [4.0], [7.0]])


def half_square(w, x):
    assert (w.ndim, x.ndim) == (1, 2)
    return 0.5 * jnp.mean((w[None] - x) ** 2)


def of_numbers(w, x):
    return 0.5 * jnp.mean((x - w) ** 2)


class TestDocumentedExamples:
    @pytest.fixture(autouse=True)
    def standard_promotion(self):
        with jax.numpy_dtype_promotion("standard"):
            yield

    def test_the_sum_of_gradients(self):
        total = clipped_grad(of_numbers, l2_clip_norm=jnp.inf)(
            3.0, jnp.array([0, 7, -2])
        )
        assert (total, total.dtype, total.shape) == (4.0, jnp.float32, ())

    def test_values_and_norms(self):
        f = clipped_grad(
            of_numbers, l2_clip_norm=jnp.inf, return_values=True, return_grad_norms=True
        )
        total, aux = f(3.0, jnp.array([0, 7, -2]))
        assert total == 4
        assert aux.values.tolist() == [4.5, 8, 12.5]
        assert aux.grad_norms.tolist() == [3, 4, 5]
        assert aux.aux is None

    def test_users_with_several_examples(self):
        f = clipped_grad(of_numbers, l2_clip_norm=jnp.inf, keep_batch_dim=False)
        assert f(3.0, jnp.array([[1, -1], [2, 2], [0, 3]])) == 5.5

    def test_a_clipped_mean(self):
        assert clipped_fun(jnp.mean, l2_clip_norm=1.0)(jnp.arange(6)) == 5

    def test_parameters_may_be_python_numbers_and_draw_noise(self):
        def noisy(params, data, key):
            out = params["w"] * data + params["b"]
            return jnp.mean(out + jax.random.normal(key, out.shape))

        f = clipped_grad(noisy, l2_clip_norm=1.0, prng_argnum=2)
        x = jnp.array([10.0, 20.0, 30.0])
        total = f({"w": 2.5, "b": 1.0}, x, jax.random.key(0))
        # Gradients (x, 1), each scaled to length 1.
        length = np.hypot(x, 1)
        np.testing.assert_allclose(total["w"], np.sum(x / length), rtol=1e-6)
        np.testing.assert_allclose(total["b"], np.sum(1 / length), rtol=1e-6)


@pytest.mark.parametrize("microbatch_size", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("options", "padding", "total"),
    [
        ({}, None, -3.5),
        ({"rescale_to_unit_norm": True}, None, -1.4),
        ({"normalize_by": 4.0}, None, -0.875),
        ({"rescale_to_unit_norm": True, "normalize_by": 2.0}, None, -0.7),
        ({}, [False] * 3, -3.5),
        ({}, [True, False, False], -4.5),
        ({"rescale_to_unit_norm": True}, [False, True, True], 0.4),
        ({}, [True] * 3, 0.0),
    ],
)
def test_gradients_1_2_5_clipped_at_2_and_a_half(
    microbatch_size, options, padding, total
):
    f = clipped_grad(
        half_square, l2_clip_norm=2.5, microbatch_size=microbatch_size, **options
    )
    call = {} if padding is None else {"is_padding_example": jnp.array(padding)}
    np.testing.assert_allclose(jax.jit(f)(W, X, **call), [total], rtol=1e-6)


@pytest.mark.parametrize(
    ("clip", "rescale", "total"),
    [
        (0.0, False, 0.0),
        (0.0, True, 1 - 1 - 1),
        (np.inf, False, 1 - 2 - 5),
        (np.inf, True, 0.0),
    ],
)
def test_the_ends_of_the_range_of_clipping_norms(clip, rescale, total):
    options = {"l2_clip_norm": clip, "rescale_to_unit_norm": rescale}
    # A fourth example that is fitted exactly has a gradient of zero, scaled by nothing.
    x = jnp.concatenate([X, W[None]])
    np.testing.assert_array_equal(clipped_grad(half_square, **options)(W, x), [total])
    signed = lambda x: jnp.sum(W[None] - x)
    np.testing.assert_array_equal(clipped_fun(signed, **options)(x), total)


def test_a_clipping_norm_known_later_that_is_negative_or_nan_lets_nothing_through():
    @jax.jit
    def f(clip):
        return clipped_grad(half_square, l2_clip_norm=clip)(W, X)

    for clip, total in [(2.5, -3.5), (-2.5, 0), (jnp.nan, 0)]:
        np.testing.assert_allclose(f(jnp.array(clip)), [total], rtol=1e-6)


class Relation(enum.Enum):
    ADD_OR_REMOVE_ONE = 1
    REPLACE_ONE = 2
    REPLACE_SPECIAL = 3
    ANOTHER = 4


@pytest.mark.parametrize("make", [clipped_grad, clipped_fun])
@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({"l2_clip_norm": 3.0}, 3.0),
        ({"l2_clip_norm": 3.0, "normalize_by": 4.0}, 0.75),
        ({"l2_clip_norm": 3.0, "rescale_to_unit_norm": True}, 1.0),
        (
            {"l2_clip_norm": 3.0, "rescale_to_unit_norm": True, "normalize_by": 4.0},
            0.25,
        ),
    ],
)
def test_the_sensitivity_is_the_clipping_norm_and_twice_that_to_replace(
    make, options, bound
):
    f = make(half_square, **options)
    assert (f.l2_norm_bound, f.has_aux) == (bound, False)
    assert f.sensitivity() == bound
    assert f.sensitivity(Relation.ADD_OR_REMOVE_ONE) == bound
    assert f.sensitivity(Relation.REPLACE_SPECIAL) == bound
    assert f.sensitivity(Relation.REPLACE_ONE) == 2 * bound
    with pytest.raises(ValueError, match=r"ADD_OR_REMOVE_ONE.*got 'ANOTHER'"):
        f.sensitivity(Relation.ANOTHER)


def test_no_example_moves_the_sum_by_more_than_the_sensitivity(getkey):
    model = {"w": jax.random.normal(getkey(), (4, 3)), "b": jnp.zeros(3)}
    x = jax.random.normal(getkey(), (9, 4))
    loss = lambda model, x: jnp.mean(jnp.tanh(x @ model["w"] + model["b"][None]) ** 2)
    f = clipped_grad(loss, l2_clip_norm=0.1, normalize_by=2.0)
    total = jax.jit(f)(model, x)

    def moved(*neighbour, **call):
        difference = jax.tree.map(jnp.subtract, jax.jit(f)(*neighbour, **call), total)
        return np.linalg.norm(jnp.concatenate(jax.tree.leaves(difference), axis=None))

    for row in ([100.0, -100.0, 1e-3, 0.0], [jnp.nan] * 4, [jnp.inf] * 4):
        assert moved(model, x.at[3].set(jnp.array(row))) <= f.sensitivity(
            "REPLACE_ONE"
        ) * (1 + 1e-6)
    assert moved(model, x[1:]) <= f.sensitivity("ADD_OR_REMOVE_ONE") * (1 + 1e-6)
    padding = jnp.zeros(9, bool).at[3].set(True)
    assert moved(model, x, is_padding_example=padding) <= f.sensitivity() * (1 + 1e-6)


@pytest.mark.parametrize("microbatch_size", [None, 2])
def test_padding_may_hold_anything_and_is_told_as_zeros(microbatch_size):
    def loss(w, x):
        return half_square(w, x), {"x": x}

    f = clipped_grad(
        loss,
        has_aux=True,
        l2_clip_norm=2.5,
        return_values=True,
        return_grad_norms=True,
        microbatch_size=microbatch_size,
        nan_safe=False,
    )
    padding = jnp.array([False, True, False])
    total, aux = f(W, X.at[1].set(jnp.nan), is_padding_example=padding)
    np.testing.assert_allclose(total, [-1.5])
    np.testing.assert_allclose(aux.values, [0.5, 0, 12.5])
    np.testing.assert_allclose(aux.grad_norms, [1, 0, 5])
    np.testing.assert_allclose(aux.aux["x"], [[1], [0], [7]])


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_is_left_out_or_with_nan_safe_off_stays_where_it_is(bad):
    # Gradients are the rows themselves.
    x = jnp.array([[3.0, 4.0], [bad, 1.0]])
    dot = lambda w, x: jnp.sum(w * x[0])
    identity = lambda x: x[0]
    for nan_safe, total in ((True, [0.6, 0.8]), (False, [jnp.nan, 0.8])):
        options = {"l2_clip_norm": 1.0, "nan_safe": nan_safe}
        f = clipped_grad(dot, return_grad_norms=True, **options)
        got, aux = f(jnp.ones(2), x)
        np.testing.assert_allclose(got, total, rtol=1e-6)
        assert not np.isfinite(aux.grad_norms[1])
        np.testing.assert_allclose(clipped_fun(identity, **options)(x), total, 1e-6)


def test_each_example_draws_from_its_own_part_of_the_key():
    def drawn(w, x, keys):
        return jnp.sum(w[None] * x) * jax.random.uniform(keys["a"])

    w, x, key = jnp.ones(1), jnp.ones((5, 1)), jax.random.key(3)
    wanted = jax.vmap(jax.random.uniform)(jax.random.split(key, 5))
    for microbatch_size in (None, 2):
        options = {
            "l2_clip_norm": jnp.inf,
            "prng_argnum": 2,
            "microbatch_size": microbatch_size,
        }
        f = clipped_grad(drawn, return_grad_norms=True, **options)
        _, aux = f(w, x, {"a": key})
        np.testing.assert_allclose(aux.grad_norms, wanted, rtol=1e-6)
        f = clipped_fun(drawn, batch_argnums=1, return_norms=True, **options)
        np.testing.assert_allclose(f(w, x, {"a": key})[1], wanted, rtol=1e-6)


def test_an_example_is_a_batch_of_one_and_what_it_tells_loses_that_axis():
    def fun(x):
        assert x.shape == (1, 4, 9)
        total = jnp.sum(x)
        return total, (total, x[:, 0, 0], x[:, :, 0], x, x[:, None])

    f = clipped_fun(fun, has_aux=True)
    _, aux = f(jnp.zeros((15, 4, 9)))
    shapes = [a.shape for a in aux]
    assert shapes == [(15,), (15,), (15, 4), (15, 4, 9), (15, 1, 4, 9)]


def test_what_is_returned_follows_what_is_asked_for():
    x = jnp.array([1.0, 2.0, 3.0])
    square = lambda x: jnp.sum(x**2)
    with_aux = lambda x: (square(x), x)
    f = lambda fun, **options: clipped_fun(fun, l2_clip_norm=jnp.inf, **options)(x)
    assert f(square) == 14
    value, norms = f(square, return_norms=True)
    assert (float(value), norms.tolist()) == (14, [1, 4, 9])
    value, aux = f(with_aux, has_aux=True)
    assert (float(value), aux.tolist()) == (14, [1, 2, 3])
    value, (aux, norms) = f(with_aux, has_aux=True, return_norms=True)
    assert (aux.tolist(), norms.tolist()) == ([1, 2, 3], [1, 4, 9])
    assert clipped_fun(square, return_norms=True).has_aux
    assert clipped_grad(half_square, l2_clip_norm=1.0, return_values=True).has_aux


@pytest.mark.parametrize("microbatch_size", [None, 1])
def test_a_transform_changes_what_is_clipped_and_not_the_norm_that_is_told(
    microbatch_size,
):
    def loss(p, x):
        return jnp.sum((p["w"] * x + p["b"] - x) ** 2)

    # At w = 2, b = 1 the gradients are (4, 4) and (12, 6).
    f = clipped_grad(
        loss,
        l2_clip_norm=1.0,
        pre_clipping_transform=lambda g: [0.1 * g["w"], g["b"]],
        return_grad_norms=True,
        return_values=True,
        microbatch_size=microbatch_size,
    )
    params = {"w": jnp.array(2.0), "b": jnp.array(1.0)}
    total, aux = f(params, jnp.array([1.0, 2.0]))
    lengths = np.hypot([0.4, 1.2], [4, 6])
    wanted = [np.sum([0.4, 1.2] / lengths), np.sum([4, 6] / lengths)]
    np.testing.assert_allclose(total, wanted, rtol=1e-6)
    np.testing.assert_allclose(aux.grad_norms, np.hypot([4, 12], [4, 6]), rtol=1e-6)
    np.testing.assert_allclose(aux.values, [4, 9])


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_sum_is_kept_in_float32_and_returned_in_the_dtype_asked_for(dtype):
    # 3 * 30000 is more than float16 holds, and 256 + 1 is 256 in bfloat16.
    rows = [30000.0] * 3 if dtype == jnp.float16 else [256.0, 1.0, 1.0]
    x, w = jnp.array(rows, dtype), jnp.ones((), dtype)
    loss = lambda w, x: jnp.sum(w * x)
    options = {"l2_clip_norm": jnp.inf}
    assert clipped_grad(loss, **options)(w, x).dtype == dtype
    total = clipped_grad(loss, dtype=jnp.float32, **options)(w, x)
    wide = clipped_fun(jnp.sum, dtype=jnp.float32, **options)(x)
    exact = float(jnp.sum(x.astype(jnp.float32)))
    for value in (total, wide):
        assert (value.dtype, float(value)) == (jnp.float32, exact)
    assert clipped_fun(jnp.sum, **options)(x).dtype == dtype


def test_arguments_have_the_roles_that_they_are_given():
    def loss(scale, x, b, w, *, shift):
        # Keyword arguments have a row an example too, without the axis of size 1.
        assert (x.shape, shift.shape, scale) == ((1, 2), (2,), 3)
        return jnp.sum(scale * w["w"] * x) + jnp.sum(b * shift)

    x, shift = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[5.0, 6.0], [7.0, 8.0]])
    f = clipped_grad(loss, (3, 2), batch_argnums=[1], l2_clip_norm=jnp.inf)
    w, b = f(3, x, jnp.ones(2), {"w": jnp.ones((1, 2))}, shift=shift)
    np.testing.assert_allclose(w["w"], [[12, 18]])
    np.testing.assert_allclose(b, [12, 14])
    one = clipped_grad(loss, (2,), l2_clip_norm=jnp.inf)
    assert len(one(3, x, jnp.ones(2), {"w": jnp.ones((1, 2))}, shift=shift)) == 1


@pytest.mark.parametrize("axis", [None, "batch"])
def test_an_equinox_model_is_clipped_as_by_this_librarys_own_function(axis, getkey):
    model = MLP(5, 3, (4,), key=getkey())
    x, y = jax.random.normal(getkey(), (6, 5)), jnp.arange(6) % 3
    f = clipped_grad(
        losses.cross_entropy,
        l2_clip_norm=0.3,
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        spmd_axis_name=axis,
        return_grad_norms=True,
    )
    got, aux = eqx.filter_jit(f)(model, x, y)
    ours = eqx.filter_jit(our_clipped_grad(losses.cross_entropy, l2_clip_norm=0.3))
    want, stats = ours(model, x, y)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(aux.grad_norms, stats.grad_norm, rtol=1e-6)


@pytest.mark.parametrize("keep_batch_dim", [True, False])
def test_no_gradient_of_one_example_exists_without_a_transform(keep_batch_dim):
    n, size = 64, 96
    w, x = jnp.ones((size, size)), jnp.ones((n, size))
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    options = {"l2_clip_norm": 1.0, "keep_batch_dim": keep_batch_dim}
    for more, formed in (({}, False), ({"pre_clipping_transform": lambda g: g}, True)):
        f = jax.jit(clipped_grad(loss, **options, **more))
        assert (f"[{n},{size},{size}]" in f.lower(w, x).compile().as_text()) == formed


def test_an_empty_batch_gives_zeros():
    for microbatch_size in (None, 2):
        options = {"l2_clip_norm": 1.0, "microbatch_size": microbatch_size}
        np.testing.assert_array_equal(clipped_grad(half_square, **options)(W, X[:0]), 0)
        np.testing.assert_array_equal(clipped_fun(jnp.sum, **options)(X[:0]), 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_argnums": 0}, r"overlap.*argnums=\(0,\), batch_argnums=\(0,\)"),
        ({"batch_argnums": ()}, "batch_argnums must not be empty"),
        ({"batch_argnums": -1}, r"count from 0, got .*batch_argnums=\(-1,\)"),
        ({"prng_argnum": 1}, r"overlap.*prng_argnum=\(1,\)"),
        ({"normalize_by": 0.0}, "normalize_by must be a number above 0, got 0.0"),
        ({"l2_clip_norm": -1.0}, "l2_clip_norm must be a number at least 0, got -1.0"),
        ({"l2_clip_norm": {"w": 1.0}}, "l2_clip_norm must be one number"),
        ({"l2_clip_norm": np.ones(2)}, "l2_clip_norm must be one number"),
        ({"microbatch_size": 0}, "microbatch_size is the number of examples"),
    ],
)
def test_options_that_cannot_be_meant_are_a_value_error(options, match):
    with pytest.raises(ValueError, match=match):
        clipped_grad(half_square, **({"l2_clip_norm": 1.0} | options))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: f(W), "clipped_grad: argument 1 is missing: got 1 positional"),
        (lambda f: f(W, (X, X[:2])), r"argument 1\[0\]: 3, argument 1\[1\]: 2"),
        (lambda f: f(W, X, mask=jnp.ones(2)), r"argument 2\['mask'\]: 2"),
        (lambda f: f(W, jnp.array(1.0)), "argument 1 of the batch has no axis 0"),
        (
            lambda f: f(W, X, is_padding_example=jnp.zeros(2, bool)),
            r"one boolean an example, shape \(3,\), got shape \(2,\)",
        ),
        (
            lambda f: f(W, X, is_padding_example=jnp.zeros(3)),
            "one boolean an example.*dtype float32",
        ),
        (lambda f: f(jnp.array(1), X), "no trainable parameter"),
    ],
)
def test_a_bad_call_is_a_value_error(call, match):
    with pytest.raises(ValueError, match=match):
        call(clipped_grad(half_square, l2_clip_norm=1.0))


def test_what_cannot_be_clipped_is_a_value_error():
    def squares(w, x):
        return (w[None] - x) ** 2

    with pytest.raises(ValueError, match=r"squares.*one floating-point.*\(1, 1\)"):
        clipped_grad(squares, l2_clip_norm=1.0)(W, X)
    with pytest.raises(ValueError, match="floating-point values, got int32"):
        clipped_fun(jnp.sum)(jnp.arange(3))
    assert clipped_fun(jnp.sum, dtype=jnp.float32)(jnp.arange(3)) == 2
