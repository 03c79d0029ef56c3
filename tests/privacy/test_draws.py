"""The draws of private runs: what they depend on, and that a run uses all of them."""

import dataclasses
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Callback,
    Checkpoints,
    EarlyStopping,
    Ensemble,
    data,
    fit,
    init_state,
    losses,
    make_step,
    metrics,
    with_ema,
)
from eqx_mlp.privacy import DPSGD, Poisson, _poisson

N = 61
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N, dtype=np.int32) % 3
PRIVATE = DPSGD(
    l2_clip_norm=0.5,
    noise_multiplier=1.0,
    expected_batch_size=4.5,
    dataset_size=N,
    delta=1e-3,
    accountant="rdp",
)
SHUFFLED = dataclasses.replace(PRIVATE, sampling="shuffled", expected_batch_size=8)
SGD = optax.sgd(0.1)
KEY = jax.random.key(9)


def model_of():
    return MLP(4, 3, (5,), key=jax.random.key(0))


def run(**changed):
    options = {
        "loss": losses.cross_entropy,
        "optimizer": SGD,
        "gradient": PRIVATE,
        "key": KEY,
        "epochs": 2,
        "progress": False,
    } | changed
    model = options.pop("model", None)
    given = options.pop("data", (X, Y))
    return fit(model_of() if model is None else model, given, **options)


def on_disk(folder):
    np.save(folder / "x.npy", X)
    return (np.load(folder / "x.npy", mmap_mode="r"), Y)


def by_hand(gradient, batches):
    """The model after these batches, given as `(indices, weight)`."""
    step = eqx.filter_jit(make_step(losses.cross_entropy, SGD, gradient=gradient))
    state = init_state(model_of(), SGD, key=KEY)
    for index, weight in batches:
        state, _ = step(state, data.Batch((X[index], Y[index]), weight))
    return state.model


def require_close(a, b):
    for x, y in zip(
        *(jax.tree.leaves(eqx.filter(m, eqx.is_array)) for m in (a, b)), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where a run of one epoch is."""
    kept = Checkpoints(tmp_path_factory.mktemp("kept"))
    run(epochs=1, checkpoint=kept)
    return kept


class TestPoisson:
    def test_every_word_of_the_key_counts(self):
        words = np.array([[0, 1], [1, 1], [0, 2], [1, 2]], np.uint32)
        keys = [jax.random.wrap_key_data(jnp.asarray(w)) for w in words]
        draws = {tuple(Poisson(100, 20, key).order(0)) for key in keys}
        assert len(draws) == len(keys)

    def test_a_raw_key_draws_as_the_same_key_with_a_type_does(self):
        raw, typed = jax.random.PRNGKey(5), jax.random.key(5)
        a, b = (Poisson(100, 20, key).order(3) for key in (raw, typed))
        np.testing.assert_array_equal(a, b)

    def test_draws_are_not_those_of_the_shuffled_order(self):
        # Both come from the key and the epoch's number, by generators of their own.
        rng = np.random.default_rng([0, 9, 2])
        gaps = rng.geometric(0.2, 100)
        first = np.cumsum(gaps) - 1
        sampled = Poisson(100, 20, KEY)
        count = sampled.counts(2)[0]
        assert sampled.order(2)[:count].tolist() != first[:count].tolist()

    def test_a_draw_needs_more_rows_with_less_than_the_probability_promised(self):
        stats = pytest.importorskip("scipy.stats")
        for n, expected in [(60_000, 256), (1000, 0.1), (500, 100)]:
            width = Poisson(n, expected, KEY).width
            assert stats.binom.logsf(width, n, expected / n) <= np.log(1e-40)
            # Chernoff's bound is not far off.
            assert stats.binom.logsf(0.9 * width, n, expected / n) > np.log(1e-40)

    def test_a_draw_that_is_too_large_loses_its_last_examples(self, monkeypatch):
        whole = Poisson(50, 5, KEY)
        counts, order = whole.counts(0), whole.order(0).reshape(whole.steps, -1)
        monkeypatch.setattr(_poisson, "capacity", lambda *_: 4)
        cut = Poisson(50, 5, KEY)
        assert cut.width == 4 < counts.max()
        np.testing.assert_array_equal(cut.counts(0), np.minimum(counts, 4))
        for drawn, kept, count in zip(
            order, cut.order(0).reshape(-1, 4), cut.counts(0), strict=True
        ):
            np.testing.assert_array_equal(kept[:count], drawn[:count])

    def test_drawing_goes_on_until_the_epoch_is_full(self, monkeypatch):
        # As if far fewer gaps had been thought to be enough.
        few = types.SimpleNamespace(sqrt=lambda x: -x / 8)
        sampled = Poisson(1000, 10, KEY)
        monkeypatch.setattr(_poisson, "math", few)
        counts = sampled.counts(0)
        assert abs(counts.sum() - 1000) < 5 * np.sqrt(1000)
        assert abs(counts[50:].sum() - 500) < 5 * np.sqrt(500)


class TestFit:
    @pytest.mark.parametrize("mapped", [False, True])
    def test_each_epoch_has_its_own_draws(self, mapped, tmp_path):
        assert PRIVATE.steps_per_epoch == 14
        sampled = Poisson(N, 4.5, KEY)
        batches = [
            (index, (np.arange(sampled.width) < count).astype(np.float32))
            for epoch in range(2)
            for index, count in zip(
                sampled.order(epoch).reshape(14, -1), sampled.counts(epoch), strict=True
            )
        ]
        result = run(**{"data": on_disk(tmp_path)} if mapped else {})
        require_close(result.model, by_hand(PRIVATE, batches))

    def test_shuffled_batches_hold_each_example_once_an_epoch(self):
        batches = []
        for epoch in range(2):
            order = data.epoch_permutation(KEY, epoch, N)
            assert sorted(order) == list(range(N))
            for start in range(0, N, 8):
                index = order[start : start + 8]
                weight = (np.arange(8) < len(index)).astype(np.float32)
                batches.append((np.resize(index, 8), weight))
        result = run(gradient=SHUFFLED)
        require_close(result.model, by_hand(SHUFFLED, batches))
        assert result.history["epsilon"].tolist() == [
            SHUFFLED.epsilon(8),
            SHUFFLED.epsilon(16),
        ]

    @pytest.mark.parametrize("mapped", [False, True])
    def test_a_run_stopped_within_an_epoch_goes_on_bit_for_bit(self, mapped, tmp_path):
        class Stop(Callback):
            def on_call(self, state, call):
                if state.step >= 20:
                    raise KeyboardInterrupt

        given = {"data": on_disk(tmp_path)} if mapped else {}
        kept = Checkpoints(tmp_path / "run", every=6)
        with pytest.raises(KeyboardInterrupt):
            run(callbacks=[Stop()], checkpoint=kept, **given)
        resumed = run(checkpoint=kept, **given)
        whole = run(**given)
        assert eqx.tree_equal(resumed.state, whole.state)
        for name in ("epsilon", "step_loss"):
            np.testing.assert_array_equal(resumed.history[name], whole.history[name])

    @pytest.mark.parametrize(
        "changed",
        [
            {"l2_clip_norm": 0.6},
            {"expected_batch_size": 4.4},
            {"delta": 1e-4},
            {"accountant": "pld"},
        ],
        ids=lambda changed: next(iter(changed)),
    )
    def test_a_run_does_not_go_on_with_another_setting(self, changed, kept):
        with pytest.raises(ValueError, match="start it again with the same arguments"):
            run(gradient=dataclasses.replace(PRIVATE, **changed), checkpoint=kept)

    def test_a_run_does_not_go_on_with_another_sampling(self, tmp_path):
        kept = Checkpoints(tmp_path)
        run(gradient=SHUFFLED, epochs=1, checkpoint=kept)
        sampled = dataclasses.replace(SHUFFLED, sampling="poisson")
        with pytest.raises(ValueError, match="start it again with the same arguments"):
            run(gradient=sampled, checkpoint=kept)

    def test_a_run_goes_on_with_another_way_to_compute_the_same(self, kept):
        other = dataclasses.replace(PRIVATE, method="vmap", chunk_size=3)
        assert run(gradient=other, epochs=1, checkpoint=kept).state.step == 14

    def test_choosing_by_validation_data_is_allowed(self):
        for name in ("val_loss", "ema_val_loss"):
            result = run(
                optimizer=with_ema(SGD, 0.9),
                validation=(X, Y),
                callbacks=[EarlyStopping(name, patience=1)],
            )
            assert name in result.history

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"data": (np.tile(X, (2, 1)), np.tile(Y, 2))}, "dataset_size 61"),
            ({"callbacks": [EarlyStopping("accuracy", patience=1)]}, "without noise"),
            ({"callbacks": [EarlyStopping("ema_loss", patience=1)]}, "without noise"),
            ({"checkpoint": Checkpoints("x", best="accuracy")}, "without noise"),
            # A metric of the training examples by another name.
            (
                {
                    "metrics": {"val_right": metrics.accuracy},
                    "callbacks": [EarlyStopping("val_right", patience=1)],
                },
                "choose by 'val_right', which is measured on the training examples",
            ),
        ],
    )
    def test_what_breaks_the_guarantee_is_refused(self, changed, message):
        with pytest.raises(ValueError, match=message):
            run(**changed)

    def test_the_state_of_an_ensemble_is_refused(self):
        several = Ensemble([model_of(), model_of()])
        state = init_state(several, SGD, key=KEY)
        with pytest.raises(ValueError, match="would get the same noise"):
            run(model=state, key=None)
        with pytest.raises(ValueError, match="would get the same noise"):
            make_step(losses.cross_entropy, SGD, gradient=PRIVATE)(state, (X, Y))
