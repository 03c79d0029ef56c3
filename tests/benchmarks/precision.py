"""An epoch of `fit` on MNIST in float32 against `mixed_precision` in bfloat16.

python tests/benchmarks/precision.py --rounds 5
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from _measure import interleaved, table

from eqx_mlp import MLP, data, fit, losses, mixed_precision

OPTIMIZER = optax.adam(1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    x, y = data.mnist().train
    half = mixed_precision(losses.cross_entropy, jnp.bfloat16)
    for sizes, batch_size in (((256, 128), 128), ((1024, 1024), 512)):
        model = MLP(784, 10, sizes, key=jax.random.key(0))

        def epoch(loss, model=model, batch_size=batch_size):
            result = fit(
                model,
                (x, y),
                loss=loss,
                optimizer=OPTIMIZER,
                key=jax.random.key(1),
                epochs=1,
                batch_size=batch_size,
                transform=data.image_to_vector,
                progress=False,
            )
            return float(result.history["seconds"][0])

        print("-".join(map(str, (784, *sizes, 10))), "batch:", batch_size)
        table(
            interleaved(
                arguments.rounds,
                float32=lambda epoch=epoch: epoch(losses.cross_entropy),
                bfloat16=lambda epoch=epoch: epoch(half),
            ),
            "float32",
        )


if __name__ == "__main__":
    main()
