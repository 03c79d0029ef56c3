"""The door for jax_privacy's users, against jax_privacy itself where it is there."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp.interop import jax_privacy as ours

theirs = pytest.importorskip("jax_privacy.clipping")
dp_accounting = pytest.importorskip("dp_accounting")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PARAMS = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "b": np.linspace(0, 1, 3, dtype=np.float32),
}
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
PADDING = np.array([0, 1, 0, 0, 0, 1], bool)


@pytest.fixture(autouse=True)
def its_own_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def loss(params, x, y):
    out = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean((out - y) ** 2)


def loss_and_aux(params, x, y):
    return loss(params, x, y), {"x": x, "sum": jnp.sum(x)}


def noisy(params, x, y, key):
    return loss(params, x + jax.random.normal(key, x.shape), y)


def agree(got, want):
    """Up to a rounding for each example: theirs adds up in the result's dtype.

    What is added may be larger than the sum: an example's part goes up to 1 or so.
    """
    # Named tuples of the two libraries are different types.
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        largest = max(1, np.abs(b).max())
        rounding = len(X) * jnp.finfo(want[0].dtype).eps * largest
        np.testing.assert_allclose(a, b, rtol=0, atol=float(rounding))


@pytest.mark.parametrize("name", ["clipped_grad", "clipped_fun"])
def test_the_signatures_are_the_same(name):
    of = lambda library: inspect.signature(getattr(library, name)).parameters.values()
    for a, b in zip(of(ours), of(theirs), strict=True):
        assert (a.name, a.kind) == (b.name, b.kind)
        # The transform that changes nothing is another function.
        assert a.default == b.default or a.name == "pre_clipping_transform"
    assert ours.AuxiliaryOutput._fields == theirs.AuxiliaryOutput._fields


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"l2_clip_norm": 0.0, "rescale_to_unit_norm": True},
        {"l2_clip_norm": np.inf},
        {"normalize_by": 3.0, "rescale_to_unit_norm": True},
        {"microbatch_size": 2, "return_values": True, "return_grad_norms": True},
        {"keep_batch_dim": False, "return_values": True},
        {"argnums": (0,), "dtype": jnp.bfloat16},
        {"pre_clipping_transform": lambda g: {"w": 3 * g["w"]}, "microbatch_size": 3},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_clipped_gradients_agree(options):
    options = {"l2_clip_norm": 0.4, "batch_argnums": (1, 2)} | options
    f, g = ours.clipped_grad(loss, **options), theirs.clipped_grad(loss, **options)
    agree(jax.jit(f)(PARAMS, X, Y), jax.jit(g)(PARAMS, X, Y))
    for relation in dp_accounting.NeighboringRelation:
        assert f.sensitivity(relation) == g.sensitivity(relation)
    assert f.sensitivity() == g.sensitivity()


def test_aux_agrees():
    options = {"has_aux": True, "l2_clip_norm": 0.4, "batch_argnums": (1, 2)}
    f = ours.clipped_grad(loss_and_aux, **options)
    g = theirs.clipped_grad(loss_and_aux, **options)
    agree(jax.jit(f)(PARAMS, X, Y), jax.jit(g)(PARAMS, X, Y))
    assert f.has_aux == g.has_aux


def test_padding_agrees():
    options = {"l2_clip_norm": 0.4, "batch_argnums": (1, 2), "microbatch_size": 2}
    f, g = ours.clipped_grad(loss, **options), theirs.clipped_grad(loss, **options)
    call = {"is_padding_example": jnp.asarray(PADDING)}
    agree(jax.jit(f)(PARAMS, X, Y, **call), jax.jit(g)(PARAMS, X, Y, **call))


def test_random_numbers_agree():
    options = {"l2_clip_norm": 0.4, "batch_argnums": (1, 2), "prng_argnum": 3}
    f, g = ours.clipped_grad(noisy, **options), theirs.clipped_grad(noisy, **options)
    key = jax.random.key(5)
    agree(jax.jit(f)(PARAMS, X, Y, key), jax.jit(g)(PARAMS, X, Y, key))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rescale_to_unit_norm": True, "l2_clip_norm": 0.5, "normalize_by": 2.0},
        {"keep_batch_dim": False, "return_norms": True, "microbatch_size": 3},
        {"dtype": jnp.float16},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_clipped_values_agree(options):
    fun = lambda x: {"mean": jnp.mean(x), "sum": jnp.sum(x, axis=0)}
    f, g = ours.clipped_fun(fun, **options), theirs.clipped_fun(fun, **options)
    agree(jax.jit(f)(X), jax.jit(g)(X))
    assert f.sensitivity() == g.sensitivity()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_argnums": 0},
        {"batch_argnums": ()},
        {"batch_argnums": -1},
        {"normalize_by": 0.0},
    ],
)
def test_both_refuse_the_same_options(options):
    for library in (ours, theirs):
        with pytest.raises(ValueError):  # noqa: PT011
            library.clipped_grad(loss, l2_clip_norm=1.0, **options)
