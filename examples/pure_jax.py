"""The network of mnist.py as pure functions over a dictionary of arrays.

    python examples/pure_jax.py

No classes and no library but JAX, NumPy and Optax; only the data come from eqx_mlp.
Read it from the top if you know PyTorch: what an `nn.Module` keeps in itself and
changes in place is here a value that goes in and a new value that comes out. That is
what lets JAX differentiate, compile and vectorise the functions.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqx_mlp import data

SIZES = (784, 256, 128, 10)
BATCH = 128


def init(key, sizes=SIZES):
    """All parameters, as a dictionary: {"w1": [784, 256], "b1": [256], "w2": ...}.

    There is no global random state, as there is behind torch.manual_seed. Whoever draws
    needs a key, the same key draws the same numbers, and a key is split, not reused.
    """
    params = {}
    keys = jax.random.split(key, len(sizes) - 1)
    for i, (k, fan_in, fan_out) in enumerate(
        zip(keys, sizes[:-1], sizes[1:], strict=True), start=1
    ):
        # He initialisation: variance 2 / fan_in keeps the size of ReLU activations.
        scale = jnp.sqrt(2 / fan_in)
        params[f"w{i}"] = scale * jax.random.normal(k, (fan_in, fan_out))
        params[f"b{i}"] = jnp.zeros(fan_out)
    return params


def forward(params, x):
    """Logits [batch, 10] of images [batch, 784].

    PyTorch's forward reads self.weight. Here parameters are an argument like any other,
    so that grad can differentiate with respect to them.
    """
    layers = len(params) // 2
    for i in range(1, layers):
        x = jax.nn.relu(x @ params[f"w{i}"] + params[f"b{i}"])
    return x @ params[f"w{layers}"] + params[f"b{layers}"]


def cross_entropy(params, x, y):
    """The mean of -log softmax at the label: nn.CrossEntropyLoss.

    log_softmax subtracts the largest logit first; log(softmax(x)) would overflow.
    """
    log_probability = jax.nn.log_softmax(forward(params, x))
    own = jnp.take_along_axis(log_probability, y[:, None], axis=1)
    return -own.mean()


def accuracy(params, x, y):
    """The share of images whose largest logit is the label's."""
    return (forward(params, x).argmax(axis=1) == y).mean()


def make_optimizer(steps):
    """Clip the gradient's norm to 1, then Adam at a rate that falls along a cosine."""
    schedule = optax.cosine_decay_schedule(1e-3, steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


def make_step(optimizer):
    """One update, compiled at its first call and then reused for the same shapes."""

    @jax.jit
    def step(params, opt_state, x, y):
        # No loss.backward(): value_and_grad turns a function into one that returns its
        # value and its gradient, a dictionary shaped like params. No zero_grad():
        # nothing was accumulated anywhere.
        loss, grads = jax.value_and_grad(cross_entropy)(params, x, y)
        # No optimizer.step() in place: Adam's moments are a value too, in and out.
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def as_input(images):
    """Images uint8 [batch, 28, 28] as float32 [batch, 784] in [0, 1]."""
    return images.reshape(len(images), -1).astype(np.float32) / 255


def train_epoch(step, params, opt_state, x, y, rng):
    """One pass over the data in Python, a compiled step at a time.

    `fit` does the same in one compiled loop: this one goes back to Python, and copies a
    batch to the device, at every step.
    """
    order = rng.permutation(len(x))
    losses = []
    for start in range(0, len(x) - BATCH + 1, BATCH):
        index = order[start : start + BATCH]
        params, opt_state, loss = step(params, opt_state, as_input(x[index]), y[index])
        losses.append(loss)  # still on its way: nothing waits for it here
    return params, opt_state, np.mean(jax.device_get(losses))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="The MNIST network as pure functions over a dictionary of arrays."
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    (x, y), (x_test, y_test) = data.mnist()
    params = init(jax.random.key(args.seed))
    optimizer = make_optimizer(args.epochs * (len(x) // BATCH))
    opt_state = optimizer.init(params)
    step = make_step(optimizer)
    compiled_accuracy = jax.jit(accuracy)
    rng = np.random.default_rng(args.seed)
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        params, opt_state, loss = train_epoch(step, params, opt_state, x, y, rng)
        seconds = time.perf_counter() - started
        right = compiled_accuracy(params, as_input(x_test), y_test)
        print(
            f"epoch {epoch:2d}   loss {loss:.4f}   test accuracy {right:.2%}   "
            f"{seconds:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
