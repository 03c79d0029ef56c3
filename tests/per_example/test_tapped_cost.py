"""What XLA plans for a clipped sum, beside what it plans for a plain gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_mlp import MLP, clipped_grad


def planned(f, model, x, many):
    """FLOPs, and bytes of arguments, results and temporaries together."""
    params, static = eqx.partition(model, eqx.is_array)
    of_params = lambda p, x: f(eqx.combine(p, static), x)
    for _ in range(many):
        of_params = jax.vmap(of_params, in_axes=(0, None))
        params = jax.tree.map(lambda p: jnp.stack([p, p]), params)
    program = jax.jit(of_params).lower(params, x).compile()
    memory, cost = program.memory_analysis(), program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return cost["flops"], (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
    )


def ratios(loss, model, x, many=0):
    """Of FLOPs and of bytes, clipped over plain, for 2^many models."""
    mean = lambda model, x: jnp.mean(jax.vmap(loss, in_axes=(None, 0))(model, x))
    plain = planned(eqx.filter_grad(mean), model, x, many)
    clipped = planned(clipped_grad(loss, l2_clip_norm=1.0), model, x, many)
    return tuple(a / b for a, b in zip(clipped, plain, strict=True))


@pytest.mark.parametrize(("batch", "many"), [(256, 0), (1024, 0), (256, 1), (256, 2)])
def test_a_dense_net_takes_the_flops_and_the_memory_of_a_plain_gradient(batch, many):
    # An ensemble too: of a branch that none of its models needs it computes nothing.
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    loss = lambda model, x: jax.nn.logsumexp(model(x))
    flops, bytes_ = ratios(loss, model, jnp.ones((batch, 784)), many)
    assert flops < 1.05
    assert bytes_ < 1.3


def test_the_parameters_of_a_call_that_is_computed_again_share_one_pass():
    # One pass for norms and one for sums add some 60 %; a pass for each of the four
    # parameters of a call would add 180 %.
    keys = jax.random.split(jax.random.key(0), 2)
    layers = [eqx.nn.MLP(64, 64, 64, 1, key=key) for key in keys]
    block = eqx.filter_checkpoint(lambda layer, x: jnp.tanh(layer(x)))
    loss = lambda layers, x: jnp.sum(block(layers[1], block(layers[0], x)))
    assert ratios(loss, layers, jnp.ones((16, 64)))[0] < 2
