"""An ensemble on MNIST against its members trained in turn, one epoch of `fit` each.

python tests/benchmarks/ensemble.py --members 8 --rounds 5
"""

import argparse

import jax
import optax
from _measure import interleaved, table
from fit_epoch import epoch_by_fit

from eqx_mlp import MLP, Ensemble, data

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

        together = epoch_by_fit(OPTIMIZER, x, y, Ensemble(models))
        each = [epoch_by_fit(OPTIMIZER, x, y, model) for model in models]

        def in_turn(each=each):
            return sum(run() for run in each)

        print("-".join(map(str, (784, *sizes, 10))), "members:", len(models))
        table(
            interleaved(arguments.rounds, together=together, in_turn=in_turn), "in_turn"
        )


if __name__ == "__main__":
    main()
