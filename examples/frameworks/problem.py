"""What the programs of this folder share: first weights, batches, and a report.

Each of them trains 784-256-128-10 on MNIST with Adam, from the same weights, on the
same batches in the same order. What is left is what its framework is about.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from eqx_mlp import data

SIZES = (784, 256, 128, 10)
RATE = 1e-3
BATCH = 128
# Whole batches alone: what a framework does with a ragged one is left aside.
STEPS_PER_EPOCH = 60_000 // BATCH


class Run(NamedTuple):
    """What came out: the loss of each step, the seconds of each epoch, the network.

    A loss is the mean over a batch before its update. The first epoch's seconds hold
    what is done once, such as compiling. `network` maps [n, 784] to logits [n, 10].
    """

    losses: np.ndarray
    seconds: np.ndarray
    network: Callable


class Problem(NamedTuple):
    """Where training starts and what it sees."""

    weights: list[tuple[np.ndarray, np.ndarray]]  # w [in, out], b [out] of each layer
    images: np.ndarray  # uint8 [n, 28, 28]
    labels: np.ndarray  # int32 [n]
    key: jax.Array  # of the order

    def batches(self, epoch):
        """Each batch of an epoch, in the order in which `fit` visits them."""
        order = data.epoch_permutation(self.key, epoch, len(self.images))
        for index in order.reshape(-1, BATCH):
            yield self.as_input(self.images[index]), self.labels[index]

    def as_input(self, images):
        """Images [n, 28, 28] as [n, 784] in [0, 1], of the weights' dtype."""
        vectors = images.reshape(len(images), -1).astype(np.float32) / 255
        return vectors.astype(self.weights[0][0].dtype, copy=False)


def make(seed=0, steps_per_epoch=STEPS_PER_EPOCH, dtype=np.float32):
    """The problem of this seed: weights by He's rule, biases zero."""
    rng = np.random.default_rng(seed)
    weights = [
        (
            rng.normal(size=(m, n), scale=np.sqrt(2 / m)).astype(dtype),
            np.zeros(n, dtype),
        )
        for m, n in itertools.pairwise(SIZES)
    ]
    images, labels = (x[: steps_per_epoch * BATCH] for x in data.mnist().train)
    return Problem(weights, images, labels, jax.random.key(seed))


def accuracy(problem, run):
    """The share of test images whose largest logit is the label's."""
    images, labels = data.mnist().test
    predicted = np.asarray(run.network(problem.as_input(images))).argmax(1)
    return float((predicted == labels).mean())


def report(train, epochs=3):
    """Train, and print what came out."""
    run = train(problem := make(), epochs)
    for i, losses in enumerate(run.losses.reshape(epochs, -1)):
        print(f"epoch {i + 1}   loss {losses.mean():.4f}   {run.seconds[i]:.2f} s")
    print(f"test accuracy {accuracy(problem, run):.2%}")
