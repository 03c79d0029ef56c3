"""What dropout does for the MNIST network: several rates and seeds, side by side.

    python examples/dropout.py
    python examples/dropout.py --images 60000 --epochs 10 --plot dropout.png

For each seed, one `Ensemble` holds a network a rate, and `fit` trains them in one
program. They begin with the same weights and see the same batches, so that a difference
within a seed is dropout's. Every accuracy is taken with dropout off, after the last
epoch: to pick the best epoch by the test images would flatter all of them.
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import optax

from eqx_mlp import MLP, Ensemble, data, evaluate, fit, losses, metrics


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="Train the MNIST network with and without dropout.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--images", type=int, default=10_000, help="to train on")
    parser.add_argument("--epochs", type=int, default=30, help="passes over them")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each rate")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.0, 0.2, 0.5], help="first: base"
    )
    parser.add_argument(
        "--widths", type=int, nargs="*", default=[256, 128], help="of hidden layers"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    return parser.parse_args(arguments)


def run(seed, widths, rates, train, test, epochs):
    """Accuracy [epochs, rates] on the test images, [rates] on the training images."""
    weights_key, fit_key = jax.random.split(jax.random.key(seed))
    options = {
        "metrics": {"accuracy": metrics.accuracy},
        "transform": data.image_to_vector,
    }
    state, history = fit(
        Ensemble(
            [MLP(784, 10, widths, dropout_rate=r, key=weights_key) for r in rates]
        ),
        train,
        loss=losses.cross_entropy,
        optimizer=optax.adam(1e-3),
        key=fit_key,
        epochs=epochs,
        batch_size=128,
        validation=test,
        progress=False,
        **options,
    )
    # The history's own accuracy is with dropout on, and before each update.
    on_training = evaluate(state.model, train, **options)["accuracy"]
    return history["val_accuracy"], on_training


def spread(values):
    """The mean and the standard deviation over seeds, in percent."""
    values = 100 * values
    return np.mean(values), np.std(values, ddof=1) if len(values) > 1 else np.nan


def table(rates, on_test, on_training):
    """A line a rate, from accuracies [seeds, rates]: means and standard deviations."""
    lines = [f"{'dropout':>7}{'training':>19}{'test':>19}{'test - first':>19}"]
    for i, rate in enumerate(rates):
        columns = [on_training[:, i], on_test[:, i]]
        # Paired: what a seed does to all its networks alike falls out.
        columns += [on_test[:, i] - on_test[:, 0]] if i else []
        shown = ["{:.2f} ± {:.2f} %".format(*spread(c)) for c in columns[:2]]
        shown += ["{:+.2f} ± {:.2f} %".format(*spread(c)) for c in columns[2:]]
        lines.append(f"{rate:7g}" + "".join(f"{cell:>19}" for cell in shown))
    return "\n".join(lines)


def main(arguments=None):
    args = parse(arguments)
    (images, labels), test = data.mnist()
    train = images[: args.images], labels[: args.images]
    curves, on_training = [], []
    for seed in range(args.seeds):
        curve, own = run(seed, args.widths, args.rates, train, test, args.epochs)
        curves.append(curve)
        on_training.append(own)
        shown = "   ".join(
            f"{rate:g}: {accuracy:.2%}"
            for rate, accuracy in zip(args.rates, curve[-1], strict=True)
        )
        print(f"seed {seed}   test accuracy by dropout rate   {shown}", flush=True)
    curves = np.stack(curves)
    print(
        f"\n{len(train[0]):,} images, {args.epochs} epochs, {args.seeds} seeds: "
        f"mean ± standard deviation over seeds\n"
    )
    print(table(args.rates, curves[:, -1], np.stack(on_training)))
    if args.plot:
        plot(args.plot, args.rates, curves, len(train[0]))
        print(f"picture: {args.plot}")


def plot(path, rates, curves, images):
    """Test accuracy over epochs, and after the last one, a line a seed."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    seeds, epochs, _ = curves.shape
    figure, (course, end) = plt.subplots(
        1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=[2, 1]
    )
    percent = 100 * curves
    numbers = np.arange(1, epochs + 1)
    for i, rate in enumerate(rates):
        own = percent[:, :, i]
        line = course.plot(numbers, own.mean(0), label=f"dropout {rate:g}")[0]
        course.fill_between(
            numbers, own.min(0), own.max(0), color=line.get_color(), alpha=0.2, lw=0
        )
        end.plot(np.full(seeds, i), own[:, -1], "o", color=line.get_color())
    end.plot(range(len(rates)), percent[:, -1].T, color="0.6", lw=0.8, zorder=0)
    course.set(
        xlabel="epoch",
        ylabel="test accuracy, %",
        title=f"{images:,} images; mean and range of {seeds} seeds",
        ylim=(np.quantile(percent, 0.1) - 0.3, percent.max() + 0.1),
    )
    course.legend()
    end.set(xlabel="dropout", title="last epoch, a line a seed")
    end.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
