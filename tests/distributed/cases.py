"""What the tests compare, computed in a process with eight CPU devices of its own.

python cases.py FOLDER      writes FOLDER/cases.npz: for each case its result on a mesh
                            of so many devices, "0" for none
"""

import os
import pathlib
import sys

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqx_mlp import (
    MLP,
    clipped_grad,
    evaluate,
    fit,
    losses,
    make_mesh,
    mean_grad,
    metrics,
    per_example_grad_norm,
    predict,
)
from eqx_mlp.train import _loop

# Device counts of the float64 runs.
FLOAT64 = (1, 2, 4, 8, 3) if "EQX_MLP_LONG_TESTS" in os.environ else (8, 3)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(76, 6)).astype(np.float32)
Y = (np.arange(76) % 3).astype(np.int32)
ADAM = optax.adam(1e-2)
OPTIONS = {
    "loss": losses.cross_entropy,
    "optimizer": ADAM,
    "epochs": 5,
    "batch_size": 8,
    "progress": False,
}


def model_of(dtype=None, dropout_rate=0.5):
    sizes = (16,)
    key = jax.random.key(3)
    return MLP(6, 3, sizes, dropout_rate=dropout_rate, dtype=dtype, key=key)


def mesh_of(devices, **options):
    return make_mesh(jax.devices()[:devices], **options) if devices else None


def flat(tree):
    """The numbers of a tree in one vector."""
    arrays = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.asarray(x).ravel() for x in arrays])


def trained(devices, dtype=np.float32, data=(X, Y), **options):
    """A run of 50 steps, where each epoch's last batch holds fewer examples."""
    data = (data[0].astype(dtype), data[1])
    options = OPTIONS | {"mesh": mesh_of(devices)} | options
    return fit(model_of(dtype), data, key=jax.random.key(5), **options)


def drawn(w, i, *, key):
    """The loss tells which example came with which key."""
    return w * 0 + i * jax.random.uniform(key)


def draws(devices):
    rows = np.arange(30, dtype=np.float32)
    options = OPTIONS | {"loss": drawn, "optimizer": optax.sgd(0.1), "epochs": 2}
    mesh = mesh_of(devices)
    run = fit(jnp.array(1.0), (rows,), key=jax.random.key(7), mesh=mesh, **options)
    return run.history["step_loss"]


def per_example(devices, **options):
    """Norms and clipped sum of 30 rows, of which two do not count."""
    mesh = mesh_of(devices)
    weight = np.ones(30, np.float32)
    weight[[3, 11]] = 0
    x = X[:30].copy()
    x[3] = np.nan
    norm_of = per_example_grad_norm(losses.cross_entropy, mesh=mesh, **options)
    clip = 0.5
    clipped = clipped_grad(
        losses.cross_entropy, l2_clip_norm=clip, mesh=mesh, **options
    )
    arguments = {"key": jax.random.key(1), "weight": weight}

    @eqx.filter_jit
    def both(model, x, y):
        return norm_of(model, x, y, **arguments), clipped(model, x, y, **arguments)

    norms, (grads, stats) = both(model_of(), x, Y[:30])
    np.testing.assert_array_equal(np.asarray(norms), np.asarray(stats.grad_norm))
    return np.asarray(norms), flat(grads)


def in_chunks(devices):
    gradient = mean_grad(losses.cross_entropy, chunk_size=7, mesh=mesh_of(devices))
    of_batch = eqx.filter_jit(gradient)
    grads, stats = of_batch(model_of(), X[:30], Y[:30], key=jax.random.key(1))
    return np.concatenate([flat(grads), np.asarray(stats.value)])


class Compiled(Exception):
    """The optimised program of a run's steps, in place of the run."""


def compiled_step(devices, **options):
    run_steps = _loop._run_steps

    def compile_only(*arguments):
        raise Compiled(run_steps.lower(*arguments).compile().as_text())

    _loop._run_steps = compile_only
    try:
        trained(devices, **options)
    except Compiled as compiled:
        return str(compiled)
    finally:
        _loop._run_steps = run_steps


def share(state):
    """Bytes of the arrays, of the part of one device, and of what is not cut."""
    state = eqx.tree_at(lambda s: s.key, state, None)
    arrays = jax.tree.leaves(eqx.filter(state, eqx.is_array))
    parts = [max(s.data.nbytes for s in x.addressable_shards) for x in arrays]
    whole = [
        x.nbytes for x, part in zip(arrays, parts, strict=True) if x.nbytes == part
    ]
    return [sum(x.nbytes for x in arrays), sum(parts), sum(whole)]


def main(folder):
    out = {}
    for n in (0, 1, 2, 4, 8, 3):
        run = trained(n)
        out[f"float32/{n}"] = flat(run.model)
        out[f"step_loss/{n}"] = run.history["step_loss"]
    before = _loop._run_steps._cache_size()
    again = trained(8)
    out["bitwise"] = np.array_equal(flat(again.model), out["float32/8"])
    out["compiled_again"] = _loop._run_steps._cache_size() - before
    for n in (0, 3, 8):
        out[f"draws/{n}"] = draws(n)
    for n in (1, 2, 8):
        out[f"norms/{n}"], out[f"clipped/{n}"] = per_example(n)
    out["norms/vmap"], out["clipped/vmap"] = per_example(0, method="vmap")
    for n in (0, 3):
        out[f"mean/{n}"] = in_chunks(n)
    model, data = run.model, (X, Y)
    of = {"loss": losses.cross_entropy, "confusion": metrics.confusion_matrix}
    for n in (0, 3):
        values = evaluate(model, data, metrics=of, batch_size=10, mesh=mesh_of(n))
        out[f"evaluated/{n}"] = values["loss"], *values["confusion"].ravel()
        out[f"predicted/{n}"] = predict(model, X, batch_size=10, mesh=mesh_of(n))
    cut = trained(8, shard_parameters=True)
    out["float32/cut"], out["share"] = flat(cut.model), share(cut.state)
    halves = trained(8, mesh=mesh_of(8, fsdp=2), shard_parameters=True)
    out["float32/halves"], out["share/halves"] = flat(halves.model), share(halves.state)
    text = compiled_step(8, batch_size=8, data=(X[:72], Y[:72]))
    (folder / "plain.hlo").write_text(text)
    (folder / "ragged.hlo").write_text(compiled_step(8))
    jax.config.update("jax_enable_x64", True)
    for n in (0, *FLOAT64):
        out[f"float64/{n}"] = flat(trained(n, np.float64).model)
    np.savez(folder / "cases.npz", **out)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
