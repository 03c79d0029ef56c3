"""DP-SGD: its noise, sensitivity, sampling, accounting, and what it refuses."""

import dataclasses
import functools

import dp_accounting
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import pld, rdp

from eqx_mlp import (
    MLP,
    Checkpoints,
    EarlyStopping,
    Ensemble,
    data,
    fit,
    init_state,
    losses,
    make_mesh,
    make_step,
    mean_grad,
)
from eqx_mlp.privacy import DPSGD, Poisson, epsilon, noise_multiplier_for
from eqx_mlp.privacy._poisson import OVERFLOW

N = 60
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N, dtype=np.int32) % 3
PRIVATE = DPSGD(
    l2_clip_norm=0.5,
    noise_multiplier=1.0,
    expected_batch_size=6,
    dataset_size=N,
    delta=1e-3,
    accountant="rdp",
)
SGD = optax.sgd(0.1)


def model_of():
    return MLP(4, 3, (5,), key=jax.random.key(0))


def run(**changed):
    options = {
        "loss": losses.cross_entropy,
        "optimizer": SGD,
        "gradient": PRIVATE,
        "key": jax.random.key(1),
        "epochs": 2,
        "progress": False,
    } | changed
    model = options.pop("model", None)
    given = options.pop("data", (X, Y))
    return fit(model_of() if model is None else model, given, **options)


PUBLISHED = {
    "noise_multiplier": 1.1,
    "delta": 1e-5,
    "sampling_rate": 256 / 60_000,
    "steps": 60 * 235,
}


@pytest.mark.parametrize(
    ("name", "accountant"), [("rdp", rdp.RdpAccountant), ("pld", pld.PLDAccountant)]
)
def test_epsilon_of_a_published_setting_is_dp_accountings(name, accountant):
    event = dp_accounting.PoissonSampledDpEvent(
        256 / 60_000, dp_accounting.GaussianDpEvent(1.1)
    )
    event = dp_accounting.SelfComposedDpEvent(event, 60 * 235)
    wanted = accountant().compose(event).get_epsilon(1e-5)
    got = epsilon(**PUBLISHED, accountant=name)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert got >= wanted


def test_the_noise_multiplier_inverts_epsilon():
    given = {k: v for k, v in PUBLISHED.items() if k != "noise_multiplier"}
    sigma = noise_multiplier_for(epsilon=3.0, **given, accountant="rdp")
    got = epsilon(noise_multiplier=sigma, **given, accountant="rdp")
    assert 3 - 1e-3 < got <= 3
    back = epsilon(**PUBLISHED, accountant="rdp")
    sigma = noise_multiplier_for(epsilon=back, **given, accountant="rdp")
    np.testing.assert_allclose(sigma, 1.1, atol=1e-3)


def test_without_sampling_an_epoch_is_one_gaussian_mechanism():
    shuffled = dataclasses.replace(PRIVATE, sampling="shuffled")
    total = rdp.RdpAccountant().compose(dp_accounting.GaussianDpEvent(1.0), 3)
    wanted = total.get_epsilon(1e-3)
    np.testing.assert_allclose(shuffled.epsilon(21), wanted, rtol=1e-5)
    np.testing.assert_allclose(shuffled.epsilon(30), wanted, rtol=1e-5)


def test_what_is_cut_from_large_draws_is_paid_for():
    # At an epsilon of about 95, exp(epsilon) times the overflow is more than delta.
    assert np.log(1e-9 / OVERFLOW) < 95
    given = {"delta": 1e-3, "sampling_rate": 1.0, "accountant": "rdp"}
    assert epsilon(noise_multiplier=0.1, steps=1, **given) == np.inf
    assert epsilon(noise_multiplier=1.0, steps=0, **given) == 0


def test_noise_on_zero_gradients_has_its_standard_deviation_in_every_dtype():
    n = 1_000_000
    dtypes = [jnp.bfloat16, jnp.float16, jnp.float32]
    private = dataclasses.replace(PRIVATE, l2_clip_norm=3.0)
    f = jax.jit(private(lambda w, x: 0 * x))
    model = [jnp.zeros(n, dtype) for dtype in dtypes]
    grads, _ = f(model, jnp.ones(2), key=jax.random.key(2))
    for g, dtype in zip(grads, dtypes, strict=True):
        assert g.dtype == dtype
        z = np.asarray(g, np.float64) / (1.0 * 3.0 / 6)
        # A chi-squared of n degrees has mean n and standard deviation sqrt(2 n).
        # Rounding to bfloat16 adds less than 2**-18 of it.
        assert abs(np.sum(z**2) - n) < 3 * np.sqrt(2 * n)
        assert abs(np.mean(z)) < 3 / np.sqrt(n)


def test_noise_is_another_for_each_step_leaf_and_setting():
    zero = lambda w, x: 0 * (w["a"] + w["b"]) * x
    draws = set()
    for private in (PRIVATE, dataclasses.replace(PRIVATE, dataset_size=61)):
        step = make_step(zero, optax.sgd(1.0), gradient=private)
        state = init_state(
            {"a": jnp.array(0.0), "b": jnp.array(0.0)}, SGD, key=jax.random.key(1)
        )
        for _ in range(2):
            before = state
            state, _ = step(state, (jnp.ones(3),))
            draws |= {float(state.model[k] - before.model[k]) for k in "ab"}
    assert len(draws) == 8


def test_neighbouring_batches_differ_by_no_more_than_the_clipping_norm():
    rows, pairs = 5, 1000
    private = dataclasses.replace(PRIVATE, expected_batch_size=1, dataset_size=8)
    f = private(losses.cross_entropy)
    k = jax.random.split(jax.random.key(3), 3)
    x = 10 * jax.random.normal(k[0], (pairs, rows, 4))
    x = x * jnp.exp(jax.random.uniform(k[1], (pairs, rows, 1), minval=-14, maxval=14))
    y = jax.random.randint(k[2], (pairs, rows), 0, 3)
    key, model = jax.random.key(4), model_of()

    def difference(x, y):
        without = jnp.ones(rows).at[rows - 1].set(0)
        both = [f(model, x, y, key=key, weight=w)[0] for w in (jnp.ones(rows), without)]
        return jax.tree.map(jnp.subtract, *(eqx.filter(g, eqx.is_array) for g in both))

    leaves = jax.tree.leaves(eqx.filter_jit(jax.vmap(difference))(x, y))
    square = sum(
        np.square(np.asarray(g, np.float64)).reshape(pairs, -1).sum(1) for g in leaves
    )
    assert np.sqrt(square).max() <= 0.5
    assert np.sqrt(square).max() > 0.499


def test_a_weight_above_one_counts_once_and_nan_padding_not_at_all():
    f = jax.jit(PRIVATE(lambda w, x: w * x))
    key = jax.random.key(5)
    weight = jnp.array([1.0, 7.0, 0.0])
    got, _ = f(jnp.array(1.0), jnp.array([0.1, 0.2, jnp.nan]), key=key, weight=weight)
    wanted, _ = f(jnp.array(1.0), jnp.array([0.1, 0.2]), key=key)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_gradient_is_the_clipped_sum_and_the_noise_whatever_the_chunks():
    model, key = model_of(), jax.random.key(6)
    weight = jnp.ones(20).at[13:].set(0)
    all_at_once = None
    for chunk_size in (20, 4, 3):
        private = dataclasses.replace(PRIVATE, chunk_size=chunk_size)
        f = eqx.filter_jit(private(losses.cross_entropy))
        grads, stats = f(model, X[:20], Y[:20], key=key, weight=weight)
        all_at_once = all_at_once or (grads, stats)
        for a, b in zip(
            jax.tree.leaves((grads, stats)), jax.tree.leaves(all_at_once), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


class TestPoisson:
    def test_examples_are_in_as_often_as_the_rate_says_and_independently(self):
        n, expected, epochs = 20, 5, 2500
        sampled = Poisson(n, expected, jax.random.key(7))
        inside = np.zeros((epochs * sampled.steps, n))
        for epoch in range(epochs):
            order = sampled.order(epoch).reshape(sampled.steps, -1)
            for i, count in enumerate(sampled.counts(epoch)):
                drawn = order[i, :count]
                assert len(set(drawn)) == count
                inside[epoch * sampled.steps + i, drawn] = 1
        draws, q = len(inside), expected / n
        error = np.sqrt(q * (1 - q) / draws)
        assert np.abs(inside.mean(0) - q).max() < 4.5 * error
        # Between examples, and from one step to the next, nothing is correlated.
        z = (inside - q) / np.sqrt(q * (1 - q))
        between = z.T @ z / draws - np.diag((z**2).mean(0))
        assert np.abs(between).max() < 4.5 / np.sqrt(draws)
        assert np.abs(z[1:].T @ z[:-1] / draws).max() < 4.5 / np.sqrt(draws)
        # So the size of a draw is binomial.
        size = inside.sum(1)
        assert abs(size.var() - n * q * (1 - q)) < 0.2

    def test_the_capacity_bounds_the_binomial_tail(self):
        scipy_stats = pytest.importorskip("scipy.stats")
        for n, expected in [(60_000, 256), (60_000, 4096), (1000, 0.1), (100, 99)]:
            width = Poisson(n, expected, jax.random.key(0)).width
            assert scipy_stats.binom.logsf(width, n, expected / n) <= np.log(OVERFLOW)
            assert width <= n

    def test_draws_are_a_function_of_the_key_and_the_epoch(self):
        a, b = (Poisson(50, 5, jax.random.key(8)) for _ in range(2))
        b.order(1)
        np.testing.assert_array_equal(a.order(0), b.order(0))
        assert a.counts(0).tolist() != a.counts(1).tolist()

    def test_mostly_empty_draws_train_on(self):
        private = dataclasses.replace(PRIVATE, expected_batch_size=0.25)
        result = run(gradient=private, epochs=1)
        counts = private.order(jax.random.key(1)).counts(0)
        assert np.mean(counts == 0) > 0.7
        assert result.state.step == 240  # a second trace would be a warning
        for leaf in jax.tree.leaves(eqx.filter(result.model, eqx.is_array)):
            assert np.all(np.isfinite(leaf))
        np.testing.assert_array_equal(result.history["step_loss"][counts == 0], 0)


class TestFit:
    def test_a_run_is_its_steps_by_hand(self):
        result = run(epochs=1)
        step = eqx.filter_jit(make_step(losses.cross_entropy, SGD, gradient=PRIVATE))
        state = init_state(model_of(), SGD, key=jax.random.key(1))
        sampled = Poisson(N, 6, jax.random.key(1))
        order = sampled.order(0).reshape(sampled.steps, -1)
        for index, count in zip(order, sampled.counts(0), strict=True):
            weight = (np.arange(sampled.width) < count).astype(np.float32)
            state, _ = step(state, data.Batch((X[index], Y[index]), weight))
        for a, b in zip(
            jax.tree.leaves(eqx.filter(state.model, eqx.is_array)),
            jax.tree.leaves(eqx.filter(result.model, eqx.is_array)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("shard_parameters", [False, True])
    def test_on_a_mesh_it_is_the_run_of_one_device(self, shard_parameters):
        mesh = make_mesh(fsdp=2) if shard_parameters else make_mesh()
        spread = run(epochs=1, mesh=mesh, shard_parameters=shard_parameters)
        for a, b in zip(
            jax.tree.leaves(eqx.filter(spread.model, eqx.is_array)),
            jax.tree.leaves(eqx.filter(run(epochs=1).model, eqx.is_array)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    def test_epsilon_is_in_the_history_and_a_resumed_run_goes_on(self, tmp_path):
        whole = run()
        np.testing.assert_allclose(
            whole.history["epsilon"], [PRIVATE.epsilon(10), PRIVATE.epsilon(20)]
        )
        run(epochs=1, checkpoint=Checkpoints(tmp_path))
        resumed = run(checkpoint=Checkpoints(tmp_path))
        assert eqx.tree_equal(resumed.state, whole.state)
        np.testing.assert_array_equal(
            resumed.history["epsilon"], whole.history["epsilon"]
        )
        other = dataclasses.replace(PRIVATE, noise_multiplier=0.9)
        with pytest.raises(ValueError, match=r"has privacy .* and this call has"):
            run(gradient=other, checkpoint=Checkpoints(tmp_path))
        with pytest.raises(ValueError, match=r"has privacy .* this call has None"):
            run(gradient=mean_grad, batch_size=6, checkpoint=Checkpoints(tmp_path))

    def test_the_bar_shows_epsilon(self, capfd, monkeypatch):
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        run(progress=True)
        assert f"epsilon={PRIVATE.epsilon(20):.4f}" in capfd.readouterr().err

    def test_arrays_mapped_from_a_file_are_sampled_alike(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        a, b = run(epochs=1), run(epochs=1, data=(mapped, Y))
        np.testing.assert_allclose(
            a.history["step_loss"], b.history["step_loss"], rtol=1e-5
        )

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"data": [(X, Y)]}, "how a stream draws its own is unknown"),
            ({"data": (X[:7], Y[:7])}, "dataset_size 60"),
            ({"batch_size": 7}, "leave out batch_size="),
            ({"gradient": functools.partial(PRIVATE)}, "give the object itself"),
            ({"callbacks": [EarlyStopping("loss", patience=1)]}, "without noise"),
            ({"checkpoint": Checkpoints("x", best="loss")}, "without noise"),
            (
                {"model": Ensemble([model_of(), model_of()])},
                "would get the same noise",
            ),
            (
                {"optimizer": optax.chain(SGD, optax.contrib.reduce_on_plateau())},
                "with a private gradient none that needs the loss",
            ),
        ],
    )
    def test_what_breaks_the_guarantee_is_refused(self, changed, message):
        with pytest.raises(ValueError, match=message):
            run(**changed)

    def test_batch_norm_is_refused_by_name(self):
        class Normed(eqx.Module):
            norm: eqx.nn.BatchNorm
            state: eqx.nn.State

            def __init__(self):
                self.norm, self.state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
                    4, "batch", mode="batch"
                )

            def __call__(self, x):
                return self.norm(x, self.state)[0]

        with pytest.raises(ValueError, match=r"couples .*model.norm \(BatchNorm\)"):
            run(model=Normed(), loss=losses.cross_entropy)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"l2_clip_norm": 0}, "l2_clip_norm must be a number"),
        ({"l2_clip_norm": np.inf}, "l2_clip_norm must be a number"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a number"),
        ({"delta": 1.0}, "delta must be a number"),
        ({"expected_batch_size": 61}, "at most dataset_size, 60"),
        ({"sampling": "shuffle"}, "sampling must be 'poisson'"),
        ({"sampling": "shuffled", "expected_batch_size": 2.5}, "must be an integer"),
        ({"accountant": "gdp"}, "'pld' or 'rdp'"),
    ],
)
def test_settings_out_of_range_are_value_errors(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PRIVATE, **changed)


def test_a_gradient_without_a_key_is_a_value_error():
    with pytest.raises(ValueError, match="DPSGD needs a random key"):
        PRIVATE(losses.cross_entropy)(model_of(), X, Y)
