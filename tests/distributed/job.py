"""A run of several processes, for the tests to start.

python job.py PROCESS PROCESSES PORT FOLDER CASE
"""

import os
import pathlib
import sys

NUMBER, PROCESSES = int(sys.argv[1]), int(sys.argv[2])
FOLDER, CASE = pathlib.Path(sys.argv[4]), sys.argv[5]
os.environ["JAX_NUM_CPU_DEVICES"] = str(4 // PROCESSES)
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import signal

import equinox as eqx
import jax
import numpy as np
from cases import OPTIONS, X, Y, flat, model_of, trained

from eqx_mlp import (
    Callback,
    Checkpoints,
    StreamError,
    distributed,
    evaluate,
    fit,
    losses,
    make_mesh,
    per_example_grad_norm,
    predict,
    save,
    shard,
)
from eqx_mlp.distributed._layout import Layout, fetched
from eqx_mlp.train import _stream


def train(**options):
    return trained(0, mesh=make_mesh(), **options)


class KillAt20(Callback):
    def on_call(self, state, call):
        if NUMBER == 1 and call.step + len(call.step_loss) >= 20:
            os.kill(os.getpid(), signal.SIGKILL)


def here(tree):
    """The numbers of a tree in one vector, also those that other processes hold."""
    return flat(Layout(make_mesh()).local(tree))


def mapped():
    """A run on arrays in files, and how many rows this process has read at a time."""
    arrays = []
    for name, array in (("x", X), ("y", Y)):
        path = FOLDER / f"{name}{NUMBER}.dat"
        array.tofile(path)
        arrays.append(np.memmap(path, array.dtype, "r", shape=array.shape))
    read, on_device = set(), _stream.StreamFeed._on_device

    def spy(self, batch):
        read.add(batch.size)
        return on_device(self, batch)

    _stream.StreamFeed._on_device = spy
    options = OPTIONS | {"key": jax.random.key(5), "mesh": make_mesh()}
    run = fit(model_of(), tuple(arrays), **options)
    return here(run.state), sorted(read)


def uneven():
    """Batches of this process's part: process 0 has 20 rows, process 1 has 10."""
    start, stop = ((0, 20), (20, 30))[NUMBER]
    at = range(start, stop, 4)
    return [(X[i : min(i + 4, stop)], Y[i : min(i + 4, stop)]) for i in at]


def breaking():
    yield X[:4], Y[:4]
    if NUMBER == 1:
        raise OSError("the disk is gone")
    yield X[:4], Y[:4]


def whole():
    """All that two processes do together, by few programs."""
    out = {}
    # The run that was killed goes on, one of a single process goes on, and one is left
    # alone.
    for name in ("killed", "one", "alone"):
        keep, log = Checkpoints(FOLDER / name, every=5), FOLDER / f"{name}.jsonl"
        run = train(checkpoint=keep, logger=log, log_every=1)
        out[name] = here(run.state)
    out["mapped"], out["read"] = mapped()
    streams = OPTIONS | {"batch_size": None, "mesh": make_mesh(), "epochs": 2}
    streams["key"] = jax.random.key(5)
    out["stream"] = here(fit(model_of(), uneven(), **streams).state)
    mesh, half = make_mesh(), slice(6 * NUMBER, 6 * NUMBER + 6)
    batch = shard((X[half], Y[half]), mesh)
    of = eqx.filter_jit(per_example_grad_norm(losses.cross_entropy, mesh=mesh))
    norms = of(shard(model_of(), mesh), *batch.example, key=jax.random.key(1))
    out["norms"] = fetched(norms)
    of = {"loss": losses.cross_entropy}
    out["loss"] = evaluate(run.model, (X, Y), metrics=of, mesh=mesh)["loss"]
    out["predicted"] = predict(run.model, X, mesh=mesh)
    try:
        fit(model_of(), breaking(), **streams | {"steps": 2, "epochs": 1})
    except StreamError as error:
        out["error"] = str(error)
    return out


if __name__ == "__main__":
    distributed.initialize(f"localhost:{sys.argv[3]}", PROCESSES, NUMBER, timeout=10)
    match CASE:
        case "killed":
            keep = Checkpoints(FOLDER / "killed", every=5)
            train(checkpoint=keep, callbacks=[KillAt20()])
        case "cut":
            keep = Checkpoints(FOLDER / "cut", every=5)
            run = train(checkpoint=keep, shard_parameters=True, epochs=1)
            save(FOLDER / "saved", run.model)
            np.savez(FOLDER / f"cut{NUMBER}.npz", state=here(run.state))
        case "whole":
            np.savez(FOLDER / f"whole{NUMBER}.npz", **whole())
