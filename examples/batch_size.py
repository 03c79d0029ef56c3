"""How large a batch pays: the gradient noise scale over training.

python examples/batch_size.py
python examples/batch_size.py --batch-size 512 --plot batch_size.png

Of batches far below the noise scale twice the size saves nearly half of the updates; of
batches far above it saves nothing. The scale grows as the loss falls.
"""

import argparse
import logging
import sys
from pathlib import Path

import jax
import numpy as np
import optax

from eqx_mlp import MLP, Callback, NoiseScale, data, fit, losses


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="The gradient noise scale over training on MNIST.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data")
    parser.add_argument("--batch-size", type=int, default=128, help="images an update")
    parser.add_argument(
        "--points", type=int, default=10, help="measurements in each pass"
    )
    parser.add_argument(
        "--images", type=int, default=60_000, help="how many training images"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    parser.add_argument(
        "--data", type=Path, help="folder with the four MNIST files; default: found"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the noise scale"
    )
    return parser.parse_args(arguments)


def batches(images, labels, size, key):
    """Shuffled batches without an end."""
    for epoch in range(sys.maxsize):
        order = data.epoch_permutation(key, epoch, len(images))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield images[rows], labels[rows]


class Print(Callback):
    """A line for each measurement."""

    def on_epoch(self, state, history):
        loss, scale, square, trace = (
            history[name][-1]
            for name in ("loss", "noise_scale", "grad_square", "grad_trace")
        )
        print(
            f"{int(state.step):7d}  {loss:8.4f}  {square:9.5f}  {trace:9.3f}  "
            f"{scale:10.0f}",
            flush=True,
        )


def main(arguments=None):
    args = parse(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("eqx_mlp").setLevel(logging.INFO)
    images, labels = (x[: args.images] for x in data.mnist(args.data).train)
    model_key, order_key, fit_key = jax.random.split(jax.random.key(args.seed), 3)
    # Of a stream, an epoch of `fit` may be a part of a pass: that is when it measures.
    steps = max(len(images) // args.batch_size // args.points, 1)
    noise = NoiseScale((images, labels), decay=0.8)
    print("\nupdates      loss      |G|^2  tr(Sigma)  noise scale")
    _, history = fit(
        MLP(784, 10, (256, 128), key=model_key),
        batches(images, labels, args.batch_size, order_key),
        loss=losses.cross_entropy,
        optimizer=optax.adam(1e-3),
        key=fit_key,
        steps=steps,
        epochs=args.epochs * args.points,
        transform=data.image_to_vector,
        callbacks=[noise, Print()],
    )
    scale = history["noise_scale"][-1]
    print(f"\nnoise scale at the end: {scale:.0f} images")
    print(f"suggested batch size: {noise.suggested_batch_size}")
    # McCandlish et al., section 2.3, the noise scale taken for the critical batch size.
    more = scale / args.batch_size
    print(f"here, with batches of {args.batch_size}, training takes about", end=" ")
    print(f"{1 + more:.1f}x the fewest updates, {1 + 1 / more:.2f}x the fewest images")
    if args.plot:
        plot(args.plot, history, steps, args.batch_size)
        print(f"picture: {args.plot}")
    return history


def plot(path, history, steps, batch_size):
    """The noise scale over training, and what it is the ratio of."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    updates = steps * np.arange(1, len(history["loss"]) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.plot(updates, history["noise_scale"], "o-", ms=3, label="noise scale")
    left.axhline(batch_size, color="black", ls=":", label="batch size")
    left.set(xlabel="updates", ylabel="images", yscale="log", title="noise scale")
    left.legend()
    right.plot(updates, history["grad_trace"], "o-", ms=3, label="noise, tr Σ")
    right.plot(updates, history["grad_square"], "s-", ms=3, label="gradient, |G|²")
    right.plot(updates, history["loss"], ls="--", color="gray", label="loss")
    right.set(xlabel="updates", yscale="log", title="what it is the ratio of")
    right.legend()
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
