"""The network as a dictionary of arrays is the network as an Equinox model."""

import importlib.util
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from eqx_mlp import MLP, data, init_state, losses, make_step

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # before jax 0.8
    from jax.experimental import enable_x64

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_give_the_same_losses_step_for_step_from_the_same_weights(mnist):
    pure = load("pure_jax")
    x, y = mnist.train
    steps = 30
    # The example runs as users run it, under JAX's default promotion. In float64, since
    # Adam blows up the rounding of gradients near zero, and that is not compared here.
    with (
        enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        optimizer = pure.make_optimizer(steps)
        params = pure.init(jax.random.key(0))
        model = MLP(784, 10, (256, 128), key=jax.random.key(1))
        weights = [params[f"w{i}"].T for i in (1, 2, 3)]
        biases = [params[f"b{i}"] for i in (1, 2, 3)]
        model = eqx.tree_at(
            lambda m: [layer.weight for layer in m.layers], model, weights
        )
        model = eqx.tree_at(lambda m: [layer.bias for layer in m.layers], model, biases)
        state = init_state(model, optimizer, key=jax.random.key(2))
        step = eqx.filter_jit(
            make_step(losses.cross_entropy, optimizer, transform=data.image_to_vector)
        )
        pure_step, opt_state = pure.make_step(optimizer), optimizer.init(params)
        ours, theirs = [], []
        for i in range(steps):
            rows = slice(128 * i, 128 * (i + 1))
            params, opt_state, loss = pure_step(
                params, opt_state, pure.as_input(x[rows]), y[rows]
            )
            theirs.append(float(loss))
            state, measured = step(state, (jnp.asarray(x[rows]), jnp.asarray(y[rows])))
            ours.append(float(measured["loss"].compute()))
    assert theirs[-1] < 0.7 * theirs[0]
    assert state.model.layers[0].weight.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    for i, layer in enumerate(state.model.layers, start=1):
        np.testing.assert_allclose(layer.weight.T, params[f"w{i}"], atol=1e-6)


def test_its_log_softmax_and_accuracy_are_right_where_softmax_would_overflow():
    pure = load("pure_jax")
    params = {"w1": jnp.eye(3) * 1e4, "b1": jnp.zeros(3)}
    with jax.numpy_rank_promotion("allow"):
        loss = pure.cross_entropy(params, jnp.eye(3), jnp.array([0, 1, 0]))
        right = pure.accuracy(params, jnp.eye(3), jnp.array([0, 1, 0]))
    np.testing.assert_allclose(loss, 1e4 / 3, rtol=1e-6)
    np.testing.assert_allclose(right, 2 / 3, rtol=1e-6)


def test_the_mnist_example_explains_itself(capsys):
    import pytest

    mnist = load("mnist")
    with pytest.raises(SystemExit) as stop:
        mnist.parse(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for option in ("epochs", "batch-size", "widths", "dropout", "optimizer", "seed"):
        assert f"--{option} " in shown
    for option in ("learning-rate", "schedule", "data", "plot"):
        assert f"--{option} " in shown
