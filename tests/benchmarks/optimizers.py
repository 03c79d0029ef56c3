"""What `recommend_optimizer` gives on MNIST, beside plain Adam at 1e-3.

    python tests/benchmarks/optimizers.py

Accuracy in percent on 10,000 training images held out, seed by seed, after the same
epochs of the others with the same batches.
"""

import argparse
import functools

import jax
import optax

from eqx_mlp import (
    MLP,
    ResidualMLP,
    clipped_grad,
    data,
    evaluate,
    fit,
    losses,
    mean_grad,
    metrics,
    recommend_optimizer,
)

NOISE = 1.1  # the noise's standard deviation over the clipping norm


def mlp(key):
    return MLP(784, 10, (256, 128), key=key)


def residual(key):
    return ResidualMLP(784, 10, width=128, depth=6, key=key)


ROWS = {
    "mlp": (mlp, 256),
    "residual": (residual, 256),
    "convolution": (mlp, 256),
    "large-batch": (mlp, 4096),
    "private": (mlp, 256),
}


def noise(deviation, key):
    """Adds Gaussian noise to the gradient, as private training does."""

    def update(updates, key, params=None):
        key, own = jax.random.split(key)
        leaves, structure = jax.tree.flatten(updates)
        noisy = [
            leaf + deviation * jax.random.normal(k, leaf.shape, leaf.dtype)
            for leaf, k in zip(leaves, jax.random.split(own, len(leaves)), strict=True)
        ]
        return jax.tree.unflatten(structure, noisy), key

    return optax.GradientTransformation(lambda params: key, update)


def accuracy(kind, optimizer, seed, epochs, train, held_out):
    build, batch_size = ROWS[kind]
    gradient = mean_grad
    if kind == "private":
        gradient = functools.partial(
            clipped_grad, l2_clip_norm=1.0, normalize_by=batch_size
        )
        deviation = NOISE / batch_size
        optimizer = optax.chain(noise(deviation, jax.random.key(seed + 9)), optimizer)
    result = fit(
        build(jax.random.key(seed)),
        train,
        loss=losses.cross_entropy,
        optimizer=optimizer,
        key=jax.random.key(seed + 1),
        epochs=epochs,
        batch_size=batch_size,
        transform=data.image_to_vector,
        gradient=gradient,
        progress=False,
    )
    measured = evaluate(
        result.model,
        held_out,
        metrics={"accuracy": metrics.accuracy},
        transform=data.image_to_vector,
    )
    return 100 * measured["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    (images, labels), _ = data.mnist()
    train, held_out = (
        (images[:50_000], labels[:50_000]),
        (images[50_000:], labels[50_000:]),
    )
    print(f"{'kind':12} {'batch':>5}  {'recommended':24}  adam(1e-3)")
    for kind, (build, batch_size) in ROWS.items():
        found = recommend_optimizer(
            build(jax.random.key(0)),
            steps=args.epochs * -(-len(train[0]) // batch_size),
            batch_size=batch_size,
            kind=kind,
        )
        columns = [
            ", ".join(
                f"{accuracy(kind, optimizer, seed, args.epochs, train, held_out):.2f}"
                for seed in range(args.seeds)
            )
            for optimizer in (found.optimizer, optax.adam(1e-3))
        ]
        print(f"{kind:12} {batch_size:5}  {columns[0]:24}  {columns[1]}", flush=True)


if __name__ == "__main__":
    main()
