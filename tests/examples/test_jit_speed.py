"""The speed example compares like with like, and knows when compiling has paid."""

import importlib
import pathlib

import jax
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    # The example imports its neighbour; it runs under JAX's default promotion.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        module = importlib.import_module("jit_speed")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield module


@pytest.fixture(scope="module")
def setting(example):
    return example.make_setting(3, (784, 5, 10), 4)


def agree(functions):
    (one, other) = (jax.tree.leaves(function()) for function in functions.values())
    one, other = (
        np.concatenate([np.ravel(x) for x in leaves]) for leaves in (one, other)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert one.size > 1


def test_vmap_gives_what_the_loop_over_examples_gives(example, setting):
    agree(example.over_examples(example.loss_of_one, setting))


def test_scan_gives_what_the_loop_over_steps_gives(example, setting):
    agree(example.over_steps(setting))


@pytest.mark.parametrize(
    ("without", "compiled", "steps"),
    [
        ([3, 2, 2, 2], [5, 1, 1, 1], 3),  # 3 5 7 against 5 6 7
        ([9, 2], [5, 1], 1),
        ([2, 2, 2, 2], [15, 1, 1, 1], 14),  # 28 against 15 + 13
        ([1, 1, 1, 1], [9, 1, 1, 1], None),
    ],
)
def test_compiling_has_paid_when_the_totals_meet(example, without, compiled, steps):
    assert example.crossover(np.array(without), np.array(compiled)) == steps


def test_times_are_shown_in_a_fitting_unit(example):
    assert example.shown([2e-6, 1e-6, 4e-6]) == "2 us [1 to 4]"
    assert example.shown([0.0125]) == "12.5 ms [12.5 to 12.5]"
    assert example.shown([1.5]) == "1.5 s [1.5 to 1.5]"
