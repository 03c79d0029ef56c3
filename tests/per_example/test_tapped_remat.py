"""Calls that are computed again for the backward pass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import (
    clipped_grad,
    explain,
    per_example_grad_dot,
    per_example_grad_norm,
)

SIZE = 3


def layer(seed, dtype=jnp.float64):
    key = jax.random.key(seed)
    return eqx.nn.MLP(SIZE, SIZE, 5, 1, activation=jnp.tanh, dtype=dtype, key=key)


def stack(layers):
    arrays = [eqx.filter(x, eqx.is_array) for x in layers]
    return jax.tree.map(lambda *x: jnp.stack(x), *arrays)


def block(m, x):
    return jnp.tanh(m(x))


checkpointed = eqx.filter_checkpoint(block)
REST = eqx.partition(layer(0, jnp.float32), eqx.is_array)[1]


def chain(ms, x):
    for m in ms:
        x = checkpointed(m, x)
    return jnp.sum(jnp.sin(x))


def with_rows(ms, x):
    rows = jnp.stack([x, jnp.cos(x)])
    apply = eqx.filter_checkpoint(lambda m, x: jax.vmap(m)(x))
    return jnp.sum(jnp.sin(apply(ms[1], apply(ms[0], rows))))


def one_in_another(ms, x):
    both = eqx.filter_checkpoint(lambda ms, x: ms[1](checkpointed(ms[0], x)))
    return jnp.sum(jnp.sin(both(ms[:2], x))) + jnp.sum(ms[2](x))


def used_twice(ms, x):
    return jnp.sum(jnp.sin(checkpointed(ms[0], checkpointed(ms[0], x)))) + ms[1](x)[0]


def over_a_stack(ms, x, own=False):
    first, stacked = ms

    @eqx.filter_checkpoint
    def step(arrays, x):
        x = block(eqx.combine(arrays, REST), x)
        return first(x) if own else x

    x, _ = jax.lax.scan(lambda x, arrays: (step(arrays, x), None), x, stacked)
    return jnp.sum(jnp.sin(x)) + jnp.sum(first(x))


def over_a_stack_and_a_constant(ms, x):
    return over_a_stack(ms, x, own=True)


LOSSES = {
    chain: False,
    with_rows: False,
    one_in_another: False,
    used_twice: False,
    over_a_stack: True,
    over_a_stack_and_a_constant: True,
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", LOSSES)
def test_a_call_that_is_computed_again_is_exact(loss, routes_agree):
    ms = [layer(i) for i in range(3)]
    if LOSSES[loss]:
        ms = (ms[0], stack(ms))
    x = jax.random.normal(jax.random.key(1), (3, SIZE), jnp.float64)
    assert not explain(loss)(ms, x).fallbacks
    routes_agree(loss, ms, x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("rows", "rule"), [(1, "|a||d|"), (6, "formed")])
@pytest.mark.parametrize("wrap", [eqx.filter_checkpoint, lambda f: f])
def test_layers_that_the_loss_stacks_itself_keep_their_rule(
    wrap, rows, rule, routes_agree
):
    ms = [layer(i) for i in range(3)]

    def loss(ms, x):
        apply = lambda arrays, x: jax.vmap(eqx.combine(arrays, REST))(x)
        step = wrap(lambda arrays, x: jnp.tanh(apply(arrays, x)))
        x, _ = jax.lax.scan(lambda x, arrays: (step(arrays, x), None), x, stack(ms))
        return jnp.sum(jnp.sin(x))

    x = jax.random.normal(jax.random.key(1), (3, rows, SIZE), jnp.float64)
    plan = explain(loss)(ms, x).parameters
    weights = [p.rule for p in plan if p.path.endswith("weight")]
    assert {found.split(",")[0] for found in weights} == {rule}
    routes_agree(loss, ms, x)


@pytest.mark.usefixtures("x64")
def test_a_stack_with_one_parameter_twice_or_also_elsewhere_is_exact(routes_agree):
    ws = [jax.random.normal(jax.random.key(i), (2, SIZE), jnp.float64) for i in (0, 1)]
    x = jax.random.normal(jax.random.key(2), (3, SIZE), jnp.float64)
    apply = lambda ws, x: jnp.sum(jnp.sin(jnp.einsum("kij,j->ki", jnp.stack(ws), x)))
    routes_agree(lambda ws, x: apply([ws[0], ws[0]], x), ws, x)
    routes_agree(lambda ws, x: apply(ws, x) + jnp.sum(ws[0] @ x), ws, x)
    summed = lambda ws, x: jnp.einsum("kij,kj->i", jnp.stack(ws), jnp.stack([x, x**2]))
    routes_agree(lambda ws, x: jnp.sum(jnp.sin(summed(ws, x))), ws, x)


@pytest.mark.parametrize("stacked", [False, True])
def test_an_example_of_nan_is_left_out(stacked):
    ms = [layer(i, jnp.float32) for i in range(2)]
    loss, ms = (over_a_stack, (ms[0], stack(ms))) if stacked else (chain, ms)
    x = jax.random.normal(jax.random.key(1), (4, SIZE))
    f = eqx.filter_jit(clipped_grad(loss, l2_clip_norm=0.5))
    grads, stats = f(ms, x.at[1].set(jnp.nan))
    expected, _ = f(ms, x, weight=jnp.array([1.0, 0.0, 1.0, 1.0]))
    np.testing.assert_array_equal(np.isnan(stats.grad_norm), [0, 1, 0, 0])
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_parameters_of_one_call_are_clipped_by_the_norms_of_their_own_groups():
    ms = [layer(i, jnp.float32) for i in range(2)]
    x = jax.random.normal(jax.random.key(1), (4, SIZE)).at[1].set(jnp.nan)
    limits = jax.tree.map(lambda p: 0.1 * p.ndim, eqx.filter(ms, eqx.is_array))
    auto, vmap = (
        jax.tree.leaves(clipped_grad(chain, l2_clip_norm=limits, method=m)(ms, x)[0])
        for m in ("auto", "vmap")
    )
    for a, b in zip(auto, vmap, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_cosines_of_gradients_of_such_calls():
    ms = [layer(i, jnp.float32) for i in range(2)]
    x = jax.random.normal(jax.random.key(1), (4, SIZE))
    auto, vmap = (
        per_example_grad_dot(chain, normalize=True, method=m)(ms, (x,), (x[:2],))
        for m in ("auto", "vmap")
    )
    np.testing.assert_allclose(auto, vmap, rtol=1e-5, atol=1e-6)


def test_memory_holds_one_layer_of_a_stack():
    size, depth, batch = 32, 6, 256

    def net(key):
        return eqx.nn.MLP(size, size, 4 * size, 2, activation=jnp.tanh, key=key)

    keys = jax.random.split(jax.random.key(0), depth)
    stacked, rest = eqx.partition(eqx.filter_vmap(net)(keys), eqx.is_array)

    def bytes_of(wrap):
        def loss(stacked, x):
            step = wrap(lambda arrays, x: x + eqx.combine(arrays, rest)(x))
            x, _ = jax.lax.scan(lambda x, own: (step(own, x), None), x, stacked)
            return jnp.sum(x)

        x = jax.ShapeDtypeStruct((batch, size), jnp.float32)
        program = jax.jit(per_example_grad_norm(loss)).lower(stacked, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    kept, again = bytes_of(lambda f: f), bytes_of(jax.checkpoint)
    # What enters and leaves each layer stays. Of one layer there are two hidden values
    # of four times the size, before and after tanh, and their cotangents; older
    # versions of XLA keep one of these twice.
    wanted = 4 * batch * size * (2 * depth + 2 * 4 * 4 + 4 + 4)
    assert again < wanted < kept / 2
