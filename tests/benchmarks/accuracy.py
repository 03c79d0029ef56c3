"""Test accuracy of the MNIST example's settings for three seeds.

python tests/benchmarks/accuracy.py
"""

import jax
from fit_epoch import BATCH, optimizer_of

from eqx_mlp import MLP, data, fit, losses, metrics


def main():
    train, test = data.mnist()
    optimizer = optimizer_of(4690)
    for seed in range(3):
        model_key, fit_key = jax.random.split(jax.random.key(seed))
        _, history = fit(
            MLP(784, 10, (256, 128), key=model_key),
            train,
            loss=losses.cross_entropy,
            optimizer=optimizer,
            key=fit_key,
            epochs=10,
            batch_size=BATCH,
            transform=data.image_to_vector,
            validation=test,
            metrics={"accuracy": metrics.accuracy},
            progress=False,
        )
        print(
            f"seed {seed}: test accuracy {history['val_accuracy'][-1]:.2%} after 10 "
            f"epochs in {history['seconds'].sum():.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
