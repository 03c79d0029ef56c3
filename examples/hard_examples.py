"""Which images pull hardest at a network, and what makes them do so.

python examples/hard_examples.py
python examples/hard_examples.py --epochs 5 --plot hard.png

Trains a network on MNIST, takes the gradient of each of 32 training images, and prints
them by its norm beside their loss, margin and confidence. Then the norms of all 60,000,
and the 64 largest.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.stats import spearmanr

from eqx_mlp import (
    MLP,
    data,
    fit,
    grand_scores,
    losses,
    map_examples,
    per_example_grad,
    per_example_grad_norm,
)


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="Which images of MNIST pull hardest at a network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=2, help="passes over the data")
    parser.add_argument(
        "--images", type=int, default=60_000, help="how many training images"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    parser.add_argument(
        "--data", type=Path, help="folder with the four MNIST files; default: found"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the images by their norms"
    )
    return parser.parse_args(arguments)


def looks(model, x, y):
    """What the network makes of each image of a batch."""
    logits = jax.vmap(model)(x)
    own = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    others = jnp.where(jax.nn.one_hot(y, 10, dtype=bool), -jnp.inf, logits)
    return {
        "loss": jax.nn.logsumexp(logits, axis=1) - own,
        "margin": own - others.max(axis=1),  # negative where it is wrong
        "confidence": jax.nn.softmax(logits).max(axis=1),  # right or wrong
        "predicted": logits.argmax(axis=1),
    }


def print_correlations(norm, seen):
    """Spearman's correlation of the norm with each of what is seen."""
    for name in ("loss", "margin", "confidence"):
        print(f"  norm and {name:11}{spearmanr(norm, seen[name])[0]:+.3f}")


def main(arguments=None):
    args = parse(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("eqx_mlp").setLevel(logging.INFO)
    images, labels = (x[: args.images] for x in data.mnist(args.data).train)
    model_key, fit_key = jax.random.split(jax.random.key(args.seed))
    model = fit(
        MLP(784, 10, (256, 128), key=model_key),
        (images, labels),
        loss=losses.cross_entropy,
        optimizer=optax.adam(1e-3),
        key=fit_key,
        epochs=args.epochs,
        batch_size=128,
        transform=data.image_to_vector,
    ).model

    # The gradient of each of 32 images, and its norm by hand and without it.
    x, y = jax.vmap(data.image_to_vector)(images[:32]), jnp.asarray(labels[:32])
    grads = eqx.filter_jit(per_example_grad(losses.cross_entropy))(model, x, y)
    leaves = [np.asarray(g) for g in jax.tree.leaves(grads)]
    print("\ngradients of 32 images:", *(str(g.shape) for g in leaves))
    by_hand = np.sqrt(sum(np.square(g).reshape(32, -1).sum(axis=1) for g in leaves))
    norm_of = eqx.filter_jit(per_example_grad_norm(losses.cross_entropy))
    norm = np.asarray(norm_of(model, x, y))
    print(f"largest error of the norms: {np.abs(norm / by_hand - 1).max():.1e}\n")

    seen = jax.tree.map(np.asarray, eqx.filter_jit(looks)(model, x, y))
    print("image  label  taken for      norm      loss  margin  confidence")
    for i in np.argsort(-norm):
        print(
            f"{i:5d}  {labels[i]:5d}  {seen['predicted'][i]:9d}  {norm[i]:8.4f}  "
            f"{seen['loss'][i]:8.5f}  {seen['margin'][i]:6.2f}  "
            f"{seen['confidence'][i]:10.5f}"
        )
    print("\nrank correlation over the 32:")
    print_correlations(norm, seen)

    options: dict[str, Any] = {"transform": data.image_to_vector}
    norms = grand_scores(model, (images, labels), loss=losses.cross_entropy, **options)
    seen_of_all = map_examples(looks, model, (images, labels), **options)
    print(f"\nrank correlation over all {len(norms):,}:")
    print_correlations(norms, seen_of_all)
    hardest = np.argsort(-norms)[:64]
    wrong = (seen_of_all["predicted"] != labels)[hardest].mean()
    share = np.sort(norms)[-len(norms) // 100 :].sum() / norms.sum()
    print(
        f"\nof the 64 largest norms {wrong:.0%} belong to images that are taken wrong;"
    )
    print(f"the largest hundredth of the norms is {share:.0%} of their sum")
    print("the 64:", *hardest)
    if args.plot:
        plot(args.plot, images, labels, norm, norms, seen_of_all)
        print(f"picture: {args.plot}")
    return norms


def plot(path, images, labels, norm, norms, seen):
    """The 32 by their norms, the 64 largest of all, and norms against losses."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11, 9.5), layout="constrained")
    parts: Any = figure.subfigures(3, 1, height_ratios=[2, 4, 3])
    grids = (
        (parts[0], 2, np.argsort(-norm), "the first 32 training images by their norms"),
        (parts[1], 4, np.argsort(-norms)[:64], "the 64 largest norms of all"),
    )
    for part, rows, order, title in grids:
        part.suptitle(title)
        for axes, i in zip(part.subplots(rows, 16).ravel(), order, strict=True):
            axes.imshow(images[i], cmap="gray_r")
            wrong = seen["predicted"][i] != labels[i]
            axes.set_title(
                f"{labels[i]}→{seen['predicted'][i]}\n{norms[i]:.2g}",
                size=8,
                color="tab:red" if wrong else "black",
            )
            axes.axis("off")
    what = ("loss", "margin", "confidence")
    for axes, name in zip(parts[2].subplots(1, 3, sharey=True), what, strict=True):
        scale = "log" if name == "loss" else "linear"
        # What is 0 in float32 is not on a logarithmic scale.
        seen_here = np.maximum(seen[name], 1e-8) if name == "loss" else seen[name]
        axes.hexbin(
            seen_here,
            np.maximum(norms, 1e-8),
            xscale=scale,
            yscale="log",
            bins="log",
            gridsize=40,
            cmap="Blues",
        )
        correlation = spearmanr(norms, seen[name])[0]
        axes.set(xlabel=name, title=f"rank correlation {correlation:+.3f}")
        axes.set_ylabel("gradient norm" if name == "loss" else "")
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    main()
