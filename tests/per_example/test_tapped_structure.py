"""Calls, loops and prefixes that parameters go through, and where the engine runs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import (
    MLP,
    clipped_grad,
    explain,
    losses,
    per_example_grad,
    per_example_grad_norm,
)

pytestmark = pytest.mark.usefixtures("x64")
key = jax.random.key


def normal(seed, *shape):
    return jax.random.normal(key(seed), shape, jnp.float64)


@jax.custom_vjp
def doubled(w, x):
    return w @ x


doubled.defvjp(
    lambda w, x: (w @ x, (w, x)), lambda r, d: (2 * jnp.outer(d, r[1]), r[0].T @ d)
)


@jax.custom_jvp
def tripled(w, x):
    return w @ x


tripled.defjvp(
    lambda p, t: (p[0] @ p[1], 3 * (t[0] @ p[1]) + p[0] @ t[1]),
)


@pytest.mark.parametrize(("call", "times"), [(doubled, 2), (tripled, 3)])
def test_a_custom_rule_is_kept_when_a_parameter_enters(call, times, routes_agree):
    w, x = normal(0, 2, 3), normal(1, 4, 3)
    loss = lambda w, x: jnp.sum(call(w, x))
    stats = routes_agree(loss, w, x)
    expected = times * np.sqrt(2) * np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(stats.grad_norm, expected, rtol=1e-10)
    assert explain(loss)(w, x).fallbacks == ("",)


@pytest.mark.parametrize("length", [1, 2, 50])
def test_a_recurrent_cell_over_many_steps(length, routes_agree):
    cell = eqx.nn.GRUCell(2, 3, dtype=jnp.float64, key=key(0))

    def loss(cell, x):
        step = lambda h, row: (cell(row, h), h)
        h, seen = jax.lax.scan(step, jnp.zeros(3, jnp.float64), x)
        return jnp.sum(h**2) + jnp.sum(seen**3)

    routes_agree(loss, cell, normal(1, 3, length, 2))
    assert explain(loss)(cell, normal(1, 3, length, 2)).fallbacks == ()


def test_scans_inside_scans_with_parameters_of_every_kind(routes_agree):
    params = {"k": normal(0, 2, 3, 3), "w": normal(1, 3, 3), "h": normal(2, 3)}

    def loss(p, x):
        def outer(h, k):
            inner = lambda h, row: (jnp.tanh(k.T @ h + p["w"] @ row), h.sum())
            return jax.lax.scan(inner, h, x, reverse=True)

        h, seen = jax.lax.scan(outer, p["h"], p["k"])
        return jnp.sum(h**2) + jnp.sum(seen**3)

    routes_agree(loss, params, normal(3, 4, 5, 3))


def test_layers_stacked_along_a_scan_stay_independent(routes_agree):
    loss = lambda ws, x: jnp.sum(
        jax.lax.scan(lambda h, w: (jnp.tanh(w @ h), None), x, ws)[0]
    )
    ws, x = normal(0, 6, 3, 3), normal(1, 4, 3)
    routes_agree(loss, ws, x)
    assert explain(loss)(ws, x).parameters[0].rule == "|a||d|"


PREFIXES = {
    "transposed autoencoder": lambda w, x: jnp.tanh(x @ w) @ w.T,
    "disjoint slices": lambda w, x: (w[:2].T @ x[:2]) * (w[2:].T @ x[:1]),
    "overlapping slices": lambda w, x: (w[:2].T @ x[:2]) * (w[1:].T @ x[:2]),
    "weight norm": lambda w, x: (w / jnp.linalg.norm(w, axis=1, keepdims=True)).T @ x,
    "concatenated": lambda w, x: jnp.concatenate([w, 2 * w]).T @ jnp.tile(x, 2),
    "negated and plain": lambda w, x: (-w).T @ x + w.T @ x**2,
    "as a vector": lambda w, x: w.reshape(-1) * jnp.resize(x, (6,)),
    "broadcast": lambda w, x: jnp.broadcast_to(w, (2, 3, 2)) * x[None, :, None],
    "of no example": lambda w, x: jnp.square(w),
    "split": lambda w, x: jnp.split(w, 3)[0][0] * jnp.split(w, 3)[2][0] * x[:2],
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_happens_to_a_parameter_before_its_use(name, routes_agree):
    loss = lambda w, x: jnp.sum(jnp.sin(PREFIXES[name](w, x)))
    routes_agree(loss, normal(0, 3, 2), normal(1, 4, 3))


def test_a_table_that_is_also_the_output_layer(routes_agree):
    def loss(table, ids):
        logits = table @ jnp.tanh(table[ids]).mean(0)
        return jax.nn.logsumexp(logits) - logits[ids[0]]

    ids = jnp.array([[0, 1, 1], [4, 3, 2]])
    routes_agree(loss, normal(0, 30, 20), ids)
    assert explain(loss)(normal(0, 30, 20), ids).parameters[0].rule == "Gram"


@pytest.mark.parametrize("rows", [10, 11, 60])
def test_many_rows_are_formed_and_few_are_not(rows, routes_agree):
    loss = lambda w, x: jnp.sum(jnp.sin(x @ w))
    w, x = normal(0, 120, 100), normal(1, 2, rows, 120)
    stats = routes_agree(loss, w, x)
    rule = explain(loss)(w, x).parameters[0].rule
    assert rule == ("Gram" if rows**2 < 2 * 120 * 100 / 220 else "formed")
    # For norms alone the Gram form stays the cheaper one up to 54 rows.
    norms = jax.jit(per_example_grad_norm(loss))
    np.testing.assert_allclose(norms(w, x), stats.grad_norm, rtol=1e-12)
    cost = norms.lower(w, x).compile().cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    forward = 2 * 2 * rows * 120 * 100
    assert (cost["flops"] < 1.5 * forward) == (rows < 120 * 100 / 220)


def test_under_jit_vmap_and_scan_it_is_the_same(routes_agree):
    x, y = normal(0, 5, 4), jnp.arange(5) % 3
    make = lambda k: MLP(4, 3, (6,), dtype=jnp.float64, key=k)
    models = eqx.filter_vmap(make)(jax.random.split(key(1), 2))
    f = clipped_grad(losses.cross_entropy, l2_clip_norm=0.3)
    grads, stats = eqx.filter_jit(
        eqx.filter_vmap(f, in_axes=(eqx.if_array(0), None, None))
    )(models, x, y)
    for i in range(2):
        pick = lambda t, i=i: jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, t)
        one, one_stats = f(pick(models), x, y)
        np.testing.assert_allclose(stats.grad_norm[i], one_stats.grad_norm, rtol=1e-10)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
            pick(grads),
            one,
        )

    @jax.jit
    def descend(w, x):
        step = lambda w, _: (w - clipped_grad(square, l2_clip_norm=1.0)(w, x)[0], None)
        return jax.lax.scan(step, w, length=3)[0]

    square = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
    # Each of the two examples pulls by at most 1: (0.5, 0), then to and fro.
    got = descend(jnp.zeros(2), jnp.array([[0.5, 0.0], [9.0, 0.0]]))
    w = 0.0
    for _ in range(3):
        w -= np.clip(w - 0.5, -1, 1) + np.clip(w - 9, -1, 1)
    np.testing.assert_allclose(got, [w, 0], atol=1e-6)


def test_a_donated_model_gives_its_memory_to_the_gradients():
    f = clipped_grad(lambda w, x: jnp.sum(jnp.tanh(w @ x)), l2_clip_norm=0.5)
    update = lambda w, x: w - 0.1 * f(w, x)[0]
    w, x = normal(0, 4, 3), normal(1, 5, 3)
    expected = update(w, x)
    np.testing.assert_allclose(jax.jit(update, donate_argnums=0)(w, x), expected)
    assert w.is_deleted()


def test_flax_parameters_are_a_tree_like_any_other(routes_agree):
    linen = pytest.importorskip("flax.linen")
    module = linen.Dense(3, param_dtype=jnp.float64, dtype=jnp.float64)
    params = module.init(key(0), jnp.ones((1, 4), jnp.float64))
    loss = lambda p, x: jnp.sum(jnp.tanh(module.apply(p, x)))
    routes_agree(loss, params, normal(1, 5, 4))
    routes_agree(loss, params, normal(1, 5, 2, 4))


def test_dropout_masks_do_not_depend_on_chunks_or_method():
    model = MLP(4, 3, (8,), dropout_rate=0.5, dtype=jnp.float64, key=key(0))
    x, y = normal(1, 7, 4), jnp.arange(7) % 3
    call = lambda f: f(losses.cross_entropy)(model, x, y, key=key(5))
    whole = np.linalg.norm(
        np.concatenate(
            [g.reshape(7, -1) for g in jax.tree.leaves(call(per_example_grad))],
            axis=1,
        ),
        axis=1,
    )
    assert len(set(np.round(whole, 6))) == 7
    for size in (None, 1, 3):
        f = lambda loss, size=size: jax.jit(
            lambda *a, key: per_example_grad_norm(loss, chunk_size=size)(
                model, *a, key=key
            )
        )
        got = f(losses.cross_entropy)(x, y, key=key(5))
        np.testing.assert_allclose(got, whole, rtol=1e-10)


def test_a_loss_that_couples_examples_is_refused_with_the_layer():
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    loss = lambda m, x: jnp.sum(m["norms"][0](x, state)[0])
    for method in ("auto", "vmap"):
        f = clipped_grad(loss, l2_clip_norm=1.0, method=method)
        with pytest.raises(ValueError, match=r"model\['norms'\]\[0\] \(BatchNorm\)"):
            f({"norms": [layer]}, normal(0, 4, 3))
