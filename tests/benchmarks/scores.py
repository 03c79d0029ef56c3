"""GraNd of all 60,000 training images against one plain epoch of gradients.

    python tests/benchmarks/scores.py [rounds]

784-256-128-10, batch 256, in turn in one run. The epoch is one compiled loop over the
same images that adds up the gradient of each batch's mean loss; GraNd is
`grand_scores` from the arrays in memory to a NumPy array.
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
from _measure import interleaved, table

from eqx_mlp import MLP, data, el2n_scores, grand_scores, losses

BATCH = 256


@jax.jit
def epoch_of_gradients(params, images, labels):
    """The sum of the gradients of every whole batch's mean loss."""

    def mean_loss(params, x, y):
        model = eqx.combine(params, STATIC)
        x = jax.vmap(data.image_to_vector)(x)
        loss = jax.vmap(losses.cross_entropy, in_axes=(None, 0, 0))(model, x, y)
        return jnp.mean(loss)

    def add(i, sums):
        rows = (
            jax.lax.dynamic_slice_in_dim(x, i * BATCH, BATCH) for x in (images, labels)
        )
        return jax.tree.map(jnp.add, sums, jax.grad(mean_loss)(params, *rows))

    zeros = jax.tree.map(jnp.zeros_like, params)
    return jax.lax.fori_loop(0, images.shape[0] // BATCH, add, zeros)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    train, _ = data.mnist()
    on_device = tuple(jnp.asarray(x) for x in train)
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    params, STATIC = eqx.partition(model, eqx.is_inexact_array)
    options = {"batch_size": BATCH, "transform": data.image_to_vector}

    def plain():
        jax.block_until_ready(epoch_of_gradients(params, *on_device))

    def grand():
        grand_scores(model, train, loss=losses.cross_entropy, **options)

    def el2n():
        el2n_scores(model, train, **options)

    seconds = interleaved(
        rounds, **{"plain gradients": plain, "grand_scores": grand, "el2n_scores": el2n}
    )
    table(seconds, "plain gradients")
