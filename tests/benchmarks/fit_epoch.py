"""An MNIST epoch: `fit` against an epoch written by hand with `lax.scan`.

    python tests/benchmarks/fit_epoch.py

Both keep uint8 images on the device, shuffle by index and use the same optimiser and
batch size of 128. The one by hand drops the last, incomplete batch; `fit` trains on it.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import optax
from _measure import interleaved, table

from eqx_mlp import MLP, data, fit, losses, metrics

BATCH = 128


def optimizer_of(steps):
    schedule = optax.cosine_decay_schedule(1e-3, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


def init_by_hand(key, sizes=(784, 256, 128, 10)):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (m, n)) * jnp.sqrt(2 / m), jnp.zeros(n))
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def loss_by_hand(params, x, y):
    """The mean over a batch, or the loss of one example."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    logits = x @ w + b
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def epoch_by_hand(optimizer, x, y):
    """A function that trains for one epoch, compiled, its buffers donated."""
    steps = x.shape[0] // BATCH

    def step(carry, index):
        params, opt_state = carry
        images = x[index].reshape(BATCH, -1).astype(jnp.float32) / 255
        value, grads = jax.value_and_grad(loss_by_hand)(params, images, y[index])
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    @functools.partial(jax.jit, donate_argnums=0)
    def epoch(carry, key):
        order = jax.random.permutation(key, x.shape[0])[: steps * BATCH]
        return jax.lax.scan(step, carry, order.reshape(steps, BATCH))

    params = init_by_hand(jax.random.key(0))
    carry, count = (params, optimizer.init(params)), 0

    def run():
        nonlocal carry, count
        count += 1
        carry, values = epoch(carry, jax.random.key(count))
        values.block_until_ready()

    return run


def one_epoch(optimizer, x, y, model=None, **extra):
    """What `fit` gives after one epoch."""
    if model is None:
        model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    return fit(
        model,
        (x, y),
        loss=losses.cross_entropy,
        optimizer=optimizer,
        key=jax.random.key(1),
        epochs=1,
        transform=data.image_to_vector,
        progress=False,
        **{"batch_size": BATCH} | extra,
    )


def epoch_by_fit(*given, **extra):
    """A function that trains for one epoch by `fit` and returns its seconds."""
    return lambda: float(one_epoch(*given, **extra).history["seconds"][0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    x, y = map(jnp.asarray, data.mnist().train)
    given = (optimizer_of(4690), x, y)
    with_accuracy = epoch_by_fit(*given, metrics={"accuracy": metrics.accuracy})
    seconds = interleaved(
        args.rounds,
        **{
            "lax.scan by hand": epoch_by_hand(*given),
            "fit": epoch_by_fit(*given),
            "fit, with accuracy": with_accuracy,
        },
    )
    table(seconds, "lax.scan by hand")


if __name__ == "__main__":
    main()
