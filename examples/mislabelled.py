"""Find wrong labels: flip 5 % of MNIST's, and look for them.

python examples/mislabelled.py
python examples/mislabelled.py --flip 0.2 --plot mislabelled.png

A network learns what most images have in common before it learns single labels by
heart. So the networks after each of the first epochs are asked how badly each label
fits, by several scores, and the means rank the images.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from eqx_mlp import MLP, Callback, data, fit, losses, rank_mislabelled

METHODS = ("margin", "loss", "el2n", "grand", "self_influence")


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="Flip labels of MNIST, and find them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--flip", type=float, default=0.05, help="share of the labels")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the data")
    parser.add_argument(
        "--images", type=int, default=60_000, help="how many training images"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the flips, weights and shuffling"
    )
    parser.add_argument(
        "--data", type=Path, help="folder with the four MNIST files; default: found"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw precision against recall"
    )
    return parser.parse_args(arguments)


def flipped(labels, share, key):
    """Labels of which a share is another class, and which ones these are."""
    which_key, to_key = jax.random.split(key)
    count = round(share * len(labels))
    which = np.zeros(len(labels), bool)
    which[np.asarray(jax.random.permutation(which_key, len(labels)))[:count]] = True
    away = np.asarray(jax.random.randint(to_key, labels.shape, 1, 10))
    return np.where(which, (labels + away) % 10, labels).astype(labels.dtype), which


class KeepModels(Callback):
    """The model after each epoch."""

    def on_start(self, state, history):
        self.models = []

    def on_epoch(self, state, history):
        # The next steps reuse the state's memory.
        self.models.append(
            jax.tree.map(
                lambda x: x.copy() if isinstance(x, jax.Array) else x, state.model
            )
        )


def precision_and_recall(order, wrong):
    """Of the first n in order, for each n: the share found, and of what there is."""
    found = np.cumsum(wrong[order])
    return found / np.arange(1, len(order) + 1), found / wrong.sum()


def main(arguments=None):
    args = parse(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("eqx_mlp").setLevel(logging.INFO)
    images, labels = (x[: args.images] for x in data.mnist(args.data).train)
    flip_key, model_key, fit_key = jax.random.split(jax.random.key(args.seed), 3)
    noisy, wrong = flipped(labels, args.flip, flip_key)
    print(f"\n{wrong.sum():,} of {len(labels):,} labels flipped")

    keep = KeepModels()
    steps = args.epochs * -(-len(images) // 128)
    fit(
        MLP(784, 10, (256, 128), key=model_key),
        (images, noisy),
        loss=losses.cross_entropy,
        optimizer=optax.adam(optax.cosine_decay_schedule(1e-3, steps)),
        key=fit_key,
        epochs=args.epochs,
        batch_size=128,
        transform=data.image_to_vector,
        callbacks=[keep],
    )

    cuts = [args.flip / 2, args.flip, 2 * args.flip]
    print(f"\n{'':24}" + "".join(f"{f'first {cut:.1%}':>20}" for cut in cuts))
    print(f"{'mean over epochs of':24}" + f"{'precision':>12}{'recall':>8}" * len(cuts))
    curves, orders = {}, {}
    tries = [(method, method, keep.models) for method in METHODS]
    tries.append(("margin, last epoch only", "margin", keep.models[-1:]))
    for name, method, models in tries:
        order, _ = rank_mislabelled(
            models, (images, noisy), by=method, transform=data.image_to_vector
        )
        orders[name] = order
        precision, recall = curves[name] = precision_and_recall(order, wrong)
        at = [round(cut * len(order)) - 1 for cut in cuts]
        row = "".join(f"{precision[i]:12.1%}{recall[i]:8.1%}" for i in at)
        print(f"{name:24}{row}", flush=True)
    if args.plot:
        plot(args.plot, curves, orders["margin"], images, labels, noisy, wrong)
        print(f"picture: {args.plot}")
    return curves


def plot(path, curves, order, images, labels, noisy, wrong):
    """Precision against recall, what was found, and what was suspected besides."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11, 5), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=[5, 6])
    axes = parts[0].subplots()
    for name, (precision, recall) in curves.items():
        axes.plot(recall, precision, label=name)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0.5, 1.01), ylim=(0.5, 1.01))
    axes.legend(loc="lower left")
    tops: Any = parts[1].subfigures(2, 1)
    for part, chosen, title in (
        (tops[0], order[wrong[order]], "flipped: label given (own label)"),
        (tops[1], order[~wrong[order]], "not flipped, but suspected most: label"),
    ):
        part.suptitle(title)
        for axes, i in zip(part.subplots(2, 8).ravel(), chosen[:16], strict=True):
            axes.imshow(images[i], cmap="gray_r")
            own = f" ({labels[i]})" if wrong[i] else ""
            axes.set_title(f"{noisy[i]}{own}", size=9)
            axes.axis("off")
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
