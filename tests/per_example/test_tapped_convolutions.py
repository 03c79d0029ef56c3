"""Convolutions with every option, against gradients formed one by one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import explain, per_example_grad_norm

pytestmark = pytest.mark.usefixtures("x64")

SIZES = {"N": 1, "C": 4, "O": 6, "I": 2, "H": 3, "W": 2}


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape, jnp.float64)


def conv(layout, **options):
    return lambda w, x: jnp.sum(
        jnp.sin(jax.lax.conv_general_dilated(x, w, dimension_numbers=layout, **options))
    )


def rules(loss, model, *batch):
    return [p.rule for p in explain(loss)(model, *batch).parameters]


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (("NCHW", "OIHW", "NCHW"), {}),
        (("NHWC", "HWIO", "NHWC"), {"rhs_dilation": (2, 1)}),
        (("NCHW", "OHWI", "NHWC"), {"lhs_dilation": (1, 2)}),
        (
            ("HWNC", "WIHO", "HNWC"),
            {"lhs_dilation": (2, 1), "window_strides": (2, 3)},
        ),
    ],
)
def test_layouts_strides_dilations_and_groups(layout, options, routes_agree):
    options = {
        "window_strides": (1, 2),
        "padding": ((2, -1), (0, 2)),
        "feature_group_count": 2,
    } | options
    image = {"N": 2, "C": 4, "H": 5, "W": 4}
    x = normal(0, 3, *(image[axis] for axis in layout[0]))
    w = normal(1, *(SIZES[axis] for axis in layout[1]))
    loss = conv(layout, **options)
    assert rules(loss, w, x) == ["formed"]
    routes_agree(loss, w, x)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("size", "rule"), [(3, "|a||d|"), (4, "Gram"), (8, "formed")])
def test_by_the_number_of_places_another_form_is_cheapest(
    size, rule, groups, routes_agree
):
    layout = ("NCH", "OIH", "NCH")
    x, w = normal(0, 3, 1, 4, size), normal(1, 6, 4 // groups, 3)
    loss = conv(
        layout, window_strides=(1,), padding="VALID", feature_group_count=groups
    )
    assert rules(loss, w, x) == [rule]
    routes_agree(loss, w, x)


def test_float16_kernels_are_summed_in_float32():
    w = jnp.ones((1, 1, 1), jnp.float16)
    x = jnp.full((1, 1, 1, 600), 200, jnp.float16)
    loss = lambda w, x: jnp.sum(jax.lax.conv(x, w, (1,), "VALID").astype(jnp.float32))
    # 600 times 200, which float16 does not hold.
    norm = per_example_grad_norm(loss)(w, x)
    np.testing.assert_allclose(norm, 120_000, rtol=1e-6)


def test_a_kernel_over_steps_and_a_kernel_a_step(routes_agree):
    layer = eqx.nn.Conv1d(4, 4, 3, padding=1, key=jax.random.key(0), dtype=jnp.float64)
    stack = eqx.filter_vmap(
        lambda key: eqx.nn.Conv1d(
            4, 4, 3, padding=1, groups=2, key=key, dtype=jnp.float64
        )
    )(jax.random.split(jax.random.key(1), 3))
    arrays, static = eqx.partition((layer, stack), eqx.is_array)

    def loss(arrays, x):
        layer, _ = eqx.combine(arrays, static)

        def step(h, own):
            return jnp.tanh(layer(eqx.combine(own, static[1])(h))), None

        return jnp.sum(jnp.sin(jax.lax.scan(step, x, arrays[1])[0]))

    x = normal(2, 3, 4, 5)
    assert not explain(loss)(arrays, x).fallbacks
    routes_agree(loss, arrays, x)


def test_no_place_at_all_and_a_kernel_as_input_are_exact(routes_agree):
    layout = ("NCH", "OIH", "NCH")
    options = {"window_strides": (1,), "padding": "VALID"}
    w, short = normal(0, 2, 4, 3), normal(1, 3, 1, 4, 2)
    stats = routes_agree(conv(layout, **options), w, short)
    np.testing.assert_array_equal(stats.grad_norm, 0)
    signal, kernels = normal(0, 1, 4, 6), normal(1, 3, 2, 4, 3)
    loss = lambda w, x: conv(layout, **options)(x, w)
    assert rules(loss, signal, kernels) == ["fallback"]
    routes_agree(loss, signal, kernels)
