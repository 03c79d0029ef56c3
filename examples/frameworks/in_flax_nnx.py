"""The MNIST network in Flax NNX."""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from problem import RATE, SIZES, Run, report


class Network(nnx.Module):
    def __init__(self, *, rngs):
        sizes = itertools.pairwise(SIZES)
        self.layers = nnx.List([nnx.Linear(m, n, rngs=rngs) for m, n in sizes])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def network_of(weights):
    network = Network(rngs=nnx.Rngs(0))
    for layer, (w, b) in zip(network.layers, weights, strict=True):
        layer.kernel = nnx.Param(jnp.asarray(w))
        layer.bias = nnx.Param(jnp.asarray(b))
    return network


@nnx.jit
def step(network, optimizer, x, y):
    def loss_of(network):
        logits = network(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = nnx.value_and_grad(loss_of)(network)
    optimizer.update(network, grads)
    return loss


def train(problem, epochs):
    network = network_of(problem.weights)
    optimizer = nnx.Optimizer(network, optax.adam(RATE), wrt=nnx.Param)

    losses, seconds = [], []
    for epoch in range(epochs):
        started = time.perf_counter()
        for x, y in problem.batches(epoch):
            losses.append(step(network, optimizer, x, y))
        jax.block_until_ready(losses)
        seconds.append(time.perf_counter() - started)

    return Run(np.array(losses), np.array(seconds), network)


if __name__ == "__main__":
    report(train)
