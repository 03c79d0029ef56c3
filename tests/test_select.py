"""Selections: by path, type and predicate; what weight decay is for."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    ResidualMLP,
    decay_mask,
    fit,
    init_state,
    losses,
    make_step,
    per_example_grad,
    select,
)


def chosen(selection, tree):
    """The paths of the leaves that are chosen, as JAX writes them."""
    flat = jax.tree_util.tree_flatten_with_path(selection(tree))[0]
    return {jax.tree_util.keystr(path).lstrip(".") for path, value in flat if value}


def residual():
    return ResidualMLP(3, 2, width=4, depth=2, key=jax.random.key(0))


TREE = {"a": {"w": jnp.ones(2), "b": jnp.zeros(2)}, "c": [jnp.ones(1), jnp.ones(1)]}


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a", {"['a']['w']", "['a']['b']"}),
        ("a.w", {"['a']['w']"}),
        ("*.w", {"['a']['w']"}),
        ("**.w", {"['a']['w']"}),
        ("**", {"['a']['w']", "['a']['b']", "['c'][0]", "['c'][1]"}),
        ("c.1", {"['c'][1]"}),
        ("c[1]", {"['c'][1]"}),
        ("['a']['w']", {"['a']['w']"}),
        ("?.?", {"['a']['w']", "['a']['b']", "['c'][0]", "['c'][1]"}),
    ],
)
def test_a_path_means_all_that_is_at_it_or_below(pattern, paths):
    assert chosen(select(pattern), TREE) == paths


def test_a_star_is_one_part_and_two_are_any_number():
    assert chosen(select("*.weight"), residual()) == {
        "embed.weight",
        "norm.weight",
        "head.weight",
    }
    assert chosen(select("blocks.*.up.weight"), residual()) == {
        "blocks[0].up.weight",
        "blocks[1].up.weight",
    }
    assert len(chosen(select("**.bias"), residual())) == 2 * 3 + 3


def test_a_type_means_all_inside_modules_of_it():
    paths = {"norm", "blocks[0].norm", "blocks[1].norm"}
    assert chosen(select(eqx.nn.LayerNorm), residual()) == {
        f"{path}.{field}" for path in paths for field in ("weight", "bias")
    }


def test_selections_combine_as_sets_do():
    norms, biases = select(eqx.nn.LayerNorm), select("**.bias")
    model = residual()
    everything = chosen(select("**"), model)
    a, b = chosen(norms, model), chosen(biases, model)
    assert a & b
    assert a - b
    assert b - a
    assert chosen(norms | biases, model) == a | b
    assert chosen(select(eqx.nn.LayerNorm, "**.bias"), model) == a | b
    assert chosen(norms & biases, model) == a & b
    assert chosen(~norms, model) == everything - a
    assert chosen(norms & ~biases, model) == a - b


def test_a_predicate_sees_leaves():
    matrices = select(lambda leaf: eqx.is_array(leaf) and leaf.ndim == 2)
    assert chosen(matrices, MLP(3, 2, (4,), key=jax.random.key(0))) == {
        "layers[0].weight",
        "layers[1].weight",
    }


def test_a_path_that_is_not_there_is_a_value_error_that_lists_what_is():
    with pytest.raises(ValueError, match=r"nothing is at 'layer\.0'; the tree has "):
        select("layer.0")({"layers": [jnp.ones(1)]})
    with pytest.raises(ValueError, match=r"has layers\.0$"):
        (select("layers") | ~select("head"))({"layers": [jnp.ones(1)]})
    # A bias that is switched off is nothing to choose, and no mistake.
    plain = MLP(3, 2, (4,), use_bias=False, key=jax.random.key(0))
    assert chosen(select("**.bias"), plain) == set()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: select(), "at least one"),
        (lambda: select(3), "such as 'layers"),
        (lambda: select(["layers.0"]), "got \\['layers"),
    ],
)
def test_what_cannot_be_selected_is_a_value_error(call, match):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(
    "trainable",
    ["blocks.*.up", select(eqx.nn.LayerNorm) | select("head"), eqx.nn.LayerNorm],
    ids=["path", "selection", "type"],
)
def test_what_is_not_trained_has_no_gradient_no_state_and_the_same_bits(trainable):
    model = residual()
    trained = chosen(select(trainable), model)
    x, y = jnp.linspace(-1, 1, 12).reshape(4, 3), jnp.arange(4) % 2

    def paths(tree):
        flat = jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_array))[0]
        return {jax.tree_util.keystr(p).lstrip("."): np.asarray(x) for p, x in flat}

    grads = per_example_grad(losses.cross_entropy, trainable=trainable)(model, x, y)
    assert set(paths(grads)) == trained
    result = fit(
        model,
        (x, y),
        loss=losses.cross_entropy,
        optimizer=optax.adamw(0.1, weight_decay=0.5),
        key=jax.random.key(1),
        epochs=2,
        batch_size=2,
        trainable=trainable,
        progress=False,
    )
    moments = result.state.opt_state[0]
    assert set(paths(moments.mu)) == set(paths(moments.nu)) == trained
    before, after = paths(model), paths(result.model)
    for path, value in before.items():
        same = value.tobytes() == after[path].tobytes()
        assert same == (path not in trained), path


class Tied(eqx.Module):
    """A matrix that maps in and, the same one, out."""

    shared: eqx.nn.Shared

    def __init__(self, key):
        a, b = jax.random.split(key)
        layers = eqx.nn.Linear(3, 3, key=a), eqx.nn.Linear(3, 3, key=b)
        self.shared = eqx.nn.Shared(
            layers, lambda pair: pair[1].weight, lambda pair: pair[0].weight
        )

    def __call__(self, x):
        first, second = self.shared()
        return second(jnp.tanh(first(x)))


def test_tied_parameters_stay_tied_and_their_gradients_add():
    model = Tied(jax.random.key(0))
    x = jnp.linspace(-1, 1, 12).reshape(4, 3)

    def apart(w_in, w_out, b_in, b_out):
        outputs = jnp.tanh(x @ w_in.T + b_in[None]) @ w_out.T + b_out[None]
        return jnp.mean(jnp.square(outputs - x))

    first, second = model.shared()
    w, b_in, b_out = first.weight, first.bias, second.bias
    d_in, d_out = jax.grad(apart, argnums=(0, 1))(w, w, b_in, b_out)
    result = fit(
        model,
        (x, x),
        loss=losses.squared_error,
        optimizer=optax.sgd(0.1),
        key=jax.random.key(1),
        epochs=1,
        batch_size=4,
        progress=False,
    )
    first, second = result.model.shared()
    np.testing.assert_array_equal(first.weight, second.weight)
    np.testing.assert_allclose(first.weight, w - 0.1 * (d_in + d_out), rtol=1e-5)
    # The optimiser holds one state for it.
    state = init_state(model, optax.sgd(0.1, momentum=0.9), key=jax.random.key(1))
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) == 9 + 3 + 3


class Stack(eqx.Module):
    """Layers made by `vmap`, so that each leaf has an axis of layers in front."""

    norms: eqx.nn.LayerNorm
    linears: eqx.nn.Linear
    cell: eqx.nn.GRUCell
    scaled: eqx.nn.WeightNorm
    slope: eqx.nn.PReLU

    def __init__(self, key):
        keys = jax.random.split(key, 2)
        self.norms = eqx.filter_vmap(lambda _: eqx.nn.LayerNorm(3))(keys)
        self.linears = eqx.filter_vmap(lambda k: eqx.nn.Linear(3, 3, key=k))(keys)
        self.cell = eqx.nn.GRUCell(3, 3, key=key)
        self.scaled = eqx.nn.WeightNorm(eqx.nn.Linear(3, 3, key=key))
        self.slope = eqx.nn.PReLU()


def test_weight_decay_knows_biases_and_norms_in_stacked_layers_too():
    model = Stack(jax.random.key(0))
    assert model.norms.weight.ndim == 2
    arrays = eqx.filter(model, eqx.is_inexact_array)
    assert chosen(decay_mask, arrays) == {
        "linears.weight",
        "cell.weight_ih",
        "cell.weight_hh",
        "scaled.layer.weight",
    }


def test_decay_moves_exactly_what_the_mask_says():
    model = jax.tree.map(
        lambda x: x + 1 if eqx.is_array(x) else x, Stack(jax.random.key(0))
    )
    optimizer = optax.chain(
        optax.add_decayed_weights(0.5, decay_mask & ~select("cell")), optax.sgd(1.0)
    )
    state = init_state(model, optimizer, key=jax.random.key(1))
    step = make_step(lambda model, x: 0.0 * model.slope(x), optimizer)
    after = step(state, (jnp.ones(2),))[0].model
    for where in (lambda m: m.linears.weight, lambda m: m.scaled.layer.weight):
        np.testing.assert_allclose(where(after), 0.5 * where(model), rtol=1e-6)
    for where in (
        lambda m: m.norms,
        lambda m: m.linears.bias,
        lambda m: m.cell,
        lambda m: m.scaled.g,
        lambda m: m.slope,
    ):
        assert eqx.tree_equal(where(after), where(model))


def test_decay_leaves_biases_of_dictionaries_alone():
    tree = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
    assert chosen(decay_mask, tree) == {"['dense']['kernel']"}


def test_a_mask_inside_a_part_of_the_parameters_is_no_mistake():
    # Optax shows an inner transformation its own part of the parameters alone.
    params = {"a": {"w": jnp.ones(2)}, "b": {"w": jnp.ones(2)}}
    inner = optax.add_decayed_weights(0.5, select("a"))
    optimizer = optax.multi_transform(
        {"x": inner, "y": optax.identity()}, {"a": "y", "b": "x"}
    )
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    np.testing.assert_array_equal(updates["b"]["w"], params["b"]["w"])
