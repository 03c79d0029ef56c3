"""Every layer with parameters, on vectors and sequences, once and twice."""

import os

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

D, T, B = 4, 3, 3


def conv_of(cls, ndim, **options):
    def build(key):
        layer = cls(2, 2, 3, padding=1, groups=2, key=key, **options)

        def apply(m, x):
            image = jnp.stack([x, jnp.cos(x)]).reshape(2, D, *[1] * (ndim - 1))
            return jnp.resize(m(image), (D,))

        return layer, apply

    return build


def cell_of(cls, state):
    def build(key):
        def apply(m, x):
            out = m(x, state(x))
            return out[0] * out[1] if isinstance(out, tuple) else out

        return cls(D, D, key=key), apply

    return build


def plain(make):
    return lambda key: (make(key), lambda m, x: m(x))


def embedding(key):
    def apply(m, x):
        ids = (jnp.abs(x) * 5).astype(int) % 5
        return x * jax.vmap(m)(ids).sum(0) + m(ids[0])

    return eqx.nn.Embedding(5, D, key=key), apply


def attention(key):
    def apply(m, x):
        rows = jnp.stack([x, jnp.sin(x), x**2])
        return m(rows, rows, rows).sum(0)

    return eqx.nn.MultiheadAttention(2, D, use_query_bias=True, key=key), apply


def affine(make):
    """Layers whose parameters start at 0 or 1 are moved off them."""

    def build(key):
        layer = make(key)
        moved = jax.tree.map(
            lambda p: (
                p + 0.3 * jnp.cos(jnp.arange(p.size, dtype=p.dtype)).reshape(p.shape)
                if eqx.is_inexact_array(p)
                else p
            ),
            layer,
        )
        return moved, lambda m, x: m(x)

    return build


def spectral(key):
    layer, state = eqx.nn.make_with_state(
        lambda: eqx.nn.SpectralNorm(eqx.nn.Linear(D, D, key=key), "weight", key=key)
    )()
    leaves, tree = jax.tree.flatten(state)
    return layer, lambda m, x: m(x, jax.tree.unflatten(tree, leaves))[0]


def batch_norm_in_inference(key):
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(D, "batch", mode="ema")
    layer = eqx.nn.inference_mode(layer)
    state = jax.tree.map(
        lambda s: s + 1.0 if eqx.is_inexact_array(s) else ~s if s.dtype == bool else s,
        state,
    )
    leaves, tree = jax.tree.flatten(state)
    return layer, lambda m, x: m(x, jax.tree.unflatten(tree, leaves))[0]


LAYERS = {
    "Linear": plain(lambda key: eqx.nn.Linear(D, D, key=key)),
    "MLP": plain(lambda key: eqx.nn.MLP(D, D, 5, 2, key=key)),
    "Conv1d": conv_of(eqx.nn.Conv1d, 1),
    "Conv2d": conv_of(eqx.nn.Conv2d, 2, stride=2),
    "Conv3d": conv_of(eqx.nn.Conv3d, 3, dilation=1),
    "ConvTranspose1d": conv_of(eqx.nn.ConvTranspose1d, 1, dilation=2),
    "ConvTranspose2d": conv_of(eqx.nn.ConvTranspose2d, 2),
    "ConvTranspose3d": conv_of(eqx.nn.ConvTranspose3d, 3),
    "Embedding": embedding,
    "GRUCell": cell_of(eqx.nn.GRUCell, jnp.sin),
    "LSTMCell": cell_of(eqx.nn.LSTMCell, lambda x: (jnp.sin(x), jnp.cos(x))),
    "MultiheadAttention": attention,
    "LayerNorm": affine(lambda key: eqx.nn.LayerNorm(D)),
    "RMSNorm": affine(lambda key: eqx.nn.RMSNorm(D)),
    "GroupNorm": affine(lambda key: eqx.nn.GroupNorm(2, D)),
    "PReLU": plain(lambda key: eqx.nn.PReLU(0.2)),
    "WeightNorm": plain(lambda key: eqx.nn.WeightNorm(eqx.nn.Linear(D, D, key=key))),
    "SpectralNorm": spectral,
    "BatchNorm": batch_norm_in_inference,
}


def cast(model, dtype):
    return jax.tree.map(
        lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, model
    )


# Without this, three of the eight combinations a layer; all of them take minutes.
EVERYTHING = "EQX_MLP_LONG_TESTS" in os.environ


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_auto_agrees_with_vmap(name, wide, getkey, routes_agree, double):
    with double(wide):
        dtype = jnp.float64 if wide else jnp.float32
        layer, apply = LAYERS[name](getkey())
        layer = cast(layer, dtype)
        tolerance = 1e-10 if wide else 2e-5
        sum_tolerance = 1e-9 if wide else 2e-5
        x = jax.random.normal(getkey(), (B, T, D), dtype)

        def once(m, x):
            return jnp.sum(jnp.sin(apply(m, x)))

        def twice(m, x):
            return jnp.sum(jnp.sin(apply(m, apply(m, x))))

        def rows(use):
            return lambda m, x: jnp.sum(jax.vmap(lambda row: use(m, row))(x))

        chosen = [(once, x[:, 0]), (rows(twice), x)] if wide else [(twice, x[:, 0])]
        if EVERYTHING:
            chosen = [
                pair
                for use in (once, twice)
                for pair in ((use, x[:, 0]), (rows(use), x))
            ]
        for loss, batch in chosen:
            routes_agree(loss, layer, batch, norm_tol=tolerance, sum_tol=sum_tolerance)
