"""Two CPU devices, strict promotion of dtypes and ranks, in every test."""

import os
import random

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# Programs here run once or twice: compile them fast rather than to run fast.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def getkey(request):
    """A new random key at each call; the seed is printed when the test fails."""
    seed = random.Random(request.node.nodeid).randint(0, 2**31 - 1)
    print(f"getkey's seed: {seed}")
    key = jax.random.key(seed)

    def get():
        nonlocal key
        key, out = jax.random.split(key)
        return out

    return get


@pytest.fixture(scope="session")
def mnist():
    from eqx_mlp import data

    return data.mnist()
