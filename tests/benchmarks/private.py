"""A DP-SGD epoch of MNIST against the ordinary epoch at the same batch.

    python tests/benchmarks/private.py

784-256-128-10, Adam, an expected batch of 256. Noise is part of the private epoch; the
draws of its batches on the host, some 4 ms, and accounting are not.
"""

import argparse
import functools

import jax.numpy as jnp
import optax
from _measure import interleaved, table
from fit_epoch import epoch_by_fit

from eqx_mlp import clipped_grad, data
from eqx_mlp.privacy import DPSGD

BATCH = 256


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    x, y = map(jnp.asarray, data.mnist().train)
    given = (optax.adam(1e-3), x, y)
    clipped = functools.partial(clipped_grad, l2_clip_norm=1.0, normalize_by=BATCH)
    runs = {
        "ordinary": epoch_by_fit(*given, batch_size=BATCH),
        "clipped, no noise": epoch_by_fit(*given, batch_size=BATCH, gradient=clipped),
    }
    for sampling in ("poisson", "shuffled"):
        private = DPSGD(
            l2_clip_norm=1.0,
            noise_multiplier=1.1,
            expected_batch_size=BATCH,
            dataset_size=len(x),
            delta=1e-5,
            sampling=sampling,
            accountant="rdp",
        )
        runs[f"DP-SGD, {sampling}"] = epoch_by_fit(
            *given, batch_size=BATCH, gradient=private
        )
    table(interleaved(args.rounds, **runs), "ordinary")


if __name__ == "__main__":
    main()
