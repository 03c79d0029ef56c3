"""A small run and some steps by hand, for the tests to start in another process.

python checkpointed.py fit FOLDER EVERY     a run of `fit`, to be killed
python checkpointed.py steps FOLDER TO      go on from a saved state, save into TO
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqx_mlp import (
    MLP,
    Callback,
    Checkpoints,
    fit,
    init_state,
    load,
    losses,
    make_step,
    metrics,
    save,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(22, 6)).astype(np.float32)
Y = np.arange(22, dtype=np.int32) % 3
ADAM = optax.adam(1e-2)
METRICS = {"accuracy": metrics.accuracy, "confusion": metrics.confusion_matrix}


class Average(Callback):
    """An average of the first layer, to have a callback with a state."""

    def on_start(self, state, history):
        self.average, self.epochs = None, 0

    def on_epoch(self, state, history):
        weight = np.array(state.model.layers[0].weight)
        self.average = weight if self.average is None else (self.average + weight) / 2
        self.epochs += 1

    def save_state(self):
        return {"average": self.average, "counts": (self.epochs,)}

    def load_state(self, saved, state):
        assert saved["average"] is None or saved["average"].shape == (5, 6)
        self.average, (self.epochs,) = saved["average"], saved["counts"]


def model_of():
    return MLP(6, 3, (5,), dropout_rate=0.5, key=jax.random.key(3))


def run(checkpoint=None, model=None, **changed):
    options = {
        "loss": losses.cross_entropy,
        "optimizer": ADAM,
        "key": jax.random.key(5),
        "epochs": 3,
        "batch_size": 4,
        "validation": (X[:7], Y[:7]),
        "metrics": METRICS,
        "progress": False,
    } | changed
    model = model_of() if model is None else model
    return fit(model, (X, Y), checkpoint=checkpoint, **options)


class Odd(eqx.Module):
    """Leaves of every awkward kind around a network in bfloat16."""

    network: MLP
    one: jax.Array
    scalar: jax.Array
    keys: jax.Array
    none: jax.Array
    flag: jax.Array
    stored: np.ndarray

    def __call__(self, x, key):
        x = self.network(x.astype(jnp.bfloat16), key=key).astype(jnp.float32)
        return x * self.scalar + self.one[0]


def odd_state():
    key = jax.random.key(0)
    model = Odd(
        MLP(6, 3, (5,), dropout_rate=0.5, dtype=jnp.bfloat16, key=key),
        jnp.ones((1, 1)),
        jnp.array(2.0),
        jax.random.split(jax.random.key(1, impl="unsafe_rbg"), 2),
        jnp.zeros((0, 3), jnp.int8),
        jnp.array(True),
        np.arange(3, dtype=np.int16),
    )
    return init_state(model, ODD_OPTIMIZER, key=jax.random.key(2, impl="rbg"))


ODD_OPTIMIZER = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)


odd_step = eqx.filter_jit(make_step(losses.cross_entropy, ODD_OPTIMIZER))


def odd_steps(state, n=3):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for _ in range(n):
            state, _ = odd_step(state, (jnp.asarray(X[:8]), jnp.asarray(Y[:8])))
    return state


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fit", folder, every]:
            # As long as the kills take it; each update is a checkpoint's write.
            run(Checkpoints(folder, every=int(every)), callbacks=[Average()])
        case ["steps", folder, to]:
            save(to, odd_steps(load(folder, like=odd_state())))
