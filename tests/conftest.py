"""Two CPU devices, strict promotion of dtypes and ranks, in every test."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def mnist():
    from eqx_mlp import data

    return data.mnist()
