"""Two CPU devices, strict promotion of dtypes and ranks, in every test."""

import atexit
import os
import random
import shutil
import tempfile

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")
# Programs here run once or twice: compile them fast rather than to run fast.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# What one test has compiled serves the others, also in other processes.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    compiled = tempfile.mkdtemp(prefix="eqx_mlp")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

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
