"""What a mesh costs: on one device, in bytes between eight, and as projected for more.

    python tests/benchmarks/mesh.py

The first table is an MNIST epoch of `fit` on a mesh of one device against one without a
mesh. The second compares the bytes that the compiled step sends with those that an
all-reduce must. The last is a model, not a measurement: two cores show no speed-up.
"""

import argparse
import math
import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _collectives import collectives
from _measure import interleaved, table
from fit_epoch import epoch_by_fit, optimizer_of

from eqx_mlp import MLP, data, init_state, losses, make_mesh, make_step, shard

LINK = 50e9  # bytes a second that each device sends
LATENCY = 5e-6  # seconds a message
COMPUTE = 100e12  # floating-point operations a second of each device


def step_bytes(devices, batch=1024):
    """The collectives of a step on so many devices, and the parameters' bytes."""
    mesh = make_mesh(jax.devices()[:devices])
    model = MLP(784, 10, (256, 128), key=jax.random.key(0))
    optimizer = optax.adam(1e-3)
    state = shard(init_state(model, optimizer, key=jax.random.key(1)), mesh)
    x, y = np.zeros((batch, 784), np.float32), np.zeros(batch, np.int32)
    step = eqx.filter_jit(make_step(losses.cross_entropy, optimizer))
    text = step.lower(state, shard((x, y), mesh)).compile().compiled.as_text()
    params = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    return collectives(text), sum(p.nbytes for p in params)


def projected(params, batch, devices):
    """Seconds of a step of `batch` examples: computing, sending, waiting."""
    compute = 6 * params * batch / (devices * COMPUTE)
    link = 2 * (devices - 1) / devices * 4 * params / LINK
    return compute, link, 2 * math.ceil(math.log2(devices)) * LATENCY


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    if args.rounds:
        x, y = map(jnp.asarray, data.mnist().train)
        given = (optimizer_of(4690), x, y)
        mesh = make_mesh(jax.devices()[:1])
        seconds = interleaved(
            args.rounds,
            **{
                "fit": epoch_by_fit(*given),
                "fit, mesh of one device": epoch_by_fit(*given, mesh=mesh),
            },
        )
        table(seconds, "fit")

    print("\ndevices   collectives of a step              sent a device   in theory")
    for devices in (2, 4, 8):
        found, size = step_bytes(devices)
        share = 2 * (devices - 1) / devices
        sent = share * sum(n for kind, n in found if kind == "all-reduce")
        listed = ", ".join(f"{kind} of {n:,} bytes" for kind, n in found)
        print(f"{devices:7}   {listed:34} {sent:13,.0f} {share * size:11,.0f}")

    print("\nparameters    batch   devices    compute       link    latency       step")
    for params, batch in ((235_146, 8_192), (100_000_000, 65_536)):
        for devices in (1, 8, 64, 2_048):
            times = projected(params, batch, devices)
            shown = "".join(f"{t * 1e3:9.3f}ms" for t in (*times, sum(times)))
            print(f"{params:11,}{batch:9,}{devices:10,}{shown}")


if __name__ == "__main__":
    main()
