"""What lasting costs: an MNIST epoch with a checkpoint after it and a log of each 50th
step, and reading the checkpoint back.

python tests/benchmarks/checkpoint.py
"""

import argparse
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
from _measure import interleaved, table
from fit_epoch import BATCH, optimizer_of

from eqx_mlp import MLP, Callback, Checkpoints, data, fit, init_state, load, losses


class Clock(Callback):
    """Notes when each epoch ends; what follows it counts for the next."""

    def __init__(self):
        self.times = []

    def on_epoch(self, state, history):
        self.times.append(time.perf_counter())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=9)
    args = parser.parse_args()
    x, y = map(jnp.asarray, data.mnist().train)
    optimizer = optimizer_of(4690)
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))

    def epoch(checkpointed):
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            fit(
                model,
                (x, y),
                loss=losses.cross_entropy,
                optimizer=optimizer,
                key=jax.random.key(1),
                epochs=args.epochs,
                batch_size=BATCH,
                transform=data.image_to_vector,
                callbacks=[clock],
                checkpoint=Checkpoints(folder) if checkpointed else None,
                logger=f"{folder}/log.jsonl" if checkpointed else None,
                progress=False,
            )
            if checkpointed:
                state = init_state(model, optimizer, key=jax.random.key(1))
                for name, like in (("model", None), ("state", state)):
                    started = time.perf_counter()
                    load(folder, like=like)
                    restored[name].append(time.perf_counter() - started)
        # The first epoch has no checkpoint before it. A median, since others use the
        # machine too.
        return statistics.median(np.diff(clock.times))

    restored = {"model": [], "state": []}
    seconds = interleaved(
        args.rounds,
        **{
            "an epoch": lambda: epoch(False),
            "with a checkpoint and a log": lambda: epoch(True),
        },
    )
    table(seconds, "an epoch")
    for name, values in restored.items():
        middle = 1e3 * statistics.median(values)
        print(f"load, {name:22}{middle:8.1f}ms, first {1e3 * values[0]:.1f}ms")


if __name__ == "__main__":
    main()
