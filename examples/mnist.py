"""Train a multilayer perceptron on MNIST: about 98 % after ten epochs.

python examples/mnist.py
python examples/mnist.py --preset best    # about 99.5 % in five minutes
python examples/mnist.py --epochs 100 --early-stopping 5 --log mnist.jsonl
python examples/mnist.py --epochs 3 --widths 512 512 --dropout 0.2 --plot mnist.png
python examples/mnist.py --epochs 30 --checkpoint-dir runs/a    # again to go on
"""

import time

STARTED = time.perf_counter()

import argparse
import functools
import logging
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import eqx_mlp
from eqx_mlp import (
    MLP,
    Callback,
    Checkpoints,
    EarlyStopping,
    data,
    ema_model,
    losses,
    metrics,
    nn,
    with_ema,
)

IMPORTED = time.perf_counter()

OPTIMIZERS = {"adam": optax.adam, "adamw": optax.adamw, "sgd": optax.sgd}

DEFORMATION = data.RandomDeformation(
    shift=1, rotation=8, scale=0.1, shear=0.1, elastic=1.0, smoothness=4
)

# Defaults of the options. `best` was chosen on 10,000 held-out training images.
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "best": {
        "epochs": 80,
        "batch_size": 512,
        "widths": [1200, 1000],
        "learning_rate": 2e-3,
        "label_smoothing": 0.1,
        "ema": 0.999,
        "augment": True,
    },
}


def parse(arguments=None):
    # Read first, since it says the defaults of the others, in their help too.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument(
        "--preset", choices=PRESETS, default="quick", help="defaults of the options"
    )
    parser = argparse.ArgumentParser(
        parents=[first],
        description="Train a multilayer perceptron on the 60,000 images of MNIST.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data")
    parser.add_argument("--batch-size", type=int, default=128, help="images an update")
    parser.add_argument(
        "--widths", type=int, nargs="*", default=[256, 128], help="of hidden layers"
    )
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="chance of dropping a hidden unit"
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at its peak")
    parser.add_argument("--schedule", choices=["cosine", "constant"], default="cosine")
    parser.add_argument(
        "--label-smoothing", type=float, default=0.0, help="share of all classes"
    )
    parser.add_argument(
        "--ema", type=float, metavar="DECAY", help="judge a moving average of weights"
    )
    parser.add_argument(
        "--augment",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="shift, turn, scale, shear and bend the training images",
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and shuffling")
    parser.add_argument(
        "--data", type=Path, help="folder with the four MNIST files; default: found"
    )
    parser.add_argument(
        "--early-stopping",
        type=int,
        metavar="EPOCHS",
        help="hold out 10,000 training images, stop after so many epochs without a "
        "better accuracy on them, and keep the best network",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write JSON lines, or CSV if so named"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw curves and mistakes"
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="keep the run there; the same command goes on where it was stopped",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="updates between checkpoints; default: one after each epoch",
    )
    parser.set_defaults(**PRESETS[first.parse_known_args(arguments)[0].preset])
    return parser.parse_args(arguments)


def optimizer_of(args, steps):
    """Clip the batch gradient to norm 1, then step with a falling learning rate."""
    rate = args.learning_rate
    if args.schedule == "cosine":
        rate = optax.cosine_decay_schedule(rate, steps)
    step = optax.chain(optax.clip_by_global_norm(1.0), OPTIMIZERS[args.optimizer](rate))
    return step if args.ema is None else with_ema(step, args.ema)


class PrintEpochs(Callback):
    """A line an epoch."""

    def __init__(self, watched, accuracy):
        self.watched = watched
        self.accuracy = accuracy

    def on_start(self, state, history):
        self.resumed = int(state.step) > 0

    def on_epoch(self, state, history):
        last = {name: values[-1] for name, values in history.items() if values.ndim}
        print(
            f"epoch {len(history['loss']):2d}   loss {last['loss']:.4f}   "
            f"accuracy {last['accuracy']:.2%}   {self.watched} accuracy "
            f"{last[self.accuracy]:.2%}   {last['seconds']:.2f} s",
            flush=True,
        )


def main(arguments=None):
    args = parse(arguments)
    # The library says on its logger where it found the data.
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("eqx_mlp").setLevel(logging.INFO)
    split = data.mnist(args.data)
    loaded = time.perf_counter()

    model_key, fit_key = jax.random.split(jax.random.key(args.seed))
    model = MLP(784, 10, args.widths, dropout_rate=args.dropout, key=model_key)
    print(f"\n{nn.summary(model)}\n", flush=True)

    train, watched = split
    accuracy = "val_accuracy" if args.ema is None else "ema_val_accuracy"
    lines = PrintEpochs("test", accuracy)
    callbacks: list[Callback] = [lines]
    if args.early_stopping:
        # What chooses the epoch must not be what the network is judged by.
        train = tuple(array[:50_000] for array in split.train)
        watched = tuple(array[50_000:] for array in split.train)
        lines.watched = "held-out"
        patience = args.early_stopping
        callbacks.append(EarlyStopping(accuracy, mode="max", patience=patience))
    # The library says on its logger whether it goes on, and where.
    checkpoint = args.checkpoint_dir and Checkpoints(
        args.checkpoint_dir, every=args.checkpoint_every, best=accuracy, mode="max"
    )
    steps = args.epochs * -(-len(train[0]) // args.batch_size)
    state, history = eqx_mlp.fit(
        model,
        train,
        loss=functools.partial(losses.cross_entropy, smoothing=args.label_smoothing),
        optimizer=optimizer_of(args, steps),
        key=fit_key,
        epochs=args.epochs,
        batch_size=args.batch_size,
        transform=data.image_to_vector,
        augment=DEFORMATION if args.augment else None,
        validation=watched,
        metrics={"accuracy": metrics.accuracy},
        callbacks=callbacks,
        checkpoint=checkpoint,
        logger=args.log,
    )
    fitted = time.perf_counter()

    model = state.model if args.ema is None else ema_model(state)
    measured = eqx_mlp.evaluate(
        model,
        split.test,
        metrics={"accuracy": metrics.accuracy},
        transform=data.image_to_vector,
    )
    print(f"\ntest accuracy: {measured['accuracy']:.2%}")
    compiled, trained = history["compile_seconds"], history["seconds"].sum()
    rest = f"evaluate and the rest {fitted - loaded - compiled - trained:.1f} s"
    if lines.resumed:  # the history has what an earlier process spent, our clock not
        rest = "part of it before this start"
    print(
        f"time: import {IMPORTED - STARTED:.1f} s, data {loaded - IMPORTED:.1f} s, "
        f"compile {compiled:.1f} s, train {trained:.1f} s "
        f"({len(history['loss']) * len(train[0]) / trained:,.0f} images/s), "
        f"{rest}"
    )
    if args.plot:
        plot(args.plot, model, history, split.test)
        print(f"picture: {args.plot}")
    return history


def plot(path, model, history, test):
    """Curves, the confusion matrix, and the mistakes made with most confidence."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    images, labels = test
    confusion = eqx_mlp.evaluate(
        model,
        test,
        metrics={"confusion": metrics.confusion_matrix},
        transform=data.image_to_vector,
    )["confusion"].astype(int)
    logits = eqx_mlp.predict(model, images, transform=data.image_to_vector)
    probability = np.asarray(jax.nn.softmax(logits))
    predicted = probability.argmax(1)
    wrong = np.flatnonzero(predicted != labels)
    worst = wrong[np.argsort(-probability[wrong, predicted[wrong]])][:12]

    figure = plt.figure(figsize=(13, 8), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[3, 2])
    top, bottom = parts
    loss, accuracy, matrix = top.subplots(1, 3)
    epochs = np.arange(1, len(history["loss"]) + 1)
    for axes, name in ((loss, "loss"), (accuracy, "accuracy")):
        axes.plot(epochs, history[name], "o-", label="training")
        axes.plot(epochs, history[f"val_{name}"], "s--", label="test")
        axes.set(xlabel="epoch", title=name)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    # The diagonal would drown the mistakes, so colours are for mistakes alone.
    mistakes = confusion * (1 - np.eye(10, dtype=int))
    matrix.imshow(mistakes, cmap="Reds")
    for (row, column), count in np.ndenumerate(confusion):
        dark = mistakes[row, column] > mistakes.max() / 2
        matrix.text(
            column,
            row,
            count,
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
        )
    matrix.set(
        xlabel="predicted",
        ylabel="label",
        title="confusion on the test set",
        xticks=range(10),
        yticks=range(10),
    )
    bottom.suptitle("mistakes made with most confidence")
    for axes in (grid := bottom.subplots(2, 6).ravel()):
        axes.axis("off")
    for axes, i in zip(grid, worst, strict=False):
        axes.imshow(images[i], cmap="gray_r")
        sure = probability[i, predicted[i]]
        axes.set_title(f"{labels[i]}, taken for {predicted[i]} ({sure:.0%})", size=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
