"""Train on MNIST with DP-SGD: test accuracy at epsilon 1, 3 and 8, delta 1e-5.

python examples/private_mnist.py
python examples/private_mnist.py --epsilon 3 --epochs 60
python examples/private_mnist.py --plot private_mnist.png
"""

import argparse
import secrets
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqx_mlp import MLP, data, ema_model, evaluate, fit, losses, metrics, with_ema
from eqx_mlp.privacy import DPSGD, noise_multiplier_for

DELTA = 1e-5


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description="Train a multilayer perceptron on MNIST, keeping images private.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0], help="budgets"
    )
    parser.add_argument("--epochs", type=int, default=40, help="passes over the data")
    parser.add_argument(
        "--batch-size", type=int, default=2048, help="images expected in an update"
    )
    parser.add_argument(
        "--widths", type=int, nargs="*", default=[128], help="of hidden layers"
    )
    parser.add_argument("--clip", type=float, default=0.5, help="norm of a gradient")
    parser.add_argument("--learning-rate", type=float, default=2.0, help="of SGD")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--ema", type=float, default=0.98, help="of the weights")
    parser.add_argument(
        "--seed", type=int, help="to have the same run again; default: a secret one"
    )
    parser.add_argument("--data", type=Path, help="folder with the four MNIST files")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    return parser.parse_args(arguments)


def train(args, split, epsilon):
    """The history of a run that spends `epsilon`, and the last test accuracy."""
    size = len(split.train[0])
    steps = args.epochs * -(-size // args.batch_size)
    private = DPSGD(
        l2_clip_norm=args.clip,
        noise_multiplier=noise_multiplier_for(
            epsilon=epsilon,
            delta=DELTA,
            sampling_rate=args.batch_size / size,
            steps=steps,
        ),
        expected_batch_size=args.batch_size,
        dataset_size=size,
        delta=DELTA,
    )
    # Whoever knows the seed can take the noise away.
    seed = secrets.randbits(63) if args.seed is None else args.seed
    model_key, fit_key = jax.random.split(jax.random.key(seed))
    rate = optax.cosine_decay_schedule(args.learning_rate, steps)
    state, history = fit(
        MLP(784, 10, args.widths, activation=jnp.tanh, key=model_key),
        split.train,
        loss=losses.cross_entropy,
        # An average of weights is made of what is private already: it costs nothing.
        optimizer=with_ema(optax.sgd(rate, args.momentum), args.ema),
        gradient=private,
        key=fit_key,
        epochs=args.epochs,
        transform=data.image_to_vector,
        validation=split.test,
        metrics={"accuracy": metrics.accuracy},
    )
    measured = evaluate(
        ema_model(state),
        split.test,
        metrics={"accuracy": metrics.accuracy},
        transform=data.image_to_vector,
    )
    return private, history, measured["accuracy"]


def main(arguments=None):
    args = parse(arguments)
    split = data.mnist(args.data)
    print("| epsilon | noise multiplier | test accuracy | seconds |")
    print("| --- | --- | --- | --- |", flush=True)
    histories, accuracies = {}, {}
    for epsilon in args.epsilon:
        started = time.perf_counter()
        private, history, accuracy = train(args, split, epsilon)
        print(
            f"| {history['epsilon'][-1]:.3f} | {private.noise_multiplier:.3f} | "
            f"{accuracy:.2%} | {time.perf_counter() - started:.0f} |",
            flush=True,
        )
        histories[epsilon], accuracies[epsilon] = history, accuracy
    if args.plot:
        plot(args.plot, histories)
        print(f"picture: {args.plot}")
    return accuracies


def plot(path, histories):
    """Accuracy by epoch and by what has been spent."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (by_epoch, by_epsilon) = plt.subplots(
        1, 2, figsize=(10, 4), sharey=True, layout="constrained"
    )
    for epsilon, history in histories.items():
        accuracy = 100 * history["ema_val_accuracy"]
        label = f"epsilon {epsilon:g}"
        by_epoch.plot(np.arange(1, len(accuracy) + 1), accuracy, label=label)
        by_epsilon.plot(history["epsilon"], accuracy, label=label)
    by_epoch.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(80, 100))
    by_epsilon.set(xlabel="epsilon spent, at delta 1e-5", xscale="log")
    marks = [0.1, 0.2, 0.5, 1, 2, 5, 10]
    by_epsilon.set_xticks(marks, [f"{mark:g}" for mark in marks])
    by_epsilon.minorticks_off()
    for axes in (by_epoch, by_epsilon):
        axes.grid(alpha=0.2)
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
