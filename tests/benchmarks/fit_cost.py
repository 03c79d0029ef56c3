"""What `fit` costs beside its steps: host time, memory, imports, the first epoch.

python tests/benchmarks/fit_cost.py
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from fit_epoch import BATCH, epoch_by_hand, optimizer_of

from eqx_mlp import MLP, data, fit, losses
from eqx_mlp.train import _loop

IMPORT = """
import time
started = time.perf_counter()
import jax, equinox, optax
others = time.perf_counter()
import eqx_mlp
print(others - started, time.perf_counter() - others)
"""

# The program whose first epoch and whose peak memory are measured.
PROGRAM = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fit_cost
getattr(fit_cost, sys.argv[1])()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def with_fit(epochs=2):
    return fit(
        MLP(784, 10, (256, 128), key=jax.random.key(0)),
        data.mnist().train,
        loss=losses.cross_entropy,
        optimizer=optimizer_of(4690),
        key=jax.random.key(1),
        epochs=epochs,
        batch_size=BATCH,
        transform=data.image_to_vector,
        progress=False,
    )


def one_epoch():
    with_fit(epochs=1)


def by_hand():
    epoch = epoch_by_hand(optimizer_of(4690), *map(jnp.asarray, data.mnist().train))
    for _ in range(2):
        epoch()


def data_alone():
    list(map(jnp.asarray, data.mnist().train))


def run(*arguments, **environment):
    environment = {k: v for k, v in os.environ.items() if "BYTECODE" not in k} | (
        environment
    )
    out = subprocess.run(
        [sys.executable, "-c", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(number) for number in out.stdout.split()]


def host_microseconds_per_step():
    """Time of ten epochs after compilation that is not spent in compiled code.

    It is what lies between the compiled calls, and for each call what a call of no step
    at all takes: dispatch and waiting.
    """
    calls, empty = [], []
    original = _loop.EpochLoop.run

    def timed(self, parts):
        first = next(parts := iter(parts))
        if calls:
            began = time.perf_counter()
            original(self, [first._replace(stop=first.start)])
            empty.append((began, time.perf_counter()))
        began = time.perf_counter()
        step_loss = original(self, itertools.chain([first], parts))
        calls.append((began, time.perf_counter()))
        return step_loss

    _loop.EpochLoop.run = timed
    try:
        result = with_fit(epochs=10)
        finished = time.perf_counter()
    finally:
        _loop.EpochLoop.run = original
    after_compiling = finished - calls[0][1]
    inside = sum(end - start for start, end in calls[1:] + empty)
    between = after_compiling - inside
    dispatch = statistics.median(end - start for start, end in empty)
    steps = len(result.history["step_loss"])
    print(
        f"host time per step outside compiled code: between calls "
        f"{1e6 * between / steps:.1f} us, in {len(calls) - 1} calls "
        f"{1e6 * dispatch * (len(calls) - 1) / steps:.1f} us"
    )


def main():
    run(IMPORT)  # writes the bytecode
    imports = np.array([run(IMPORT) for _ in range(9)])
    others, own = np.median(imports, axis=0) * 1e3
    print(f"import jax, equinox and optax       {others:8.0f} ms")
    print(f"import eqx_mlp after them           {own:8.0f} ms")

    for _ in range(3):
        host_microseconds_per_step()

    with tempfile.TemporaryDirectory() as cache:
        for name, environment in (
            ("process start to the end of the first epoch", {}),
            ("the same, filling the compilation cache", {"write": cache}),
            ("the same, from the compilation cache", {"read": cache}),
        ):
            if environment:
                environment = {
                    "JAX_COMPILATION_CACHE_DIR": cache,
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                }
            started = time.perf_counter()
            run(PROGRAM, "one_epoch", **environment)
            print(f"{name:44}{time.perf_counter() - started:6.1f} s")

    peaks = {}
    for name in ("data_alone", "by_hand", "with_fit"):
        peaks[name] = statistics.median(run(PROGRAM, name)[-1] for _ in range(3))
        print(f"peak resident memory, {name:12}{peaks[name]:8.0f} MiB")
    ratio = peaks["with_fit"] / peaks["by_hand"]
    print(f"ratio of with_fit to by_hand        {ratio:.3f}")


if __name__ == "__main__":
    main()
