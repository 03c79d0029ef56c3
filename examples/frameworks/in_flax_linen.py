"""The MNIST network in Flax linen."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from problem import RATE, SIZES, Run, report


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        for size in SIZES[1:-1]:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(SIZES[-1])(x)


def params_of(weights):
    # What network.init(key, x)["params"] would draw.
    layers = [{"kernel": jnp.asarray(w), "bias": jnp.asarray(b)} for w, b in weights]
    return {f"Dense_{i}": layer for i, layer in enumerate(layers)}


@jax.jit
def step(state, x, y):
    def loss_of(params):
        logits = state.apply_fn({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def train(problem, epochs):
    network = Network()
    state = TrainState.create(
        apply_fn=network.apply, params=params_of(problem.weights), tx=optax.adam(RATE)
    )

    losses, seconds = [], []
    for epoch in range(epochs):
        started = time.perf_counter()
        for x, y in problem.batches(epoch):
            state, loss = step(state, x, y)
            losses.append(loss)
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - started)

    def trained(x):
        return network.apply({"params": state.params}, x)

    return Run(np.array(losses), np.array(seconds), trained)


if __name__ == "__main__":
    report(train)
