"""The MNIST network in eqx_mlp."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from problem import BATCH, RATE, SIZES, Run, report

from eqx_mlp import MLP, data, fit, losses, predict


def network_of(weights):
    in_size, *hidden_sizes, out_size = SIZES
    network = MLP(in_size, out_size, hidden_sizes, key=jax.random.key(0))
    return eqx.tree_at(
        lambda network: [x for layer in network.layers for x in jax.tree.leaves(layer)],
        network,
        [jnp.asarray(x.T) for layer in weights for x in layer],  # [out, in], [out]
    )


def train(problem, epochs):
    result = fit(
        network_of(problem.weights),
        (problem.images, problem.labels),
        loss=losses.cross_entropy,
        optimizer=optax.adam(RATE),
        key=problem.key,
        epochs=epochs,
        batch_size=BATCH,
        transform=data.image_to_vector,
        progress=False,
    )
    history = result.history
    seconds = history["seconds"].copy()
    seconds[0] += history["compile_seconds"]  # as in a loop that compiles on its way
    return Run(history["step_loss"], seconds, lambda x: predict(result.model, x))


if __name__ == "__main__":
    report(train)
