"""A DP-SGD epoch of MNIST in other libraries, each against its own ordinary epoch.

    nox -s peers -- private_peers

784-256-128-10, Adam, an expected batch of 256, Poisson sampling. JAX and PyTorch run in
processes of their own; within a process all epochs run in turn, each from its first
parameters. The test accuracy shows that all do the same work. Compiling and making the
objects are not timed. Of an epoch of more than a minute a few steps are timed, and
scaled up. Needs jax-privacy, torch, opacus.
"""

import argparse
import functools
import itertools
import multiprocessing
import statistics
import time
import warnings

import numpy as np
from _measure import interleaved
from clipped_peers import problem, ratio, short

from eqx_mlp import data

BATCH, ROWS, RATE = 256, 60_000, 1e-3
CLIP, NOISE = 1.0, 1.1
STEPS = -(-ROWS // BATCH)
# So many steps stand for an epoch that would take longer than a minute.
FEW, LONG = 20, 60


@functools.cache
def rows():
    """Training and test images as rows of float32, and their labels."""
    row = lambda x: np.asarray(x).reshape(len(x), -1).astype(np.float32) / 255
    return [(row(x), np.asarray(y)) for x, y in data.mnist()]


class Epoch:
    """Gives the seconds of an epoch by `train(steps) -> (seconds, layers)`.

    `against` names the ordinary epoch of the same library; `layers` are the weights and
    biases in the end, or None.
    """

    def __init__(self, train, against, whole=False):
        self._train = train
        self.against = against
        self.steps = STEPS if whole else None
        self.right = None

    def __call__(self):
        if self.steps is None:
            self._train(FEW)  # compiles
            few = self._train(FEW)[0]
            self.steps = STEPS if few * STEPS / FEW < LONG else FEW
        seconds, layers = self._train(self.steps)
        if layers is not None and self.steps == STEPS:
            self.right = right(layers)
        return seconds * STEPS / self.steps


def right(layers):
    """The share of the test images that weights and biases get right."""
    x, y = rows()[1]
    for i, (w, b) in enumerate(layers):
        x = x @ np.asarray(w) + np.asarray(b)
        x = np.maximum(x, 0) if i < len(layers) - 1 else x
    return float(np.mean(x.argmax(axis=1) == y))


def of_jax():
    import jax
    import jax_privacy
    import optax
    from fit_epoch import loss_by_hand, one_epoch
    from jax_privacy import batch_selection, noise_addition

    from eqx_mlp import MLP
    from eqx_mlp.privacy import DPSGD

    optimizer = optax.adam(RATE)
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    stored = tuple(map(jax.numpy.asarray, data.mnist().train))

    def ours(against=None, **options):
        # The whole call; the warm-up round leaves the account's epsilon in a cache.
        def train(_):
            started = time.perf_counter()
            result = one_epoch(optimizer, *stored, model, batch_size=BATCH, **options)
            jax.block_until_ready(jax.tree.leaves(result.state.opt_state))
            seconds = time.perf_counter() - started
            return seconds, [
                (layer.weight.T, layer.bias) for layer in result.model.layers
            ]

        return Epoch(train, against, whole=True)

    def theirs(batches, sizes, gradient_of, privatizer, against=None):
        """The loop of its examples: draws and rows on the host, a compiled step.

        `sizes` are those that batches may have, so that each is compiled beforehand.
        """
        x, y = rows()[0]

        @jax.jit
        def step(params, opt_state, noise_state, x, y, padding):
            grads = gradient_of(params, x, y, padding)
            grads, noise_state = privatizer.update(grads, noise_state)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, noise_state

        params = jax.tree.map(jax.numpy.asarray, problem(1)[0])
        first = (params, optimizer.init(params), privatizer.init(params))
        for size in sizes:
            index = np.full(size, -1)
            step(*first, x[index], y[index], index == -1)

        def train(steps):
            carry = first
            started = time.perf_counter()
            for index in itertools.islice(batches(), steps):
                carry = step(*carry, x[index], y[index], index == -1)
            jax.block_until_ready(carry)
            return time.perf_counter() - started, carry[0]

        return Epoch(train, against)

    def private(**options):
        clipped = jax_privacy.clipped_grad(
            loss_by_hand,
            l2_clip_norm=CLIP,
            batch_argnums=(1, 2),
            normalize_by=BATCH,
            **options,
        )
        sampling = batch_selection.CyclicPoissonSampling(
            sampling_prob=BATCH / ROWS, iterations=STEPS
        )

        def batches():
            for index in sampling.batch_iterator(ROWS):
                yield batch_selection.pad_to_multiple_of(index, 32)

        return theirs(
            batches,
            range(128, 416, 32),
            lambda *args: clipped(*args[:3], is_padding_example=args[3]),
            noise_addition.gaussian_privatizer(stddev=NOISE * clipped.l2_norm_bound),
            against="jax_privacy's loop without privacy",
        )

    def shuffled():
        order = np.random.default_rng().permutation(ROWS)
        return (order[i : i + BATCH] for i in range(0, ROWS, BATCH))

    dp_sgd = DPSGD(
        l2_clip_norm=CLIP,
        noise_multiplier=NOISE,
        expected_batch_size=BATCH,
        dataset_size=ROWS,
        delta=1e-5,
    )
    plain = lambda params, x, y, _: jax.grad(loss_by_hand)(params, x, y)
    version = f"jax_privacy {jax_privacy.__version__}"
    return {
        "fit": ours(),
        "eqx_mlp": ours(against="fit", gradient=dp_sgd),
        "jax_privacy's loop without privacy": theirs(
            shuffled, (BATCH, ROWS % BATCH), plain, optax.identity()
        ),
        version: private(),
        f"{version}, microbatch_size=1": private(microbatch_size=1),
    }


def of_torch():
    import opacus
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x, y = rows()[0]
    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))

    def made(mode):
        """The network, its layers, optimiser, loss and loader, private by `mode`."""
        layers = []
        for w, b in problem(1)[0]:
            linear = torch.nn.Linear(*w.shape)
            linear.weight.data = torch.from_numpy(w.T.copy())
            linear.bias.data = torch.from_numpy(b.copy())
            layers.append(linear)
        pairs = [(linear, torch.nn.ReLU()) for linear in layers]
        net = torch.nn.Sequential(*itertools.chain(*pairs))[:-1]
        optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
        loss_of = torch.nn.CrossEntropyLoss()
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
        if mode:
            # With ghost clipping there is a loss of its own between the others.
            net, optimizer, *own, loader = opacus.PrivacyEngine().make_private(
                module=net,
                optimizer=optimizer,
                criterion=loss_of,
                data_loader=loader,
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
                poisson_sampling=True,
                grad_sample_mode=mode,
            )
            (loss_of,) = own or [loss_of]
        return net, layers, optimizer, loss_of, loader

    def epoch(mode=None):
        def train(steps):
            net, layers, optimizer, loss_of, loader = made(mode)
            started = time.perf_counter()
            for x, y in itertools.islice(loader, steps):
                optimizer.zero_grad()
                loss_of(net(x), y).backward()
                optimizer.step()
            seconds = time.perf_counter() - started
            with torch.no_grad():
                return seconds, [(p.weight.numpy().T, p.bias.numpy()) for p in layers]

        return Epoch(train, mode and "PyTorch")

    def loading(mode=None):
        def train(steps):
            loader = made(mode)[-1]
            started = time.perf_counter()
            for _ in itertools.islice(loader, steps):
                pass
            return time.perf_counter() - started, None

        return Epoch(train, "PyTorch")

    version = f"Opacus {opacus.__version__}"
    return {
        "PyTorch": epoch(),
        f"{version}, ghost clipping": epoch("ghost"),
        f"{version}, hooks": epoch("hooks"),
        "PyTorch's loader alone": loading(),
        "Opacus's loader alone": loading("hooks"),
    }


def measure(epochs_of, rounds):
    """The table's line of each private epoch."""
    warnings.simplefilter("ignore")
    epochs = epochs_of()
    seconds = interleaved(rounds, **epochs)
    table = []
    for name, epoch in epochs.items():
        if epoch.against is None:
            continue
        taken, plain = seconds[name], seconds[epoch.against]
        if epoch.steps < STEPS:
            name += f" ({epoch.steps} of {STEPS} steps, scaled up)"
        cells = [f"{statistics.median(s):.2f} s" for s in (plain, taken)]
        cells.append(short(ratio(taken, plain)[1]))
        for share in (epoch.right and epochs[epoch.against].right, epoch.right):
            cells.append("" if share is None else f"{100 * share:.1f} %")
        table.append([name, *cells])
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print("| epoch by | ordinary | DP-SGD | ratio | right, ordinary | right, DP-SGD |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for epochs_of in (of_jax, of_torch):
        # A process of its own, started afresh.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for cells in pool.apply(measure, (epochs_of, args.rounds)):
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
