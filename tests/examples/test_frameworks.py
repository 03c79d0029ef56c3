"""The programs of examples/frameworks train the same network, step for step."""

import importlib
import pathlib
import sys

import jax
import numpy as np
import pytest

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # before jax 0.8
    from jax.experimental import enable_x64

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "frameworks"
STEPS = 100


@pytest.fixture(scope="module")
def losses_of():
    """The losses of a program's first steps, in float64.

    In float32 the curves part where a pre-activation lies within a rounding of the
    ReLU's kink: Adam takes as large a step for the smallest gradient as for any.
    """
    before = {*sys.modules}
    sys.path.insert(0, str(FOLDER))

    def losses(name):
        # The programs run as users run them, under JAX's default promotion.
        with (
            enable_x64(True),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            problem = importlib.import_module("problem").make(0, STEPS, np.float64)
            run = importlib.import_module(name).train(problem, epochs=1)
        assert run.losses.shape == (STEPS,)
        return run.losses

    yield losses
    sys.path.remove(str(FOLDER))
    for name in {*sys.modules} - before:
        if name == "problem" or name.startswith("in_"):
            del sys.modules[name]


@pytest.fixture(scope="module")
def pure_jax(losses_of):
    return losses_of("in_pure_jax")


def test_pure_jax_and_eqx_mlp_have_the_same_losses(losses_of, pure_jax):
    assert pure_jax[-1] < 0.2 * pure_jax[0]
    np.testing.assert_allclose(losses_of("in_eqx_mlp"), pure_jax, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("program", "needs"),
    [("in_pytorch", "torch"), ("in_flax_linen", "flax"), ("in_flax_nnx", "flax")],
)
def test_another_framework_has_the_same_losses(losses_of, pure_jax, program, needs):
    pytest.importorskip(needs)
    np.testing.assert_allclose(losses_of(program), pure_jax, rtol=0, atol=1e-4)
