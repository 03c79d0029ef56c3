"""The scikit-learn estimator beside scikit-learn's own network.

    python tests/benchmarks/estimators.py [mnist | digits]

`mnist`: 10 epochs of 784-256-128-10, Adam, batch 128, float32, in one process; `fit`
alone, its compilation included. `digits`: a fresh process that loads scikit-learn's
digits, fits with the parameters as they are and scores; for ours with JAX's compilation
cache filled before.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings

from _measure import interleaved, table

DIGITS = """
import sys, warnings
import numpy as np
from sklearn.datasets import load_digits
from {module} import MLPClassifier

warnings.simplefilter("ignore")
X, y = load_digits(return_X_y=True)
X = (X / 16).astype("{dtype}")
fitted = MLPClassifier(random_state=0).fit(X[:1500], y[:1500])
print(fitted.n_iter_, fitted.score(X[1500:], y[1500:]))
"""
MODULES = {
    "eqx_mlp": "eqx_mlp.interop.sklearn",
    "scikit-learn": "sklearn.neural_network",
}


def mnist(rounds):
    import jax
    from sklearn import neural_network as theirs

    from eqx_mlp import data
    from eqx_mlp.interop import sklearn as ours

    warnings.simplefilter("ignore")  # 10 epochs are not meant to converge
    (x, y), (test_x, test_y) = (
        (x.reshape(len(x), -1).astype("float32") / 255, y) for x, y in data.mnist()
    )
    fitted = {}

    def of(name, library):
        def run():
            jax.clear_caches()  # whoever fits once pays for compiling
            estimator = library.MLPClassifier(
                (256, 128),
                batch_size=128,
                max_iter=10,
                n_iter_no_change=10,
                random_state=0,
            )
            fitted[name] = estimator.fit(x, y)

        return run

    libraries = {"eqx_mlp": ours, "scikit-learn": theirs}
    runs = {name: of(name, library) for name, library in libraries.items()}
    table(interleaved(rounds, **runs), "scikit-learn")
    for name, estimator in fitted.items():
        print(f"{name:28}test accuracy {estimator.score(test_x, test_y):.4f}")


def digits(rounds):
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

        def of(name, dtype):
            code = DIGITS.format(module=MODULES[name], dtype=dtype)

            def run():
                command = [sys.executable, "-c", code]
                subprocess.run(
                    command, check=True, env=environment, capture_output=True
                )

            return run

        for dtype in ("float64", "float32"):
            print(dtype)
            seconds = interleaved(rounds, **{name: of(name, dtype) for name in MODULES})
            table(seconds, "scikit-learn")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("which", nargs="?", choices=["mnist", "digits"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for run in (mnist, digits):
        if args.which in (None, run.__name__):
            run(args.rounds)


if __name__ == "__main__":
    main()
