"""Several processes train as one, and go on where one of them was killed."""

import json
import time

import jax
import numpy as np
import pytest

from eqx_mlp import (
    Checkpoints,
    distributed,
    evaluate,
    fit,
    load,
    losses,
    per_example_grad_norm,
    predict,
)
from eqx_mlp.data import Batch


@pytest.fixture(scope="module")
def folder(once, run_job, definitions):
    """What the jobs have left: of two processes, killed and started again, and of four.

    A run of one process, left after 20 of 50 steps, is in "one".
    """

    def make(folder):
        definitions.trained(0, epochs=2, checkpoint=Checkpoints(folder / "one"))
        killed = run_job(2, folder, "killed")
        second = killed.wait_for(1)
        started = time.monotonic()
        first, seconds = killed.wait_for(0), time.monotonic() - started
        told = [[first, second], seconds, killed.said(0)]
        (folder / "killed.json").write_text(json.dumps(told))
        codes, said = run_job(4, folder, "cut").wait()
        assert codes == [0] * 4, said
        codes, said = run_job(2, folder, "whole").wait()
        assert codes == [0, 0], said

    return once("jobs", make)


@pytest.fixture(scope="module")
def both(folder):
    """What each of the two processes has."""
    return [dict(np.load(folder / f"whole{i}.npz")) for i in range(2)]


@pytest.fixture(scope="module")
def one(cases_folder):
    """What one process of eight devices has."""
    return dict(np.load(cases_folder / "cases.npz"))


def require_close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_two_processes_of_two_devices_are_one_of_four(both, one):
    for process in both:
        size = one["float32/4"].size
        require_close(process["alone"][:size], one["float32/4"])
        np.testing.assert_array_equal(process["alone"], both[0]["alone"])


def test_each_process_reads_its_own_rows_of_a_file(both):
    for process in both:
        np.testing.assert_array_equal(process["mapped"], both[0]["alone"])
        assert process["read"].tolist() == [4]  # of eight


def test_a_killed_process_ends_the_others_with_an_error_that_says_so(folder):
    codes, seconds, said = json.loads((folder / "killed.json").read_text())
    assert codes[1] == -9
    assert codes[0] != 0
    assert seconds < 60
    assert "another task died" in said or "another process has died" in said


def test_a_job_that_was_killed_ends_bit_for_bit_as_one_left_alone(both):
    for process in both:
        np.testing.assert_array_equal(process["killed"], process["alone"])


def test_two_processes_go_on_from_the_checkpoint_of_one(both, one):
    require_close(both[0]["one"][: one["float32/0"].size], one["float32/0"])


def test_one_process_goes_on_from_the_checkpoint_of_four(folder, one, definitions):
    stored = np.load(folder / "cut3.npz")["state"]
    model = load(folder / "saved", like=definitions.model_of())
    weights = definitions.flat(model)
    np.testing.assert_array_equal(stored[: weights.size], weights)
    run = definitions.trained(0, checkpoint=Checkpoints(folder / "cut"))
    require_close(definitions.flat(run.model), one["float32/0"])


def test_one_process_alone_writes_the_log(folder):
    rows = [
        json.loads(row) for row in (folder / "alone.jsonl").read_text().split("\n")[:-1]
    ]
    steps = [row["step"] for row in rows if "step_loss" in row]
    assert steps == list(range(1, 51))
    assert [row["epoch"] for row in rows if "epoch" in row] == [1, 2, 3, 4, 5]


def test_a_process_whose_stream_ends_early_goes_on_with_padding(both, definitions):
    x, y = definitions.X, definitions.Y

    def together():
        for i in range(0, 20, 4):
            j = min(20 + i, 26)  # the second process's rows, and valid ones after them
            counts = np.arange(20 + i, 24 + i) < 30
            if i >= 12:
                counts[:] = False
            rows = np.r_[i : i + 4, j : j + 4]
            if i == 8:
                rows = np.r_[i : i + 4, 28, 29, 0, 0]
            weight = np.r_[np.ones(4), counts].astype(np.float32)
            yield Batch((x[rows], y[rows]), weight)

    options = definitions.OPTIONS | {"epochs": 2, "batch_size": None}
    run = fit(
        definitions.model_of(), list(together()), key=jax.random.key(5), **options
    )
    for process in both:
        require_close(process["stream"], definitions.flat(run.state))


def test_a_stream_that_breaks_in_one_process_ends_all(both):
    assert "OSError('the disk is gone')" in str(both[1]["error"])
    assert "the stream of process 1 raised an error" in str(both[0]["error"])


def test_norms_metrics_and_predictions_are_those_of_one_process(both, definitions):
    x, y = definitions.X, definitions.Y
    model = definitions.model_of()
    norms = per_example_grad_norm(losses.cross_entropy, method="vmap")(
        model, x[:12], y[:12], key=jax.random.key(1)
    )
    trained = definitions.trained(0).model
    loss = evaluate(trained, (x, y), metrics={"loss": losses.cross_entropy})["loss"]
    for process in both:
        np.testing.assert_allclose(process["norms"], norms, rtol=1e-5)
        np.testing.assert_allclose(process["loss"], loss, rtol=1e-5)
        require_close(process["predicted"], np.asarray(predict(trained, x)))


class TestBadInput:
    def test_a_process_has_a_number_below_that_of_all(self):
        with pytest.raises(ValueError, match="process_id must be from 0 to 1"):
            distributed.initialize("localhost:1234", 2, 2)

    def test_an_address_alone_is_not_enough(self):
        with pytest.raises(ValueError, match="give num_processes= and process_id="):
            distributed.initialize("localhost:1234")

    def test_seconds_are_whole(self):
        with pytest.raises(ValueError, match="in whole seconds, at least 1, got 0"):
            distributed.initialize("localhost:1234", 2, 0, timeout=0)
