"""A run that stops anywhere goes on bit for bit."""

import importlib.util
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import Callback, Checkpoints, init_state, load, save
from eqx_mlp.train import _loop, _runner, _signals, _store

SCRIPT = pathlib.Path(__file__).parent / "checkpointed.py"
spec = importlib.util.spec_from_file_location("checkpointed", SCRIPT)
small = importlib.util.module_from_spec(spec)
spec.loader.exec_module(small)

KEY = jax.random.key(0)
STEPS = 6  # in an epoch of the small run


def start(*arguments):
    return subprocess.Popen([sys.executable, str(SCRIPT), *map(str, arguments)])


def bits(tree):
    return [
        np.asarray(jax.random.key_data(x) if is_key(x) else x)
        for x in jax.tree.leaves(tree)
        if eqx.is_array(x) or isinstance(x, np.ndarray)
    ]


def is_key(x):
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def require_equal(a, b):
    a, b = bits(a), bits(b)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.tobytes() == y.tobytes()


def require_same_run(a, b):
    require_equal(a.state, b.state)
    # Times are measured anew.
    require_equal(
        *({k: v for k, v in r.history.items() if "seconds" not in k} for r in (a, b))
    )
    assert {k: v.shape for k, v in a.history.items()} == {
        k: v.shape for k, v in b.history.items()
    }


@pytest.fixture(scope="module")
def whole():
    average = small.Average()
    result = small.run(callbacks=[average])
    return result, average


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of every update of the small run."""
    folder = tmp_path_factory.mktemp("saved")
    small.run(Checkpoints(folder, every=1, keep=99), callbacks=[small.Average()])
    return folder


class TestExactResume:
    @pytest.mark.parametrize("step", range(1, 3 * STEPS + 1))
    def test_from_any_step_the_end_is_that_of_the_run_that_never_stopped(
        self, step, whole, saved, tmp_path
    ):
        shutil.copytree(saved / f"{step:012d}", tmp_path / f"{step:012d}")
        average = small.Average()
        result = small.run(Checkpoints(tmp_path), callbacks=[average])
        require_same_run(result, whole[0])
        assert average.epochs == whole[1].epochs == 3
        require_equal(average.average, whole[1].average)

    def test_checkpoints_change_nothing(self, whole, saved, tmp_path):
        require_same_run(small.run(), whole[0])
        assert list(_store.checkpoints_in(saved)) == list(range(1, 3 * STEPS + 1))

    def test_the_length_of_calls_changes_nothing(self, whole, monkeypatch, tmp_path):
        monkeypatch.setattr(_runner, "CALL_SECONDS", 1e-9)
        result = small.run(Checkpoints(tmp_path, every=5))
        require_same_run(result, whole[0])

    def test_six_steps_are_three_then_a_new_process_and_three(self, tmp_path):
        state = small.odd_steps(small.odd_state())
        save(tmp_path / "three", state)
        assert start("steps", tmp_path / "three", tmp_path / "six").wait(120) == 0
        got = load(tmp_path / "six", like=small.odd_state())
        assert got.step == 6
        assert got.model.network.layers[0].weight.dtype == jnp.bfloat16
        assert str(jax.random.key_impl(got.model.keys)) == "unsafe_rbg"
        require_equal(got, small.odd_steps(state))

    def test_the_bar_goes_on_from_there(self, saved, tmp_path, capfd, monkeypatch):
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        shutil.copytree(saved / f"{8:012d}", tmp_path / f"{8:012d}")
        small.run(Checkpoints(tmp_path), callbacks=[small.Average()], progress=True)
        shown = capfd.readouterr().err
        # An epoch of 22 examples and two batches of 4 lie behind it.
        assert "30.0/66.0" in shown.split("\r")[1]
        assert "66.0/66.0" in shown

    def test_a_run_that_a_callback_ended_stays_ended(self, tmp_path):
        class Stop(Callback):
            def on_epoch(self, state, history):
                return len(history["loss"]) == 2

        first = small.run(Checkpoints(tmp_path, every=99), callbacks=[Stop()])
        again = small.run(Checkpoints(tmp_path, every=99), callbacks=[Stop()])
        assert again.state.step == 2 * STEPS
        require_same_run(first, again)

    def test_more_epochs_go_on_from_the_last(self, whole, tmp_path):
        small.run(Checkpoints(tmp_path), epochs=2)
        require_same_run(small.run(Checkpoints(tmp_path)), whole[0])

    def test_a_state_from_the_middle_of_an_epoch_begins_a_run_that_resumes(
        self, saved, tmp_path
    ):
        like = init_state(small.model_of(), small.ADAM, key=jax.random.key(5))
        state = load(saved, which=2, like=like)

        def run(folder):
            checkpoints = Checkpoints(folder, every=1, keep=99)
            return small.run(checkpoints, state, key=None, epochs=2)

        wanted = run(tmp_path / "whole")
        (tmp_path / "part").mkdir()
        shutil.copytree(tmp_path / "whole" / f"{4:012d}", tmp_path / "part" / "4")
        got = run(tmp_path / "part")
        assert got.history["step_loss"].shape == (2 * STEPS - 2,)
        require_same_run(got, wanted)


class TestStopping:
    @pytest.fixture(autouse=True)
    def not_ignored(self):
        # A shell starts what runs in the background with Ctrl-C ignored.
        earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, earlier)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("call", [1, 2, 6, 9])
    def test_a_signal_ends_the_call_and_writes(
        self, number, call, whole, tmp_path, monkeypatch, caplog
    ):
        monkeypatch.setattr(_runner, "CALL_SECONDS", 1e-9)  # a step a call
        original, calls = _loop.EpochLoop.run, 0

        def run(self, parts):
            nonlocal calls
            losses = original(self, parts)
            calls += losses.size > 0  # none where it compiles
            if calls == call and losses.size > 0:
                signal.raise_signal(number)
            return losses

        monkeypatch.setattr(_loop.EpochLoop, "run", run)
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(SystemExit) as stopped:
            small.run(Checkpoints(tmp_path))
        assert stopped.value.code == 128 + number
        assert f"stopped by {number.name} after {call} updates" in caplog.text
        assert [
            signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)
        ] == handlers
        assert list(_store.checkpoints_in(tmp_path))[-1] == call
        require_same_run(small.run(Checkpoints(tmp_path)), whole[0])

    def test_a_second_signal_acts_at_once(self):
        with _signals.StopSignals() as signals:
            signal.raise_signal(signal.SIGINT)
            assert signals.received == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signals.received = None

    def test_a_signal_that_comes_too_late_is_not_lost(self):
        with pytest.raises(KeyboardInterrupt), _signals.StopSignals():
            signal.raise_signal(signal.SIGINT)

    def test_ignored_signals_stay_ignored(self):
        earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with _signals.StopSignals() as signals:
                signal.raise_signal(signal.SIGINT)
                assert signals.received is None
        finally:
            signal.signal(signal.SIGINT, earlier)

    def test_a_thread_that_may_have_no_handlers_trains_all_the_same(
        self, whole, tmp_path
    ):
        results = []
        thread = threading.Thread(
            target=lambda: results.append(small.run(Checkpoints(tmp_path)))
        )
        thread.start()
        thread.join()
        require_same_run(results[0], whole[0])


def test_killed_at_random_moments_a_run_ends_as_if_it_never_was(whole, tmp_path):
    kills = 50 if os.environ.get("EQX_MLP_LONG_TESTS") else 3
    seed = random.randrange(1 << 32)
    print(f"seed of the kills: {seed}")
    moments = random.Random(seed)
    folder = tmp_path / "run"
    for kill in range(kills):
        before = latest(folder)
        process = start("fit", folder, 1)
        while latest(folder) == before and process.poll() is None:
            time.sleep(0.001)
        if process.poll() is None and kill == 0:
            with pytest.raises(RuntimeError, match=f"by process {process.pid} on"):
                small.run(Checkpoints(folder))
        # A write takes much longer than a step: most moments are within one.
        time.sleep(moments.uniform(0, 0.1))
        process.kill()
        assert process.wait(60) in (-signal.SIGKILL, 0)
        if latest(folder) == 3 * STEPS:
            shutil.rmtree(folder)  # it was faster than us: begin another one
    result = small.run(Checkpoints(folder, every=1), callbacks=[small.Average()])
    require_same_run(result, whole[0])
    assert not list(folder.glob(".writing")) + list(folder.glob(".deleting*"))


def latest(folder):
    return max(_store.checkpoints_in(folder), default=0)
