"""An MNIST epoch in other frameworks, written as their guides do, beside `fit`.

    nox -s peers -- peers

The network is 784-256-128-10, the optimiser Adam, the batch 128. Each loop gathers its
batches from uint8 images in memory. Needs torch and flax.
"""

import argparse
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _measure import interleaved, table
from fit_epoch import BATCH, epoch_by_fit, epoch_by_hand

from eqx_mlp import data


def pure_jax_loop(x, y):
    """The Python loop of examples/pure_jax.py, a compiled step at a time."""
    path = pathlib.Path(__file__).parents[2] / "examples" / "pure_jax.py"
    spec = importlib.util.spec_from_file_location("pure_jax", path)
    pure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pure)
    params = pure.init(jax.random.key(0))
    optimizer = pure.make_optimizer(4690)
    opt_state = optimizer.init(params)
    step = pure.make_step(optimizer)
    rng = np.random.default_rng(0)

    def epoch():
        nonlocal params, opt_state
        params, opt_state, _ = pure.train_epoch(step, params, opt_state, x, y, rng)

    return epoch


def nnx_loop(x, y):
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List(
                [
                    nnx.Linear(m, n, rngs=rngs)
                    for m, n in ((784, 256), (256, 128), (128, 10))
                ]
            )

        def __call__(self, x):
            for layer in self.layers[:-1]:
                x = nnx.relu(layer(x))
            return self.layers[-1](x)

    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    rng = np.random.default_rng(0)

    @nnx.jit
    def step(model, optimizer, x, y):
        def loss(model):
            logits = model(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    def epoch():
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            index = order[start : start + BATCH]
            images = x[index].reshape(BATCH, -1).astype(np.float32) / 255
            value = step(model, optimizer, images, y[index])
        value.block_until_ready()

    return epoch


def torch_loop(x, y, compiled):
    import torch

    network = torch.nn.Sequential(
        torch.nn.Linear(784, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    forward = torch.compile(network) if compiled else network
    loss_of = torch.nn.CrossEntropyLoss()
    images, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))

    def epoch():
        order = torch.randperm(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            index = order[start : start + BATCH]
            batch = images[index].reshape(BATCH, -1).float() / 255
            optimizer.zero_grad()
            loss_of(forward(batch), labels[index]).backward()
            optimizer.step()

    return epoch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    args = parser.parse_args()
    x, y = data.mnist().train
    given = (optax.adam(1e-3), *map(jnp.asarray, (x, y)))
    loops = {
        "eqx_mlp.fit": epoch_by_fit(*given),
        "lax.scan by hand": epoch_by_hand(*given),
        "Python loop, jitted step": pure_jax_loop(x, y),
    }
    if importlib.util.find_spec("flax"):
        loops["Flax NNX loop"] = nnx_loop(x, y)
    if importlib.util.find_spec("torch"):
        loops["PyTorch, eager"] = torch_loop(x, y, compiled=False)
        if args.compile:
            loops["PyTorch, torch.compile"] = torch_loop(x, y, compiled=True)
    table(interleaved(args.rounds, **loops), "eqx_mlp.fit")


if __name__ == "__main__":
    main()
