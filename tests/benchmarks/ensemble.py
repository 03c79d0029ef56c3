"""An ensemble on MNIST against its members trained in turn, one epoch of `fit` each.

python tests/benchmarks/ensemble.py --members 8 --rounds 5
"""

import argparse

import jax
import optax
from _measure import interleaved, table

from eqx_mlp import MLP, Ensemble, data, fit, losses

BATCH = 128
OPTIMIZER = optax.adam(1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    x, y = data.mnist().train
    keys = jax.random.split(jax.random.key(0), arguments.members)

    for sizes in ((32,), (128,), (256, 128)):
        models = [MLP(784, 10, sizes, key=key) for key in keys]

        def epoch(model):
            result = fit(
                model,
                (x, y),
                loss=losses.cross_entropy,
                optimizer=OPTIMIZER,
                key=jax.random.key(1),
                epochs=1,
                batch_size=BATCH,
                transform=data.image_to_vector,
                progress=False,
            )
            return float(result.history["seconds"][0])

        def together(models=models, epoch=epoch):
            return epoch(Ensemble(models))

        def in_turn(models=models, epoch=epoch):
            return sum(epoch(model) for model in models)

        print("-".join(map(str, (784, *sizes, 10))), "members:", len(models))
        table(
            interleaved(arguments.rounds, together=together, in_turn=in_turn), "in_turn"
        )


if __name__ == "__main__":
    main()
