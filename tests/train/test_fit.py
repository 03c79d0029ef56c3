"""`fit` against steps done by hand, and what it refuses."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    MLP,
    Callback,
    data,
    evaluate,
    fit,
    init_state,
    losses,
    make_step,
    metrics,
    per_example_grad,
    predict,
)

OPTIMIZER = optax.adam(1e-2)


def toy(getkey, n=22):
    x = jax.random.randint(getkey(), (n, 2, 3), 0, 256).astype(jnp.uint8)
    return x, jnp.arange(n) % 3


def options(**changed):
    return {
        "loss": losses.cross_entropy,
        "optimizer": OPTIMIZER,
        "key": jax.random.key(5),
        "epochs": 2,
        "batch_size": 4,
        "transform": data.image_to_vector,
        "progress": False,
    } | changed


def model_of(dropout_rate=0.0):
    return MLP(6, 3, (5,), dropout_rate=dropout_rate, key=jax.random.key(3))


def equal(a, b):
    a, b = (jax.tree.leaves(eqx.filter(t, eqx.is_array)) for t in (a, b))
    return all(
        np.array_equal(jax.random.key_data(x), jax.random.key_data(y))
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else np.array_equal(x, y)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("n", [20, 22])
def test_fit_equals_the_steps_done_by_hand(n, getkey):
    x, y = toy(getkey, n)
    model = model_of(dropout_rate=0.5)
    state, history = fit(
        model, (x, y), **options(metrics={"accuracy": metrics.accuracy})
    )
    by_hand = init_state(model, OPTIMIZER, key=jax.random.key(5))
    step = eqx.filter_jit(
        make_step(
            losses.cross_entropy,
            OPTIMIZER,
            transform=data.image_to_vector,
            metrics={"accuracy": metrics.accuracy},
        )
    )
    step_loss, per_epoch = [], []
    for epoch in range(2):
        order = data.epoch_permutation(jax.random.key(5), epoch, n)
        sums = None
        for start in range(0, n, 4):
            rows = order[start : start + 4]
            # Filling up the last batch keeps its shape; the filling has weight 0.
            filled = np.append(rows, order[: 4 - len(rows)])
            weight = jnp.arange(4) < len(rows)
            batch = data.Batch((x[filled], y[filled]), weight.astype(jnp.float32))
            by_hand, measured = step(by_hand, batch)
            step_loss.append(float(measured["loss"].compute()))
            sums = (
                measured
                if sums is None
                else {name: sums[name].merge(measured[name]) for name in sums}
            )
        per_epoch.append({name: float(m.compute()) for name, m in sums.items()})
    assert state.step == by_hand.step == 2 * -(-n // 4)
    np.testing.assert_allclose(history["step_loss"], step_loss, rtol=1e-5)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(
            history[name], [e[name] for e in per_epoch], rtol=1e-5
        )
    for a, b in zip(
        jax.tree.leaves(eqx.filter(state.model, eqx.is_array)),
        jax.tree.leaves(eqx.filter(by_hand.model, eqx.is_array)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_run_that_goes_on_from_its_state_is_the_run_that_never_stopped(getkey):
    arrays = toy(getkey)
    model = model_of(dropout_rate=0.5)
    whole = fit(model, arrays, **options(epochs=3))
    part = fit(model, arrays, **options(epochs=1))
    rest = fit(part.state, arrays, **options(epochs=3, key=None))
    assert equal(whole.state, rest.state)
    np.testing.assert_array_equal(
        whole.history["step_loss"],
        np.append(part.history["step_loss"], rest.history["step_loss"]),
    )


def test_a_state_from_the_middle_of_an_epoch_goes_on_from_there(getkey):
    x, y = toy(getkey)
    whole = fit(model_of(), (x, y), **options(epochs=1))
    state = init_state(model_of(), OPTIMIZER, key=jax.random.key(5))
    step = make_step(losses.cross_entropy, OPTIMIZER, transform=data.image_to_vector)
    order = data.epoch_permutation(jax.random.key(5), 0, len(x))
    for start in (0, 4):
        rows = order[start : start + 4]
        state, _ = step(state, (x[rows], y[rows]))
    rest = fit(state, (x, y), **options(epochs=1, key=None))
    assert rest.state.step == whole.state.step
    np.testing.assert_allclose(
        rest.history["step_loss"], whole.history["step_loss"][2:], rtol=1e-5
    )


def test_fit_compiles_once_and_leaves_the_callers_arrays_valid(getkey):
    traces = 0

    def loss(model, x, label):
        nonlocal traces
        traces += 1
        return losses.cross_entropy(model, x, label)

    arrays = toy(getkey)
    model = model_of()
    before = [np.asarray(x).copy() for x in jax.tree.leaves(model) if eqx.is_array(x)]
    fit(model, arrays, **options(loss=loss, epochs=3))
    assert traces == 1
    # Another run of the same parts finds the program that was compiled.
    fit(model, arrays, **options(loss=loss, epochs=2))
    assert traces == 1
    after = [np.asarray(x) for x in jax.tree.leaves(model) if eqx.is_array(x)]
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_epoch_visits_every_example_once_in_an_order_of_its_own(getkey):
    seen = []

    class Look(Callback):
        def on_epoch(self, state, history):
            seen.append(np.asarray(state.model["visits"]).copy())

    # The gradient of this loss counts visits: -1 for the example's own entry.
    def loss(model, index):
        return -jnp.sum(jnp.where(jnp.arange(10) == index, model["visits"], 0))

    result = fit(
        {"visits": jnp.zeros(10)},
        (jnp.arange(10),),
        **options(
            loss=loss,
            optimizer=optax.sgd(1.0),
            batch_size=1,
            epochs=3,
            transform=None,
            callbacks=[Look()],
        ),
    )
    np.testing.assert_array_equal(seen, [np.ones(10), 2 * np.ones(10), 3 * np.ones(10)])
    orders = [data.epoch_permutation(jax.random.key(5), e, 10) for e in range(3)]
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert result.state.step == 30


def test_validation_is_without_dropout_and_over_every_example(getkey):
    x, y = toy(getkey)
    state, history = fit(
        model_of(dropout_rate=0.5),
        (x, y),
        **options(validation=(x[:7], y[:7]), metrics={"accuracy": metrics.accuracy}),
    )
    model = eqx.nn.inference_mode(state.model)
    values = [
        losses.cross_entropy(model, data.image_to_vector(a), b)
        for a, b in zip(x[:7], y[:7], strict=True)
    ]
    np.testing.assert_allclose(history["val_loss"][-1], np.mean(values), rtol=1e-5)
    logits = [model(data.image_to_vector(a)) for a in x[:7]]
    right = np.mean(np.argmax(logits, axis=1) == np.asarray(y[:7]))
    np.testing.assert_allclose(history["val_accuracy"][-1], right, rtol=1e-6)
    assert history["val_loss"].shape == history["seconds"].shape == (2,)
    assert history["step_loss"].shape == (12,)


def test_callbacks_see_the_run_and_can_end_it(getkey):
    calls = []

    class Stop(Callback):
        def on_start(self, state, history):
            calls.append(("start", int(state.step)))

        def on_epoch(self, state, history):
            calls.append((len(history["loss"]), int(state.step)))
            return len(history["loss"]) == 2

        def on_end(self, state, history):
            calls.append(("end", int(state.step)))

    result = fit(model_of(), toy(getkey), **options(epochs=9, callbacks=[Stop()]))
    assert calls == [("start", 0), (1, 6), (2, 12), ("end", 12)]
    assert result.history["loss"].shape == (2,)


def test_predictions_come_in_order_and_without_dropout(getkey):
    x, _ = toy(getkey)
    model = model_of(dropout_rate=0.9)
    wanted = [model(data.image_to_vector(a), inference=True) for a in x]
    for batch_size in (1, 4, 100):
        got = predict(model, x, batch_size=batch_size, transform=data.image_to_vector)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 22, 1000])
def test_evaluation_does_not_depend_on_the_batch_size(batch_size, getkey):
    x, y = toy(getkey)
    model = model_of()
    got = evaluate(
        model,
        (x, y),
        metrics={"accuracy": metrics.accuracy, "confusion": metrics.confusion_matrix},
        batch_size=batch_size,
        transform=data.image_to_vector,
    )
    predicted = np.argmax([model(data.image_to_vector(a)) for a in x], axis=1)
    confusion = np.zeros((3, 3))
    np.add.at(confusion, (np.asarray(y), predicted), 1)
    np.testing.assert_array_equal(got["confusion"], confusion)
    assert got["accuracy"] == pytest.approx(np.trace(confusion) / 22)


def test_two_small_learning_problems_are_learnt(mnist):
    x, y = mnist.train
    result = fit(
        MLP(784, 10, (32,), key=jax.random.key(0)),
        (x[:2000], y[:2000]),
        **options(
            epochs=5,
            batch_size=64,
            validation=(x[2000:3000], y[2000:3000]),
            metrics={"accuracy": metrics.accuracy},
        ),
    )
    assert result.history["val_accuracy"][-1] > 0.85


class TestBadInput:
    def bad(self, match, getkey, arrays=None, model=None, **changed):
        arrays = toy(getkey) if arrays is None else arrays
        model = model_of() if model is None else model
        with pytest.raises(ValueError, match=match):
            fit(model, arrays, **options(**changed))

    @pytest.mark.parametrize("batch_size", [0, -4, 2.5, True, None])
    def test_batch_size(self, batch_size, getkey):
        self.bad("batch_size must be an integer >= 1", getkey, batch_size=batch_size)

    @pytest.mark.parametrize("epochs", [0, -1])
    def test_epochs(self, epochs, getkey):
        self.bad("epochs must be an integer >= 1", getkey, epochs=epochs)

    def test_no_key(self, getkey):
        self.bad("random key", getkey, key=None)

    def test_a_key_beside_a_state(self, getkey):
        state = init_state(model_of(), OPTIMIZER, key=getkey())
        self.bad("brings the key", getkey, model=state)

    def test_different_lengths(self, getkey):
        x, y = toy(getkey)
        self.bad("argument 0: 22, argument 1: 21", getkey, arrays=(x, y[:-1]))

    def test_zero_examples(self, getkey):
        x, y = toy(getkey)
        self.bad("zero examples", getkey, arrays=(x[:0], y[:0]))

    def test_an_array_instead_of_a_tuple(self, getkey):
        self.bad("tuple of the arrays", getkey, arrays=toy(getkey)[0])

    def test_images_not_flattened(self, getkey):
        x, y = toy(getkey)
        arrays = (x.astype(jnp.float32), y)
        self.bad(r"flatten it first", getkey, arrays=arrays, transform=None)

    def test_bytes_not_cast(self, getkey):
        x, y = toy(getkey)
        arrays = (x.reshape(22, 6), y)
        self.bad("cast them first", getkey, arrays=arrays, transform=None)

    def test_float_labels(self, getkey):
        x, y = toy(getkey)
        arrays = (x, y.astype(jnp.float32))
        self.bad("got dtype float32", getkey, arrays=arrays)

    def test_one_hot_labels(self, getkey):
        x, y = toy(getkey)
        arrays = (x, jax.nn.one_hot(y, 3, dtype=jnp.int32))
        self.bad(r"one label of shape \(\), got shape \(3,\)", getkey, arrays=arrays)

    @pytest.mark.parametrize("label", [3, -1])
    def test_a_label_out_of_range(self, label, getkey):
        x, y = toy(getkey)
        arrays = (x, y.at[17].set(label))
        self.bad(rf"must be in 0\.\.2, got {label}", getkey, arrays=arrays)

    @pytest.mark.parametrize("label", [3, -1])
    @pytest.mark.parametrize(
        "metric",
        [
            losses.cross_entropy,
            metrics.accuracy,
            metrics.top_k(2),
            metrics.confusion_matrix,
        ],
    )
    def test_a_label_out_of_range_in_evaluation(self, label, metric, getkey):
        x, y = toy(getkey)
        with pytest.raises(ValueError, match=rf"must be in 0\.\.2, got {label}"):
            evaluate(
                model_of(),
                (x, y.at[17].set(label)),
                metrics={"metric": metric},
                transform=data.image_to_vector,
            )

    def test_metrics_that_are_not_functions(self, getkey):
        self.bad("metrics must map names", getkey, metrics={"accuracy": 0.5})


def test_a_loss_that_diverges_is_reported_as_it_is(getkey):
    result = fit(
        jnp.array(1.0),
        (jnp.ones(8),),
        **options(
            loss=lambda w, x: jnp.square(w * x) * jnp.square(w),
            optimizer=optax.sgd(1e6),
            transform=None,
        ),
    )
    assert not np.isfinite(result.history["loss"][-1])


def test_the_bar_is_silent_when_not_on_a_terminal(getkey, capfd):
    fit(model_of(), toy(getkey), **options(progress=True))
    assert capfd.readouterr().err == ""


def test_the_bar_shows_epoch_loss_and_speed_on_a_terminal(getkey, capfd, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    measures = {
        "accuracy": metrics.accuracy,
        "confusion": metrics.confusion_matrix,
        # No example of class 2 may have come by when the bar first moves.
        "recall": lambda model, x, label: metrics.Metric(
            jnp.float32(label == 2), jnp.float32(label == 2)
        ),
    }
    fit(model_of(), toy(getkey), **options(progress=True, metrics=measures))
    shown = capfd.readouterr().err
    for part in ("epoch 2/2", "loss=", "accuracy=", "examples/s", "44.0/44.0"):
        assert part in shown
    fit(model_of(), toy(getkey), **options(progress=False))
    assert capfd.readouterr().err == ""


class TestWhatCannotBeMeant:
    def refused(self, match, getkey, model=None, **changed):
        model = model_of() if model is None else model
        with pytest.raises(ValueError, match=match):
            fit(model, toy(getkey), **options(**changed))

    def test_a_state_of_another_optimizer(self, getkey):
        state = init_state(model_of(), OPTIMIZER, key=getkey())
        match = r"another optimizer.*opt_state\[0\].* expected nothing, got an array"
        self.refused(match, getkey, model=state, key=None, optimizer=optax.sgd(0.1))

    def test_a_gradient_that_gives_no_batch_gradient(self, getkey):
        self.refused(
            "gradient= must be one like mean_grad", getkey, gradient=per_example_grad
        )

    def test_an_optimizer_that_calls_the_loss(self, getkey):
        self.refused(r"optax\.lbfgs, do not fit", getkey, optimizer=optax.lbfgs())

    @pytest.mark.parametrize("callbacks", [Callback(), [print]])
    def test_callbacks_that_are_none(self, callbacks, getkey):
        self.refused("list of eqx_mlp.Callback", getkey, callbacks=callbacks)


def test_a_loss_that_draws_is_validated_with_a_key_of_each_example():
    def noisy(w, x, *, key):
        return w * x + jax.random.normal(key)

    data_ = (jnp.arange(5.0),)
    result = fit(
        jnp.array(0.0),
        data_,
        **options(
            loss=noisy, optimizer=optax.sgd(0.0), validation=data_, transform=None
        ),
    )
    key = jax.random.key(5)
    draws = [jax.random.normal(jax.random.fold_in(key, i)) for i in range(5)]
    np.testing.assert_allclose(
        result.history["val_loss"], 2 * [np.mean(draws)], rtol=1e-5
    )


def test_a_run_that_has_nothing_left_to_do_has_an_empty_history(getkey):
    arrays = toy(getkey)
    done = fit(model_of(), arrays, **options(epochs=1))
    again = fit(done.state, arrays, **options(epochs=1, key=None, validation=arrays))
    assert again.history["loss"].shape == again.history["val_loss"].shape == (0,)
    assert again.state.step == done.state.step


def test_metrics_come_back_in_the_order_they_were_given(getkey):
    measures = {"z": losses.cross_entropy, "a": metrics.accuracy}
    got = evaluate(
        model_of(), toy(getkey), metrics=measures, transform=data.image_to_vector
    )
    assert list(got) == ["z", "a"]
