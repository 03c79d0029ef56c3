"""One step: types that never change, leaves that are left alone, one trace."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    clipped_grad,
    data,
    init_state,
    losses,
    make_step,
    mean_grad,
    metrics,
    multi_transform,
)


class Everything(eqx.Module):
    """A model that also holds what is not trained."""

    mlp: MLP
    dropout: eqx.nn.Dropout
    seen: jax.Array
    scale: float

    def __call__(self, x, *, key=None):
        return self.mlp(self.dropout(x, key=key)) * self.scale


def everything(key):
    return Everything(
        MLP(5, 3, (4,), key=key), eqx.nn.Dropout(0.5), jnp.array([7, 8]), 0.5
    )


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(1e-2),
    "adamw": optax.adamw(1e-2),
    "adabelief": optax.adabelief(1e-2),
    "clip then adamw": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "reduce on plateau": optax.chain(
        optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=2)
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_one_trace_and_change_no_type(name, getkey):
    traces = 0

    def loss(model, x, label, *, key):
        nonlocal traces
        traces += 1
        return losses.cross_entropy(model, x, label, key=key)

    optimizer = OPTIMIZERS[name]
    step = eqx.filter_jit(make_step(loss, optimizer))
    first = state = init_state(everything(getkey()), optimizer, key=getkey())
    x = jax.random.normal(getkey(), (4, 5))
    y = jnp.array([0, 1, 2, 0])
    for i in range(20):
        # Every fourth batch is the ragged last one of an epoch.
        weight = jnp.array([1.0, 1.0, 1.0, 0.0 if i % 4 == 3 else 1.0])
        state, measured = step(state, data.Batch((x, y), weight))
        assert measured["loss"].denominator == weight.sum()
    assert traces == 1
    assert types(state) == types(first)
    assert state.step == 20
    np.testing.assert_array_equal(state.model.seen, [7, 8])
    assert state.model.scale == 0.5
    assert isinstance(state.model.scale, float)
    moved = state.model.mlp.layers[0].weight - first.model.mlp.layers[0].weight
    assert np.abs(moved).max() > 0


def types(tree):
    return [
        (x.shape, x.dtype, getattr(x, "weak_type", None))
        if isinstance(x, jax.Array)
        else x
        for x in jax.tree.leaves(tree)
    ]


def test_weak_types_and_numpy_arrays_are_gone_at_the_start():
    model = {"weak": jnp.asarray(1.0), "numpy": np.ones(2, np.float32)}
    assert model["weak"].weak_type
    state = init_state(model, optax.adam(0.1), key=jax.random.key(0))
    assert isinstance(state.model["numpy"], jax.Array)
    assert not any(x.weak_type for x in jax.tree.leaves((state.model, state.opt_state)))


def test_a_callable_module_as_label_tree_trains_and_freezes_by_label(getkey):
    model = MLP(5, 3, (4,), key=getkey())
    # A frozen weight of -0.0 must stay -0.0, though -0.0 + 0.0 is 0.0.
    model = eqx.tree_at(lambda m: m.layers[0].bias, model, jnp.full(4, -0.0))
    labels = jax.tree.map(lambda leaf: "frozen", model)
    labels = eqx.tree_at(
        lambda m: (m.layers[1].weight, m.layers[1].bias), labels, ("sgd", "sgd")
    )
    assert callable(labels)
    optimizer = multi_transform(
        {"sgd": optax.sgd(0.1, momentum=0.0), "frozen": optax.set_to_zero()}, labels
    )
    state = init_state(model, optimizer, key=getkey())
    # Moments are held for the two trained leaves and for nothing else.
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert [m.shape for m in moments] == [(3, 4), (3,)]
    x, y = jax.random.normal(getkey(), (6, 5)), jnp.arange(6) % 3
    after, _ = make_step(losses.cross_entropy, optimizer)(state, (x, y))
    grads, _ = mean_grad(losses.cross_entropy)(model, x, y)
    for new, old, g in zip(
        (after.model.layers[1].weight, after.model.layers[1].bias),
        (model.layers[1].weight, model.layers[1].bias),
        (grads.layers[1].weight, grads.layers[1].bias),
        strict=True,
    ):
        np.testing.assert_allclose(new - old, -0.1 * g, rtol=1e-3, atol=1e-7)
    for new, old in (
        (after.model.layers[0].weight, model.layers[0].weight),
        (after.model.layers[0].bias, model.layers[0].bias),
    ):
        assert np.asarray(new).tobytes() == np.asarray(old).tobytes()


def test_labels_from_a_function_and_as_a_dictionary_work_as_in_optax(getkey):
    params = {"a": jnp.ones(2), "b": jnp.ones(3)}
    transforms = {"x": optax.sgd(0.5), "y": optax.set_to_zero()}
    labels = {"a": "x", "b": "y"}
    for given in (labels, lambda params: labels):
        optimizer = multi_transform(transforms, given)
        reference = optax.multi_transform(transforms, given)
        ours, _ = optimizer.update(params, optimizer.init(params), params)
        theirs, _ = reference.update(params, reference.init(params), params)
        for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(x, y)


def test_optax_own_multi_transform_with_a_module_of_labels_names_the_mend(getkey):
    model = MLP(5, 3, (4,), key=getkey())
    labels = jax.tree.map(lambda leaf: "sgd", model)
    optimizer = optax.multi_transform({"sgd": optax.sgd(0.1)}, labels)
    with pytest.raises(ValueError, match=r"use eqx_mlp\.multi_transform"):
        init_state(model, optimizer, key=getkey())


def test_a_decay_mask_that_is_a_callable_module_decays_what_it_says(getkey):
    model = MLP(5, 3, (4,), key=getkey())
    model = jax.tree.map(lambda x: x + 1 if eqx.is_array(x) else x, model)
    params = eqx.filter(model, eqx.is_inexact_array)
    mask = jax.tree.map(lambda x: x.ndim > 1, params)
    assert callable(mask)
    optimizer = optax.chain(optax.add_decayed_weights(0.5, mask), optax.sgd(1.0))
    state = init_state(model, optimizer, key=getkey())
    nothing = lambda model, x: 0.0 * jnp.sum(model(x))
    after, _ = make_step(nothing, optimizer)(state, (jnp.ones((2, 5)),))
    for new, old in zip(after.model.layers, model.layers, strict=True):
        np.testing.assert_allclose(new.weight, 0.5 * old.weight, rtol=1e-6)
        np.testing.assert_array_equal(new.bias, old.bias)


def test_bfloat16_parameters_with_float32_updates_stay_bfloat16():
    def wide_update(updates, state, params=None):
        return jax.tree.map(lambda g: jnp.full(g.shape, 2**-9), updates), state

    optimizer = optax.GradientTransformation(lambda params: (), wide_update)
    state = init_state(jnp.ones(2, jnp.bfloat16), optimizer, key=jax.random.key(0))
    step = make_step(lambda w, x: jnp.sum(w * x), optimizer)
    after, _ = step(state, (jnp.ones((1, 2), jnp.bfloat16),))
    assert after.model.dtype == jnp.bfloat16
    # 1 + 2**-9 rounds to 1 in bfloat16, and 1 + 2**-7 is its next number.
    np.testing.assert_array_equal(after.model.astype(jnp.float32), [1, 1])


@pytest.mark.parametrize(
    "trainable", [lambda leaf: eqx.is_array(leaf) and leaf.ndim == 2, "tree"]
)
def test_frozen_parameters_have_no_gradient_no_moments_and_do_not_move(
    trainable, getkey
):
    model = MLP(5, 3, (4,), key=getkey())
    if trainable == "tree":
        trainable = jax.tree.map(lambda leaf: False, model)
        weights = lambda m: [layer.weight for layer in m.layers]
        trainable = eqx.tree_at(weights, trainable, [True, True])
    optimizer = optax.adamw(0.1, weight_decay=0.5)
    state = init_state(model, optimizer, key=getkey(), trainable=trainable)
    shapes = [x.shape for x in jax.tree.leaves(state.opt_state) if x.ndim]
    assert shapes == 2 * [(4, 5), (3, 4)]
    step = make_step(losses.cross_entropy, optimizer, trainable=trainable)
    after, _ = step(state, (jnp.ones((2, 5)), jnp.array([0, 1])))
    for new, old in zip(after.model.layers, model.layers, strict=True):
        assert np.abs(new.weight - old.weight).max() > 0
        assert np.asarray(new.bias).tobytes() == np.asarray(old.bias).tobytes()


def test_the_gradient_may_be_the_clipped_one():
    loss = lambda w, x: 0.5 * (w - x) ** 2
    gradient = functools.partial(clipped_grad, l2_clip_norm=2.5, normalize_by=2.0)
    optimizer = optax.sgd(1.0)
    step = make_step(loss, optimizer, gradient=gradient)
    state = init_state(jnp.array(2.0), optimizer, key=jax.random.key(0))
    after, measured = step(state, (jnp.array([1.0, 4.0, 7.0]),))
    # The gradients 1, -2, -5 are clipped to 1, -2, -2.5: their sum is -3.5.
    assert after.model == 2 + 3.5 / 2
    assert measured["loss"].compute() == 5


def test_padding_changes_neither_the_step_nor_the_metrics(getkey):
    optimizer = optax.sgd(0.1)
    measures = {"accuracy": metrics.accuracy, "counts": metrics.confusion_matrix}
    step = make_step(losses.cross_entropy, optimizer, metrics=measures)
    state = init_state(MLP(5, 3, (4,), key=getkey()), optimizer, key=getkey())
    x, y = jax.random.normal(getkey(), (5, 5)), jnp.array([0, 1, 2, 0, 1])
    padded = data.Batch(
        (
            jnp.concatenate([x, jnp.full((3, 5), jnp.nan)]),
            jnp.append(y, jnp.array([0, 7, -1])),
        ),
        jnp.array([1.0] * 5 + [0.0] * 3),
    )
    after, measured = step(state, (x, y))
    after_padded, measured_padded = step(state, padded)
    for a, b in zip(
        jax.tree.leaves((eqx.filter(after.model, eqx.is_array), measured)),
        jax.tree.leaves(
            (eqx.filter(after_padded.model, eqx.is_array), measured_padded)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_step_can_be_scanned(getkey):
    optimizer = optax.adam(0.1)
    step = make_step(lambda w, x: 0.5 * (w - x) ** 2, optimizer)
    start = init_state(jnp.array(2.0), optimizer, key=getkey())
    batches = jax.random.normal(getkey(), (5, 3))
    scanned, _ = jax.lax.scan(lambda s, x: step(s, (x,)), start, batches)
    stepped = start
    for x in batches:
        stepped, _ = step(stepped, (x,))
    np.testing.assert_allclose(scanned.model, stepped.model, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: init_state(jnp.ones(2), optax.sgd(0.1), key=None), "random key"),
        (lambda: init_state(jnp.ones(2), 0.1, key=jax.random.key(0)), "optax"),
        (
            lambda: init_state(jnp.arange(2), optax.sgd(0.1), key=jax.random.key(0)),
            "no trainable parameter",
        ),
        (lambda: make_step(losses.cross_entropy, "adam"), "optax"),
    ],
)
def test_bad_arguments_are_value_errors(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_an_array_as_a_batch_is_a_value_error():
    optimizer = optax.sgd(0.1)
    state = init_state(jnp.ones(2), optimizer, key=jax.random.key(0))
    step = make_step(lambda w, x: jnp.sum(w * x), optimizer)
    with pytest.raises(ValueError, match="batch must be a tuple"):
        step(state, jnp.ones((3, 2)))


def test_another_trainable_than_the_states_is_a_value_error(getkey):
    optimizer = optax.adam(0.1)
    weights = lambda leaf: eqx.is_array(leaf) and leaf.ndim == 2
    state = init_state(MLP(5, 3, (4,), key=getkey()), optimizer, key=getkey())
    step = make_step(losses.cross_entropy, optimizer, trainable=weights)
    with pytest.raises(ValueError, match="the same optimizer and trainable"):
        step(state, (jnp.ones((2, 5)), jnp.array([0, 1])))


def test_an_optimizer_whose_state_changes_type_is_held_to_its_first_types():
    def update(updates, state, params=None):
        wider = state["moment"].astype(jnp.float32) + 1
        return updates, {"moment": wider, "scale": jnp.asarray(2.0)}

    start = {"moment": jnp.zeros(2, jnp.bfloat16), "scale": jnp.zeros((), jnp.float32)}
    optimizer = optax.GradientTransformation(lambda params: start, update)
    state = init_state(jnp.ones(2), optimizer, key=jax.random.key(0))
    step = make_step(lambda w, x: jnp.sum(w * x), optimizer)
    after, _ = step(state, (jnp.ones((1, 2)),))
    assert types(after) == types(state)
    assert after.opt_state["moment"].tolist() == [1, 1]


def test_step_t_draws_from_the_key_folded_with_t_and_the_examples_index():
    def loss(w, x, *, key):
        return 0.0 * w * x + jax.random.normal(key)

    optimizer, key = optax.sgd(0.1), jax.random.key(8)
    step = make_step(loss, optimizer)
    state = init_state(jnp.array(1.0), optimizer, key=key)
    for t in range(2):
        state, measured = step(state, (jnp.ones(3),))
        own = [
            jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, t), i))
            for i in range(3)
        ]
        np.testing.assert_allclose(measured["loss"].compute(), np.mean(own), rtol=1e-5)
