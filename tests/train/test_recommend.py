"""The optimiser to start with: each row trains, and decays what it should."""

import math
import pathlib
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import MLP, ResidualMLP, data, losses, recommend_optimizer
from eqx_mlp.train import OPTIMIZER_CHOICES

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "optimizers.md"
KINDS = [choice.kind for choice in OPTIMIZER_CHOICES]
STEPS = 150
NET = MLP(784, 10, (16,), key=jax.random.key(0))


def arrays(model):
    return eqx.filter(model, eqx.is_inexact_array)


def optimizers(steps):
    batch_sizes = dict.fromkeys(KINDS, 256) | {"large-batch": 4096}
    return {
        kind: recommend_optimizer(
            NET, steps=steps, batch_size=batch_sizes[kind], kind=kind
        ).optimizer
        for kind in KINDS
    }


def rates(schedule, steps):
    with jax.numpy_dtype_promotion("standard"):  # as Optax needs
        return jax.jit(jax.vmap(schedule))(jnp.arange(steps))


def test_each_row_trains_the_mnist_mlp(mnist):
    (x, y), _ = mnist
    x, y = jax.vmap(data.image_to_vector)(x[:256]), jnp.asarray(y[:256])
    chains = optimizers(STEPS)
    params, static = eqx.partition(NET, eqx.is_inexact_array)

    def mean_loss(params):
        model = eqx.combine(params, static)
        return jnp.mean(jax.vmap(losses.cross_entropy, (None, 0, 0))(model, x, y))

    @jax.jit
    def train(params):  # all rows in one program, their gradients by one vmap
        def body(carry, _):
            stacked, states = carry
            value, grads = jax.vmap(jax.value_and_grad(mean_loss))(stacked)
            after = {}
            for i, (kind, chain) in enumerate(chains.items()):
                own, g = jax.tree.map(lambda leaf: leaf[i], (stacked, grads))  # noqa: B023
                updates, states[kind] = chain.update(g, states[kind], own)
                after[kind] = optax.apply_updates(own, updates)
            stacked = jax.tree.map(lambda *rows: jnp.stack(rows), *after.values())
            return (stacked, states), value

        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(chains)), params)
        states = {kind: chain.init(params) for kind, chain in chains.items()}
        return jax.lax.scan(body, (stacked, states), length=STEPS)[1]

    with jax.numpy_dtype_promotion("standard"):  # as Optax needs
        loss = dict(zip(chains, train(params).T, strict=True))
    for kind, values in loss.items():
        # The rate for fine-tuning is meant to leave a trained model near where it is.
        share = 0.95 if kind == "fine-tune" else 0.5
        assert values[-1] < share * values[0], kind


def test_decay_moves_weights_and_neither_biases_nor_scales_of_norms():
    model = ResidualMLP(3, 2, width=4, depth=1, key=jax.random.key(1))
    # Every leaf away from 0, where decay would show nothing.
    params = jax.tree.map(lambda leaf: leaf + 1, arrays(model))
    chains = optimizers(5)

    @jax.jit
    def without_gradient(params):
        after = {}
        for kind, chain in chains.items():
            grads = jax.tree.map(jnp.zeros_like, params)
            updates, _ = chain.update(grads, chain.init(params), params)
            after[kind] = optax.apply_updates(params, updates)
        return after

    with jax.numpy_dtype_promotion("standard"):  # as Optax needs
        after = without_gradient(params)
    for choice in OPTIMIZER_CHOICES:
        moved = jax.tree.map(
            lambda a, b: not np.array_equal(a, b), params, after[choice.kind]
        )
        for linear in (moved.embed, moved.blocks[0].up, moved.head):
            assert linear.weight == (choice.weight_decay > 0), choice.kind
            assert not linear.bias, choice.kind
        for norm in (moved.blocks[0].norm, moved.norm):
            assert not norm.weight, choice.kind
            assert not norm.bias, choice.kind


def test_the_rate_rises_in_a_line_and_falls_along_half_a_cosine_to_0():
    found = recommend_optimizer(NET, steps=100, batch_size=256, kind="residual")
    rate = rates(found.schedule, 101)
    peak = 1e-3
    np.testing.assert_allclose(rate[:6], peak * np.arange(1, 7) / 6, rtol=1e-5)
    falling = [peak * (1 + math.cos(math.pi * i / 95)) / 2 for i in range(96)]
    np.testing.assert_allclose(rate[5:], falling, rtol=1e-4, atol=1e-9)


def test_a_line_falls_to_0_and_a_constant_stays():
    line = recommend_optimizer(NET, steps=100, batch_size=8, kind="fine-tune").schedule
    assert math.isclose(line(55), 1e-4 / 2, rel_tol=1e-5)
    assert float(line(100)) == 0
    constant = recommend_optimizer(NET, steps=9, batch_size=8, kind="private").schedule
    assert constant(0) == constant(9) == 0.5


@pytest.mark.parametrize(
    ("kind", "batch_size", "peak"),
    [
        ("mlp", 32, 2e-3),
        ("mlp", 256, 2e-3),
        ("mlp", 1024, 4e-3),
        ("convolution", 1024, 0.4),
        ("large-batch", 4096, 2e-2),
        ("fine-tune", 1024, 1e-4),
    ],
)
def test_the_rate_grows_with_the_batch_as_the_row_says(kind, batch_size, peak):
    found = recommend_optimizer(NET, steps=40, batch_size=batch_size, kind=kind)
    assert math.isclose(max(rates(found.schedule, 6)), peak, rel_tol=1e-6)


def test_a_rate_that_is_given_is_the_highest():
    found = recommend_optimizer(NET, steps=9, batch_size=9999, learning_rate=0.25)
    assert max(rates(found.schedule, 9)) == 0.25


@pytest.mark.parametrize("steps", [1, 2])
def test_the_shortest_runs_have_a_rate_above_0_at_each_step(steps):
    for kind in KINDS:
        found = recommend_optimizer(NET, steps=steps, batch_size=8, kind=kind)
        assert all(found.schedule(i) > 0 for i in range(steps)), kind


def test_clipping_bounds_what_adam_sees():
    chain = recommend_optimizer(NET, steps=9, batch_size=8, kind="residual").optimizer
    params = jnp.zeros(4)
    with jax.numpy_dtype_promotion("standard"):  # as Optax needs
        update = jax.jit(lambda g: chain.update(g, chain.init(params), params))
        _, state = update(jnp.full(4, 500.0))
    # The first average is a tenth of the gradient, whose norm of 1000 is clipped to 1.
    np.testing.assert_allclose(optax.tree.get(state, "mu"), 0.1 / 2, rtol=1e-5)


KEY = jax.random.key(2)


@pytest.mark.parametrize(
    ("model", "batch_size", "kind"),
    [
        (NET, 4095, "mlp"),
        (NET, 4096, "large-batch"),
        ({"w": jnp.ones(2)}, 8, "mlp"),
        (ResidualMLP(3, 2, width=4, depth=1, key=KEY), 8, "residual"),
        (ResidualMLP(3, 2, width=4, depth=1, key=KEY), 4096, "large-batch"),
        ([eqx.nn.Conv2d(1, 2, 3, key=KEY), eqx.nn.LayerNorm(2)], 8, "convolution"),
        ([eqx.nn.GRUCell(2, 2, key=KEY), eqx.nn.LayerNorm(2)], 4096, "recurrent"),
    ],
)
def test_the_kind_is_read_off_the_model_and_the_batch(model, batch_size, kind):
    found = recommend_optimizer(model, steps=10, batch_size=batch_size)
    assert found.why[0].decision == kind


def test_what_is_printed_says_each_decision_and_its_reason():
    for kind in KINDS:
        found = recommend_optimizer(NET, steps=100, batch_size=64, kind=kind)
        text = " ".join(str(found).split())
        assert all(reason.decision and reason.why for reason in found.why)
        for reason in found.why:
            assert f"{reason.about} {reason.decision} {reason.why}" in text


def test_the_table_of_the_page_is_the_one_in_use():
    exponents = {0.0: "the same", 0.5: "square root", 1.0: "proportional"}
    section = PAGE.read_text("utf-8").split("\n## The table\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.*) \|$", section, re.MULTILINE)
    shown = [[cell.strip("` ") for cell in row.split("|")] for row in rows]
    assert shown == [
        [
            c.kind,
            c.optimizer,
            f"{c.learning_rate:g}",
            exponents[c.batch_exponent],
            f"{c.warmup:.0%}" if c.warmup else "none",
            c.schedule,
            "none" if c.clip_norm is None else f"{c.clip_norm:g}",
            f"{c.weight_decay:g}" if c.weight_decay else "none",
        ]
        for c in OPTIMIZER_CHOICES
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, r"steps must be an integer >= 1, got 0"),
        ({"batch_size": 2.5}, r"batch_size must be an integer >= 1, got 2.5"),
        ({"kind": "cnn"}, r"kind must be one of 'mlp', .* or None .*, got 'cnn'"),
        ({"kind": ["mlp"]}, r"kind must be one of .*, got \['mlp'\]"),
        ({"learning_rate": -1.0}, r"learning_rate must be a number above 0, .* got -1"),
        ({"learning_rate": "fast"}, r"learning_rate must be a number .* got 'fast'"),
    ],
)
def test_bad_input_is_answered_by_how_to_mend_it(changed, message):
    with pytest.raises(ValueError, match=f"recommend_optimizer: {message}"):
        recommend_optimizer(NET, **({"steps": 10, "batch_size": 8} | changed))
