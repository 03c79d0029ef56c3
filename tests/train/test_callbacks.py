"""Callbacks: what they see, when they stop, what they give back."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    Callback,
    CheckFinite,
    Checkpoints,
    EarlyStopping,
    LearningRate,
    NonFiniteError,
    fit,
    multi_transform,
)

ADAM = optax.adam(0.1)


def climb(w, x):
    """With a rate of 1 each step adds 1 to the parameter, whatever the example."""
    return -w["at"] + 0 * x


def run(callbacks, epochs=20, **changed):
    """Three steps an epoch, after which the parameter is the number of steps."""
    options = {
        "loss": climb,
        "optimizer": optax.sgd(1.0),
        "key": jax.random.key(0),
        "epochs": epochs,
        "batch_size": 2,
        "callbacks": callbacks,
        "progress": False,
    } | changed
    return fit({"at": jnp.array(0.0)}, (jnp.zeros(6),), **options)


class Replay(Callback):
    """Puts a sequence of values into the history, one an epoch."""

    def __init__(self, values):
        self.values = values

    def on_start(self, state, history):
        self.left = list(self.values)

    def measure(self, state):
        return {"score": self.left.pop(0)}


NAN = float("nan")


class TestEarlyStopping:
    # (values, options, epochs until the stop, number of the best epoch), by hand.
    CASES = (
        # 0.8 at epoch 3 is the last improvement; 4 and 5 bring none.
        ([1.0, 0.9, 0.8, 0.85, 0.8, 0.1], {"patience": 2}, 5, 3),
        # Equal is no improvement.
        ([1.0, 1.0, 1.0, 1.0], {"patience": 1}, 2, 1),
        # 0.95 and 0.91 are not better than 1.0 by more than 0.1; 0.85 is.
        (
            [1.0, 0.95, 0.91, 0.85, 0.84, 0.8, 0.8],
            {"patience": 3, "min_delta": 0.1},
            7,
            4,
        ),
        # More is better.
        ([0.1, 0.5, 0.4, 0.3, 0.9], {"patience": 2, "mode": "max"}, 4, 2),
        # The wait begins anew with each improvement.
        ([5.0, 6.0, 4.0, 6.0, 3.0, 6.0, 6.0], {"patience": 2}, 7, 5),
        # NaN improves nothing, and everything is better than nothing.
        ([NAN, 2.0, NAN, NAN, 1.0], {"patience": 2}, 4, 2),
        # Never stopped; the best is given back all the same.
        ([3.0, 1.0, 2.0], {"patience": 5}, 3, 2),
    )

    @pytest.mark.parametrize(("values", "options", "stops", "best"), CASES)
    def test_stops_at_the_epoch_and_gives_back_the_state_worked_out_by_hand(
        self, values, options, stops, best
    ):
        stop = EarlyStopping("score", **options)
        state, history = run([Replay(values), stop], epochs=len(values))
        np.testing.assert_array_equal(history["score"], values[:stops])
        assert state.step == 3 * best
        assert state.model["at"] == 3 * best

    def test_without_restoring_gives_back_the_last_state(self):
        stop = EarlyStopping("score", patience=2, restore_best=False)
        state, _ = run([Replay([1.0, 2.0, 3.0, 4.0]), stop])
        assert state.step == 9

    def test_the_best_state_has_its_own_optimiser_state_and_goes_on_from_there(self):
        adam = optax.adam(0.1)
        stop = EarlyStopping("score", patience=1)
        state, _ = run([Replay([2.0, 1.0, 3.0]), stop], optimizer=adam)
        whole = run([], epochs=2, optimizer=adam).state
        assert eqx.tree_equal(state, whole)
        further = fit(
            state,
            (jnp.zeros(6),),
            loss=climb,
            optimizer=adam,
            epochs=4,
            batch_size=2,
            progress=False,
        )
        assert eqx.tree_equal(further.state, run([], epochs=4, optimizer=adam).state)

    def test_forgets_the_run_before(self):
        stop = EarlyStopping("score", patience=1)
        run([Replay([0.0, 1.0]), stop])
        state, history = run([Replay([5.0, 4.0, 6.0]), stop])
        assert history["score"].tolist() == [5.0, 4.0, 6.0]
        assert state.step == 6

    def test_saved_after_any_epoch_and_loaded_into_another_it_goes_on_the_same(self):
        values, epochs = [1.0, 0.5, 0.7, 0.6, 0.9, 0.8, 0.8], 7

        class Swap(Callback):
            """Puts a new EarlyStopping in place of the old one after an epoch."""

            def __init__(self, after):
                self.after = after
                self.stop = self.new()

            def new(self):
                return EarlyStopping("score", patience=3)

            def on_start(self, state, history):
                self.stop.on_start(state, history)

            def on_epoch(self, state, history):
                out = self.stop.on_epoch(state, history)
                if len(history["score"]) == self.after:
                    saved = self.stop.save_state()
                    *arrays, key = saved["best"]
                    saved["best"] = [*(np.asarray(x) for x in arrays), key]
                    self.stop = self.new()
                    self.stop.on_start(state, history)
                    self.stop.load_state(saved, state)
                return out

            def on_end(self, state, history):
                return self.stop.on_end(state, history)

        for after in range(1, 6):
            state, history = run([Replay(values), Swap(after)], epochs=epochs)
            assert len(history["score"]) == 5
            assert state.model["at"] == 6

    def test_what_it_saves_is_plain(self):
        stop = EarlyStopping("score", patience=1)
        json.dumps(stop.save_state())  # before any epoch
        run([Replay([1.0, 2.0]), stop], key=jax.random.PRNGKey(0))
        saved = stop.save_state()
        assert set(saved) == {"value", "waited", "best"}
        assert all(isinstance(x, jax.Array) for x in saved["best"])

    @pytest.mark.parametrize("name", ["val_loss", "typo", "step_loss"])
    def test_a_name_that_is_not_there_is_refused_with_those_that_are(self, name):
        with pytest.raises(ValueError, match=rf"loss, seconds; got '{name}'") as caught:
            run([EarlyStopping(name, patience=1)])
        assert "validation=" in str(caught.value)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"patience": 0}, "integer >= 1, got 0"),
            ({"patience": True}, "integer >= 1, got True"),
            ({}, "integer >= 1, got None"),
            ({"patience": 1, "min_delta": -0.1}, "min_delta must be >= 0, got -0.1"),
            ({"patience": 1, "min_delta": NAN}, "min_delta must be >= 0, got nan"),
            ({"patience": 1, "mode": "least"}, "'min' or 'max', got 'least'"),
        ],
    )
    def test_options_out_of_range_are_refused(self, options, match):
        with pytest.raises(ValueError, match=match):
            EarlyStopping(**options)

    @pytest.mark.parametrize("dies_after", [2, 6, 12])
    def test_a_run_that_died_and_goes_on_stops_where_it_would_have(
        self, dies_after, tmp_path
    ):
        class Score(Callback):
            """By the number of the epoch, as a run that goes on needs it."""

            def measure(self, state):
                values = [5.0, 1.0, 4.0, 4.0, 4.0, 4.0, 4.0]
                return {"score": values[int(state.step) // 3 - 1]}

        class Die(Callback):
            def on_call(self, state, call):
                if call.step + len(call.step_loss) >= dies_after:
                    raise KeyboardInterrupt

        def go(folder, *more):
            callbacks = [Score(), EarlyStopping("score", patience=2), *more]
            return run(
                callbacks,
                optimizer=ADAM,
                checkpoint=Checkpoints(folder / "kept", every=2),
                logger=folder / "log.jsonl",
                log_every=1,
            )

        def rows(folder):
            lines = (folder / "log.jsonl").read_text().splitlines()
            return [json.loads(line) | {"seconds": 0} for line in lines]

        state, history = go(tmp_path / "whole")
        assert history["score"].tolist() == [5.0, 1.0, 4.0, 4.0]
        assert state.step == 6
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "died", Die())
        for _ in range(2):  # the second call finds a run that has ended
            again = go(tmp_path / "died")
            assert eqx.tree_equal(again.state, state)
            assert again.history["score"].tolist() == history["score"].tolist()
            assert rows(tmp_path / "died") == rows(tmp_path / "whole")
        assert [row["step"] for row in rows(tmp_path / "died")] == [
            *[1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12]
        ]


class TestLearningRate:
    def test_an_injected_schedule_is_read_from_the_optimisers_state(self):
        schedule = optax.piecewise_constant_schedule(1.0, {3: 0.5, 6: 0.5})
        optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
        _, history = run([LearningRate()], epochs=3, optimizer=optimizer)
        # Updates 0 to 2 have 1, 3 to 5 a half, 6 to 8 a quarter.
        np.testing.assert_allclose(history["learning_rate"], [1.0, 0.5, 0.25])

    def test_a_schedule_given_says_the_same(self):
        schedule = optax.linear_schedule(1.0, 0.0, 9)
        _, history = run(
            [LearningRate(schedule)], epochs=3, optimizer=optax.sgd(schedule)
        )
        # The last updates of the epochs are number 2, 5 and 8.
        np.testing.assert_allclose(
            history["learning_rate"], [7 / 9, 4 / 9, 1 / 9], rtol=1e-6
        )

    def test_each_label_has_a_rate_of_its_own(self):
        injected = optax.inject_hyperparams(optax.sgd)
        optimizer = multi_transform(
            {"fast": injected(learning_rate=1.0), "slow": injected(learning_rate=0.25)},
            {"at": "fast"},
        )
        _, history = run([LearningRate()], epochs=1, optimizer=optimizer)
        assert history["learning_rate/fast"] == 1.0
        assert history["learning_rate/slow"] == 0.25

    def test_no_rate_to_read_is_refused_before_the_first_step(self):
        with pytest.raises(ValueError, match=r"optax\.inject_hyperparams"):
            run([LearningRate()])

    def test_a_number_is_no_schedule(self):
        with pytest.raises(ValueError, match=r"a function of the step, got 0\.1"):
            LearningRate(0.1)


class TestCheckFinite:
    def caught(self, **changed):
        with pytest.raises(NonFiniteError) as caught:
            run([CheckFinite()], **changed)
        return caught.value

    def run_on(self, model, x, loss, **options):
        fit(
            model,
            (x,),
            loss=loss,
            optimizer=optax.sgd(1.0),
            key=jax.random.key(0),
            epochs=1,
            batch_size=2,
            callbacks=[CheckFinite()],
            progress=False,
            **options,
        )

    def at(self, step):
        """The state before update `step`, by a run that ends there."""

        class Keep(Callback):
            def on_call(self, state, call):
                for n, ran in enumerate(call.replay(self.state), call.step + 1):
                    if n == step:
                        raise StopIteration
                    self.state = jax.tree.map(jnp.copy, ran.state)
                self.state = jax.tree.map(jnp.copy, state)

            def on_start(self, state, history):
                self.state = jax.tree.map(jnp.copy, state)

        keep = Keep()
        with pytest.raises(StopIteration):
            run([keep])
        return keep.state

    def test_a_fine_run_is_left_alone(self):
        plain, checked = run([], epochs=3), run([CheckFinite()], epochs=3)
        assert eqx.tree_equal(plain.state, checked.state)

    @pytest.mark.parametrize("step", [1, 2, 5, 18])
    def test_a_loss_that_turns_nan_is_named_by_update_and_leaf(self, step):
        # The parameter counts updates, so this loss is NaN at one of them.
        def loss(w, x):
            return climb(w, x) * jnp.where(w["at"] >= step - 1, jnp.nan, 1.0)

        error = self.caught(loss=loss, epochs=6)
        assert (error.step, error.leaf) == (step, "['at']")
        assert f"update {step}: the loss is nan" in str(error)
        assert eqx.tree_equal(error.state, self.at(step))

    def test_a_gradient_that_is_not_finite_where_the_loss_is(self):
        # The root's derivative at 0 is infinite, and its value is 0.
        def loss(w, x):
            return climb(w, x) + jnp.sqrt(jnp.maximum(4.0 - w["at"], 0.0)) * x

        error = self.caught(loss=loss)
        assert error.step == 5
        assert "update 5: the gradient is not finite, first at ['at']" in str(error)
        assert (error.state.step, error.state.model["at"]) == (4, 4.0)

    def test_the_very_last_update(self):
        def loss(w, x):
            return climb(w, x) + jnp.sqrt(jnp.maximum(5.0 - w["at"], 0.0)) * x

        assert self.caught(loss=loss, epochs=2).step == 6

    def test_the_first_leaf_of_several(self):
        def loss(w, x):
            return jnp.sum(w["a"]) + jnp.sum(jnp.sqrt(w["b"] - 1)) + jnp.sum(w["c"]) * x

        model = {"a": jnp.ones(2), "b": jnp.ones(3), "c": jnp.ones(1)}
        with pytest.raises(NonFiniteError) as caught:
            self.run_on(model, jnp.ones(6), loss)
        assert caught.value.leaf == "['b']"

    def test_an_optimiser_that_overflows(self):
        def rate(count):
            return jnp.where(count < 4, 1.0, jnp.inf)

        error = self.caught(optimizer=optax.sgd(rate))
        assert error.step == 5
        assert "update 5: the optimiser made what is not finite" in str(error)

    def test_data_that_are_not_finite_are_pointed_at(self):
        x = jnp.zeros(6).at[3].set(jnp.nan)
        with pytest.raises(NonFiniteError, match=r"at argument \[0\]"):
            self.run_on({"at": jnp.array(0.0)}, x, climb)

    def test_a_frozen_leaf_may_be_infinite(self):
        def loss(w, x):
            return jnp.where(w["mask"] < 0, 0.0, 1.0) + climb(w, x)

        model = {"at": jnp.array(0.0), "mask": jnp.array(-jnp.inf)}
        trainable = {"at": True, "mask": False}
        self.run_on(model, jnp.zeros(6), loss, trainable=trainable)


class TestTheProtocol:
    def test_calls_cover_every_step_once_and_replay_gives_the_same(self):
        losses, again = [], []

        class Look(Callback):
            def on_start(self, state, history):
                self.before = jax.tree.map(jnp.copy, state)

            def on_call(self, state, call):
                assert call.step == len(losses)
                assert call.epoch == len(losses) // 3
                losses.extend(call.step_loss.tolist())
                for ran in call.replay(self.before):
                    again.append(ran.loss)
                assert eqx.tree_equal(ran.state, state)
                self.before = jax.tree.map(jnp.copy, state)

        _, history = run([Look()], epochs=3, optimizer=optax.adam(0.1))
        assert losses == again == history["step_loss"].tolist()
        assert len(losses) == 9

    def test_on_end_passes_a_state_on_to_the_next(self):
        class Add(Callback):
            def on_end(self, state, history):
                return eqx.tree_at(lambda s: s.model["at"], state, replace_fn=self.f)

            def __init__(self, f):
                self.f = f

        out = run([Add(lambda w: w + 1), Callback(), Add(lambda w: 10 * w)], epochs=1)
        assert out.model["at"] == 40

    def test_an_epoch_in_which_a_name_was_not_measured_has_nan(self, tmp_path):
        class Vector(Callback):
            def measure(self, state):
                return {"vector": np.ones(2)}

        kept = {"checkpoint": Checkpoints(tmp_path)}
        run([Replay([1.0, 2.0])], epochs=2, **kept)
        _, history = run([Vector()], epochs=3, **kept)
        assert np.array_equal(history["score"], [1.0, 2.0, NAN], equal_nan=True)
        wanted = [[NAN, NAN], [NAN, NAN], [1.0, 1.0]]
        assert np.array_equal(history["vector"], wanted, equal_nan=True)

    @pytest.mark.parametrize("name", ["loss", "seconds", "step_loss", "score"])
    def test_a_measured_name_that_is_taken_is_refused(self, name):
        class Measure(Callback):
            def measure(self, state):
                return {name: 1.0}

        with pytest.raises(ValueError, match=f"the history has a '{name}' already"):
            run([Replay([1.0]), Measure()], epochs=1)
