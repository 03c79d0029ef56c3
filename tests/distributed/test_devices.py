"""On any number of devices a run and its per-example gradients are those of one.

Eight devices need a process of their own: `cases.py` computes, and this compares.
"""

import os
import re

import jax
import numpy as np
import optax
import pytest

from eqx_mlp import (
    evaluate,
    fit,
    make_mesh,
    predict,
    shard,
)
from eqx_mlp.data import Batch, epoch_permutation

FLOAT64 = (1, 2, 4, 8, 3) if "EQX_MLP_LONG_TESTS" in os.environ else (8, 3)


@pytest.fixture(scope="module")
def cases(cases_folder):
    return dict(np.load(cases_folder / "cases.npz"))


@pytest.mark.parametrize("devices", [1, 2, 4, 8, 3, "cut", "halves"])
def test_fifty_steps_end_in_float32_where_one_device_ends(cases, devices):
    wanted = cases["float32/0"]
    assert np.std(wanted) > 0.1
    np.testing.assert_allclose(
        cases[f"float32/{devices}"], wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("devices", FLOAT64)
def test_fifty_steps_end_in_float64_where_one_device_ends(cases, devices):
    wanted = cases["float64/0"]
    assert wanted.dtype == np.float64
    np.testing.assert_allclose(
        cases[f"float64/{devices}"],
        wanted,
        rtol=1e-12,
        atol=1e-12 * np.abs(wanted).max(),
    )


def test_the_same_run_on_the_same_devices_is_the_same_bit_for_bit(cases):
    assert cases["bitwise"]
    assert cases["compiled_again"] == 0


def draws_by_hand(rows=30, batch_size=8, epochs=2):
    """The mean of i * u_i, with u_i drawn by the example at that place of the batch."""
    key, means, step = jax.random.key(7), [], 0
    for epoch in range(epochs):
        order = epoch_permutation(key, epoch, rows)
        for start in range(0, rows, batch_size):
            own = jax.random.fold_in(key, step)
            u = [
                jax.random.uniform(jax.random.fold_in(own, place))
                for place in range(len(order[start : start + batch_size]))
            ]
            means.append(np.mean(order[start : start + batch_size] * np.asarray(u)))
            step += 1
    return means


@pytest.mark.parametrize("devices", [0, 3, 8])
def test_each_example_draws_what_its_place_says_on_any_number_of_devices(
    cases, devices
):
    np.testing.assert_allclose(cases[f"draws/{devices}"], draws_by_hand(), rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_norms_and_clipped_sums_are_those_of_vmap_in_order(cases, devices):
    for name in ("norms", "clipped"):
        wanted = cases[f"{name}/vmap"]
        np.testing.assert_allclose(
            cases[f"{name}/{devices}"], wanted, rtol=1e-6, atol=1e-6 * wanted.max()
        )
    assert np.flatnonzero(cases["norms/vmap"] == 0).tolist() == [3, 11]


def test_chunks_take_as_many_rows_of_each_device_and_change_nothing(cases):
    np.testing.assert_allclose(cases["mean/3"], cases["mean/0"], rtol=1e-5, atol=1e-6)


def test_metrics_and_predictions_are_those_of_one_device(cases):
    np.testing.assert_allclose(cases["evaluated/3"], cases["evaluated/0"], rtol=1e-6)
    assert cases["predicted/3"].shape == (76, 3)
    np.testing.assert_allclose(
        cases["predicted/3"], cases["predicted/0"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("name", "parts"), [("share", 8), ("share/halves", 2)])
def test_of_a_fully_sharded_state_each_device_has_its_part(cases, name, parts):
    whole, part, uncut = cases[name]
    assert part <= (whole - uncut) / parts + uncut
    # The step, Adam's count, and the bias of three outputs with its two moments.
    assert uncut <= 4 + 4 + 3 * 3 * 4


COLLECTIVE = re.compile(
    r"= (?P<shape>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|all-to-all|"
    r"reduce-scatter|collective-permute)(-start)?\("
)


def collectives(path):
    """The kinds of a program's collectives, and how many numbers each moves."""
    found = []
    for match in COLLECTIVE.finditer(path.read_text()):
        shapes = re.findall(r"\w+\[([\d,]*)\]", match["shape"])
        sizes = [
            np.prod([int(n) for n in s.split(",") if n], dtype=int) for s in shapes
        ]
        found.append((match["kind"], int(sum(sizes))))
    return found


def test_a_step_holds_one_all_reduce_and_gathers_nothing(cases_folder, cases):
    # All gradients and the sum of the losses.
    numbers = cases["float32/0"].size + 1
    assert collectives(cases_folder / "plain.hlo") == [("all-reduce", numbers)]


def test_padding_gathers_no_batch(cases_folder):
    batch = 8 * 6
    for kind, numbers in collectives(cases_folder / "ragged.hlo"):
        assert kind == "all-reduce" or (kind, numbers) == ("all-gather", 8)
        assert numbers != batch


def test_a_batch_is_filled_up_and_spread():
    mesh = make_mesh()
    rows = np.arange(3.0, dtype=np.float32)
    batch = shard((rows, {"y": rows.astype(int)}), mesh)
    assert batch.weight.tolist() == [1, 1, 1, 0]
    assert [s.data.tolist() for s in batch.example[0].addressable_shards] == [
        [0, 1],
        [2, 0],
    ]
    own = shard(Batch((rows[:2],), np.array([0.5, 2], np.float32)), mesh)
    assert own.weight.tolist() == [0.5, 2]
    assert shard((rows[:2],), mesh).weight is None


def test_a_model_is_on_all_devices_or_cut_over_them():
    mesh = make_mesh()
    model = {"w": np.ones((3, 4), np.float32), "b": np.ones(3), "f": jax.nn.relu}
    everywhere = shard(model, mesh)
    assert everywhere["w"].sharding.is_fully_replicated
    assert everywhere["f"] is jax.nn.relu
    cut = shard(model, mesh, shard_parameters=True)
    assert cut["w"].addressable_shards[0].data.shape == (3, 2)
    assert cut["b"].sharding.is_fully_replicated


def test_axes_that_are_in_each_arrays_type_do_no_harm():
    explicit = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=explicit)
    x = np.arange(4.0, dtype=np.float32)
    options = dict(loss=lambda w, x: (w - x) ** 2, optimizer=optax.sgd(0.1))
    run = fit(
        jax.numpy.array(0.0),
        (x,),
        key=jax.random.key(0),
        epochs=1,
        batch_size=4,
        mesh=mesh,
        **options,
    )
    np.testing.assert_allclose(run.model, 0.1 * 2 * x.mean(), rtol=1e-6)


class TestBadInput:
    def test_no_mesh(self):
        for call in (
            lambda: evaluate(0, (np.ones(3),), metrics={}, mesh=8),
            lambda: predict(0, np.ones(3), mesh=8),
            lambda: shard(0, 8),
            lambda: fit(0, (np.ones(3),), mesh=8),
        ):
            with pytest.raises(
                ValueError, match=r"must be a .*Mesh, such as make_mesh"
            ):
                call()
        with pytest.raises(
            ValueError, match=r"shard: mesh must be a .*Mesh: give make"
        ):
            shard(0, None)

    def test_parameters_are_cut_over_a_mesh(self):
        with pytest.raises(ValueError, match=r"shard_parameters=True .* give mesh="):
            fit(0, (np.ones(3),), shard_parameters=True)

    @pytest.mark.parametrize("fsdp", [0, 3, True, 1.0])
    def test_the_second_axis_divides_the_devices(self, fsdp):
        with pytest.raises(ValueError, match="a divisor of the number of devices, 2"):
            make_mesh(fsdp=fsdp)

    def test_a_mesh_has_a_device(self):
        with pytest.raises(ValueError, match="at least one device"):
            make_mesh([])
