"""Sums of clipped gradients in other libraries, each against its own plain gradient.

    nox -s peers -- clipped_peers

The network is 784-256-128-10, the clipping norm 1. JAX and PyTorch run in processes of
their own, so that the threads of one do not disturb the other; within a process all
functions run in turn. Every library gets the same weights and rows, and must come to
the same sum. Prints a table and draws it. Needs jax-privacy, torch, opacus, matplotlib.
"""

import argparse
import itertools
import multiprocessing
import pathlib
import statistics
import time
import warnings

import numpy as np
from _measure import interleaved

SIZES = (784, 256, 128, 10)
PLOT = pathlib.Path(__file__).parents[2] / "docs" / "images" / "peers_clipped.png"
PLAIN = "plain gradient"


def problem(batch):
    """Weights and biases of each layer, rows and labels."""
    rng = np.random.default_rng(0)
    layers = [
        (
            rng.normal(size=(m, n), scale=np.sqrt(2 / m)).astype(np.float32),
            np.zeros(n, np.float32),
        )
        for m, n in itertools.pairwise(SIZES)
    ]
    x = rng.random((batch, SIZES[0]), dtype=np.float32)
    return layers, x, rng.integers(SIZES[-1], size=batch)


def of_jax(batch):
    """Functions that return a gradient as a list of arrays."""
    import jax
    import jax.numpy as jnp
    import jax_privacy
    from fit_epoch import loss_by_hand

    from eqx_mlp import clipped_grad
    from eqx_mlp.interop import jax_privacy as door

    layers, x, y = jax.tree.map(jnp.asarray, problem(batch))
    ours = lambda **method: (
        lambda *args: clipped_grad(loss_by_hand, l2_clip_norm=1.0, **method)(*args)[0]
    )
    options = {"l2_clip_norm": 1.0, "batch_argnums": (1, 2)}
    version = f"jax_privacy {jax_privacy.__version__}"
    # An example can be handed over as a batch of one, or without the axis.
    functions = {
        PLAIN: jax.grad(loss_by_hand),
        "eqx_mlp": ours(),
        "eqx_mlp.interop.jax_privacy": door.clipped_grad(loss_by_hand, **options),
        'eqx_mlp, method="vmap"': ours(method="vmap"),
        version: jax_privacy.clipped_grad(loss_by_hand, **options),
        f"{version}, keep_batch_dim=False": jax_privacy.clipped_grad(
            loss_by_hand, keep_batch_dim=False, **options
        ),
    }

    def runner(f):
        compiled = jax.jit(f).lower(layers, x, y).compile()
        return lambda: jax.tree.leaves(jax.block_until_ready(compiled(layers, x, y)))

    return {name: runner(f) for name, f in functions.items()}


def of_torch(batch):
    """Functions that return a gradient as a list of tensors."""
    import opacus
    import torch
    from opacus.grad_sample import (
        GradSampleModule,
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    layers, x, y = problem(batch)
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def network():
        modules = []
        for w, b in layers:
            linear = torch.nn.Linear(*w.shape)
            linear.weight.data = torch.from_numpy(w.T.copy())
            linear.bias.data = torch.from_numpy(b.copy())
            modules += [linear, torch.nn.ReLU()]
        return torch.nn.Sequential(*modules[:-1])

    options = {"noise_multiplier": 0.0, "max_grad_norm": 1.0}

    def plain():
        net, loss_of = network(), torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(net.parameters())

        def run():
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            return [p.grad for p in net.parameters()]

        return run

    def hooks():
        net, loss_of = GradSampleModule(network()), torch.nn.CrossEntropyLoss()
        optimizer = DPOptimizer(
            torch.optim.SGD(net.parameters()), expected_batch_size=batch, **options
        )

        def run():
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            optimizer.clip_and_accumulate()
            return [p.summed_grad for p in net.parameters()]

        return run

    def ghost():
        net = GradSampleModuleFastGradientClipping(network(), max_grad_norm=1.0)
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(net.parameters()), expected_batch_size=batch, **options
        )
        loss_of = DPLossFastGradientClipping(
            net, optimizer, torch.nn.CrossEntropyLoss()
        )

        def run():
            optimizer.zero_grad()
            loss_of(net(x), y).backward()
            return [p.grad for p in net.parameters()]

        return run

    version = f"Opacus {opacus.__version__}"
    return {
        PLAIN: plain(),
        f"{version}, ghost clipping": ghost(),
        f"{version}, hooks": hooks(),
    }


def repeated(f):
    """A function that runs `f` for a tenth of a second and returns its seconds.

    What is quick runs once before, since a slow neighbour may have emptied the caches.
    """

    def seconds(repeats):
        if repeats > 1:
            f()
        started = time.perf_counter()
        for _ in range(repeats):
            f()
        return (time.perf_counter() - started) / repeats

    repeats = min(max(round(0.1 / seconds(1)), 1), 50)
    return lambda: seconds(repeats)


def measure(functions_of, batch, rounds):
    """The seconds of each function, and the length of what it returns."""
    warnings.simplefilter("ignore")
    functions = functions_of(batch)
    lengths = {
        name: float(np.sqrt(sum(np.sum(np.square(np.asarray(g))) for g in f())))
        for name, f in functions.items()
    }
    timed = {name: repeated(f) for name, f in functions.items()}
    return interleaved(rounds, **timed), lengths


def results(batch, rounds):
    """For each method: its times and its library's plain times, the lowest first."""
    found, lengths = {}, {}
    for functions_of in (of_jax, of_torch):
        # A process of its own, started afresh.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, own = pool.apply(measure, (functions_of, batch, rounds))
        plain = seconds.pop(PLAIN)
        found |= {name: (taken, plain) for name, taken in seconds.items()}
        lengths |= {name: own[name] for name in seconds}
    # Opacus adds 1e-6 to each norm.
    np.testing.assert_allclose(list(lengths.values()), lengths["eqx_mlp"], rtol=1e-4)
    return dict(sorted(found.items(), key=lambda item: ratio(*item[1])[1]))


def ratio(taken, plain):
    """Quartiles of the ratios, round by round: the machine's speed may drift."""
    return np.quantile(np.divide(taken, plain), [0.25, 0.5, 0.75])


def short(x):
    return f"{x:.2f}" if x < 10 else f"{x:.0f}"


def print_rows(batch, found):
    for name, (taken, plain) in found.items():
        milliseconds = [1e3 * statistics.median(s) for s in (plain, taken)]
        print(
            f"| {batch} | {name} | {milliseconds[0]:.1f} ms | "
            f"{milliseconds[1]:.1f} ms | {short(ratio(taken, plain)[1])} |",
            flush=True,
        )


def draw(measured, path):
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    names = list(next(iter(measured.values())))[::-1]
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    marks = zip(measured.items(), "os", ("#3f51b5", "#e07b00"), strict=False)
    for k, ((batch, found), mark, color) in enumerate(marks):
        offset = 0.14 * (1 - 2 * k) if len(measured) > 1 else 0
        for place, name in enumerate(names):
            low, middle, high = ratio(*found[name])
            y = place + offset
            axis.plot([low, high], [y, y], color=color, lw=2, alpha=0.4)
            axis.plot(middle, y, mark, color=color, ms=5)
            axis.annotate(
                short(middle),
                (high, y),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=color,
            )
        axis.plot([], [], mark, color=color, ms=5, label=f"batch {batch}")
    axis.axvline(1, color="0.5", lw=1, ls="--")
    axis.set_xscale("log")
    axis.set_xlim(right=axis.get_xlim()[1] * 1.5)
    axis.xaxis.set_major_formatter("{x:g}x")
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel(
        "time of the clipped sum over the same library's plain batch gradient "
        "(log scale)\nmedian; line: the middle half of the rounds",
        fontsize=9,
    )
    axis.set_title("784-256-128-10 on the CPU", fontsize=10)
    axis.grid(axis="x", which="both", alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="upper right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"drawn to {path}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--plot", type=pathlib.Path, default=PLOT)
    args = parser.parse_args()
    print("| batch | clipped sum by | its plain gradient | clipped sum | ratio |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    measured = {}
    for batch in args.batches:
        measured[batch] = results(batch, max(args.rounds * 256 // batch, 3))
        print_rows(batch, measured[batch])
    draw(measured, args.plot)


if __name__ == "__main__":
    main()
