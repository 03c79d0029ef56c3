"""Both routes to norms and clipped sums, compared."""

import equinox as eqx
import jax
import numpy as np
import pytest

from eqx_mlp import clipped_grad, per_example_grad


def assert_routes_agree(
    loss, model, *batch, clip=0.7, norm_tol=1e-10, sum_tol=1e-9, **call
):
    """`auto` against gradients formed by `vmap(grad)`, clipped and added in NumPy."""

    @eqx.filter_jit
    def both(model, batch, call):
        f = clipped_grad(loss, l2_clip_norm=clip)
        return f(model, *batch, **call), per_example_grad(loss)(model, *batch, **call)

    (sums, stats), rows = both(model, batch, call)
    leaves = [np.asarray(r, dtype=np.float64) for r in jax.tree.leaves(rows)]
    norms = np.sqrt(sum(np.square(r).sum(axis=tuple(range(1, r.ndim))) for r in leaves))
    np.testing.assert_allclose(stats.grad_norm, norms, rtol=norm_tol, atol=1e-30)
    weight = np.asarray(call.get("weight", np.ones(len(norms))))
    factor = weight * np.minimum(1, clip / np.where(norms > 0, norms, 1))
    assert jax.tree.structure(sums) == jax.tree.structure(rows)
    for got, r in zip(jax.tree.leaves(sums), leaves, strict=True):
        terms = factor.reshape(-1, *[1] * (r.ndim - 1)) * r
        # Rounding is that of what is added, which may be far larger than its sum.
        want, scale = terms.sum(axis=0), max(np.abs(terms).max(initial=0), 1e-30)
        np.testing.assert_allclose(got, want, rtol=sum_tol, atol=sum_tol * scale)
    return stats


@pytest.fixture(scope="session")
def routes_agree():
    """The comparison, compiled fast rather than to run fast."""

    def agree(*args, **kwargs):
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            return assert_routes_agree(*args, **kwargs)
        finally:
            jax.config.update("jax_disable_most_optimizations", False)

    return agree


def double_precision(on):
    """A context in which float64 exists, under its name in this version of JAX."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(on)
    from jax.experimental import enable_x64

    return enable_x64(on)


@pytest.fixture(scope="session")
def double():
    return double_precision


@pytest.fixture
def x64():
    with double_precision(True):
        yield
