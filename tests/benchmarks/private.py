"""A DP-SGD epoch of MNIST against the ordinary epoch at the same batch.

    python tests/benchmarks/private.py

784-256-128-10, Adam, an expected batch of 256. Sampling
and noise are part of the private epoch; accounting comes after it.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from _measure import interleaved, table

from eqx_mlp import MLP, data, fit, losses
from eqx_mlp.privacy import DPSGD

BATCH = 256


def epoch(x, y, **how):
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    optimizer = optax.adam(1e-3)

    def run():
        result = fit(
            model,
            (x, y),
            loss=losses.cross_entropy,
            optimizer=optimizer,
            key=jax.random.key(1),
            epochs=1,
            transform=data.image_to_vector,
            progress=False,
            **how,
        )
        return float(result.history["seconds"][0])

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    x, y = map(jnp.asarray, data.mnist().train)
    private = {
        sampling: DPSGD(
            l2_clip_norm=1.0,
            noise_multiplier=1.1,
            expected_batch_size=BATCH,
            dataset_size=len(x),
            delta=1e-5,
            sampling=sampling,
            accountant="rdp",
        )
        for sampling in ("poisson", "shuffled")
    }
    runs = {f"DP-SGD, {name}": epoch(x, y, gradient=g) for name, g in private.items()}
    runs = {"ordinary": epoch(x, y, batch_size=BATCH)} | runs
    table(interleaved(args.rounds, **runs), "ordinary")


if __name__ == "__main__":
    main()
