"""`fit` on streams of batches and on mapped files, against updates done by hand."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqx_mlp import (
    Callback,
    CheckFinite,
    Checkpoints,
    NonFiniteError,
    StreamError,
    data,
    fit,
    losses,
)
from eqx_mlp.train import _runner, _store

X = np.arange(10, dtype=np.float32) / 8
# Two batches of four and a smaller last one.
BATCHES = [(X[:4],), (X[4:8],), (X[8:],)]
traces = 0


def loss(w, x):
    global traces
    traces += 1
    return jnp.square(w - x)


SGD = optax.sgd(0.25)


def run(stream, model=0.0, **changed):
    options = {
        "loss": loss,
        "optimizer": SGD,
        "key": None if hasattr(model, "step") else jax.random.key(0),
        "progress": False,
    } | changed
    model = jnp.array(model) if isinstance(model, float) else model
    return fit(model, stream, **options)


def by_hand(batches, w=0.0):
    """The weight after each update, and the loss before it."""
    weights, loss_at = [], []
    for (x,) in batches:
        loss_at.append(np.mean((w - x) ** 2))
        w = w - 0.25 * 2 * (w - np.mean(x))
        weights.append(w)
    return weights, loss_at


def require_by_hand(result, batches):
    weights, loss_at = by_hand(batches)
    assert result.state.step == len(batches)
    np.testing.assert_allclose(result.model, weights[-1], rtol=1e-6)
    np.testing.assert_allclose(result.history["step_loss"], loss_at, rtol=1e-6)


class Loader:
    """What a PyTorch DataLoader that makes NumPy arrays looks like from outside."""

    def __len__(self):
        return len(BATCHES)

    def __iter__(self):
        return iter([list(batch) for batch in BATCHES])


def endless(step=0, drawn=None):
    for i in itertools.count(step):
        if drawn is not None:
            drawn.append(i)
        yield BATCHES[i % 2]


class Passes:
    """Begins each pass by a function of the updates before, three a pass."""

    def __init__(self, begin):
        self._begin, self._passes = begin, 0

    def __iter__(self):
        self._passes += 1
        return self._begin(3 * (self._passes - 1))


PASSES = {
    "list": BATCHES,
    "loader": Loader(),
    "batches": [data.Batch((jnp.asarray(x),)) for (x,) in BATCHES],
}


@pytest.mark.parametrize("kind", PASSES)
def test_each_epoch_is_a_pass_and_its_numbers_those_done_by_hand(kind):
    result = run(PASSES[kind], epochs=2, validation=(X,))
    require_by_hand(result, BATCHES * 2)
    weights, loss_at = by_hand(BATCHES * 2)
    # Means over examples: the last batch of a pass has half as many.
    mean = [np.average(loss_at[i : i + 3], weights=[4, 4, 2]) for i in (0, 3)]
    np.testing.assert_allclose(result.history["loss"], mean, rtol=1e-6)
    wanted = [np.mean((weights[i] - X) ** 2) for i in (2, 5)]
    np.testing.assert_allclose(result.history["val_loss"], wanted, rtol=1e-6)
    assert result.history["seconds"].shape == (2,)


def test_an_endless_stream_is_asked_for_the_steps_and_no_more():
    drawn = []
    result = run(endless(drawn=drawn), steps=3, epochs=2, batch_size=4)
    require_by_hand(result, (BATCHES[:2] * 3))
    assert result.history["loss"].shape == (2,)
    assert drawn == list(range(6))
    assert run(endless(), steps=5).history["loss"].shape == (1,)


def test_a_smaller_batch_is_padded_and_nothing_compiled_again():
    run(BATCHES[:1], epochs=1)
    before = traces
    require_by_hand(run(BATCHES, epochs=2), BATCHES * 2)
    assert traces == before


def test_weights_of_a_batch_count():
    batch = data.Batch((X[:4],), np.array([1, 0, 2, 1], np.float32))
    result = run([batch], epochs=1)
    mean = np.average(X[:4], weights=[1, 0, 2, 1])
    np.testing.assert_allclose(result.model, 0.5 * mean, rtol=1e-6)


def test_a_stream_may_write_each_batch_into_the_same_memory():
    def reusing(batches):
        memory = np.empty(4, np.float32)
        for (x,) in batches:
            memory[:] = x
            yield (memory,)
        memory[:] = 0

    require_by_hand(run(reusing(BATCHES[:2] * 5), epochs=1), BATCHES[:2] * 5)
    # Looked at again after the call, when the memory holds something else.
    bad = (np.full(4, np.nan, np.float32),)
    with pytest.raises(NonFiniteError, match="update 3: the loss is nan"):
        run(reusing([*BATCHES[:2], bad]), epochs=1, callbacks=[CheckFinite()])


def test_one_batch_is_ahead_and_callbacks_and_logs_are_as_in_memory(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(_runner, "CALL_SECONDS", 1e-9)  # a step a call
    drawn, ahead = [], []

    class Look(Callback):
        def on_call(self, state, call):
            ahead.append(len(drawn) - int(state.step))

        def on_epoch(self, state, history):
            return len(history["loss"]) == 2

    log = tmp_path / "log"
    result = run(
        endless(drawn=drawn),
        steps=4,
        epochs=9,
        callbacks=[Look()],
        logger=log,
        log_every=3,
    )
    assert result.state.step == 8
    assert ahead == [1, 1, 1, 0] * 2
    rows = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert rows == [3, 4, 6, 8]


def failing(at, how):
    """Goes wrong at its batch number `at`."""
    yield from BATCHES[:1] * at
    yield from how()


def raises():
    raise OSError("the disk is gone")
    yield


BAD = {
    "early": (lambda: iter(()), "has ended, and an epoch has 6 batches"),
    "raises": (raises, r"raised OSError\('the disk is gone'\)"),
    "shape": (
        lambda: [(np.ones((4, 2), np.float32),)],
        r"it holds \[0\] float32\[batch, 2\], and the first held \[0\] float32\[batch",
    ),
    "dtype": (lambda: [(X[:4].astype(np.int32),)], r"it holds \[0\] int32\[batch\]"),
    "rows": (lambda: [(X[:5],)], "it has 5 examples, .* 1 to 4"),
    "none": (lambda: [(X[:0],)], "it has 0 examples"),
    "dict": (lambda: [{"x": X[:4]}], "must be a tuple of the arrays.* got dict"),
    "array": (lambda: [X[:4]], "must be a tuple of the arrays.* got ndarray"),
    "lengths": (lambda: [(X[:4], X[:3])], "argument 0: 4, argument 1: 3"),
    "text": (lambda: [(np.array(["a"] * 4),)], "it holds <U1, where numbers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_stream_that_breaks_is_an_error_with_the_batch_and_the_state_so_far(kind):
    how, what = BAD[kind]
    match = rf"batch 2 of epoch 2, for update 8: .*{what}"
    with pytest.raises(StreamError, match=match) as caught:
        run(failing(7, how), steps=6, epochs=2, batch_size=4)
    state = caught.value.state
    assert state.step == 7
    weights, _ = by_hand(BATCHES[:1] * 7)
    np.testing.assert_allclose(state.model, weights[-1], rtol=1e-6)
    if kind == "raises":
        assert isinstance(caught.value.__cause__, OSError)


def test_passes_must_be_alike_and_not_empty():
    def passes(*counts):
        counts = iter(counts)
        return Passes(lambda step: iter(BATCHES[:1] * next(counts)))

    with pytest.raises(StreamError, match="batch 3 of epoch 2, for update 5"):
        run(passes(2, 3), epochs=2)
    with pytest.raises(StreamError, match=r"batch 2 of epoch 2.*has 2 batches"):
        run(passes(2, 1), epochs=2)
    with pytest.raises(StreamError, match=r"batch 1 of epoch 1.*is empty"):
        run([], epochs=1)
    with pytest.raises(StreamError, match=r"batch 1 of epoch 2.*only once") as caught:
        run(iter(BATCHES), epochs=2)
    assert caught.value.state.step == 3


def breaking(at, stream):
    """`stream`, which raises before it gives the batch of update `at`."""

    def from_step(step):
        items = stream(step)
        for i in itertools.count(step):
            if i == at:
                raise OSError
            item = next(items, None)
            if item is None:
                return
            yield item

    return from_step


STREAMS = {
    # How it is begun at a step, and whether it is given as that function.
    "list": (lambda step: iter(BATCHES), {"epochs": 3}, False),
    "function": (endless, {"epochs": 3, "steps": 3}, True),
    "endless": (lambda step: endless(), {"epochs": 3, "steps": 3}, False),
}


@pytest.mark.parametrize("at", [1, 3, 5])
@pytest.mark.parametrize("kind", STREAMS)
def test_a_run_whose_stream_broke_goes_on_with_the_same_call(kind, at, tmp_path):
    stream, options, by_step = STREAMS[kind]

    def given(begin):
        return begin if by_step else Passes(begin)

    checkpoint = Checkpoints(tmp_path, every=100)
    options = {"batch_size": 4, "validation": (X,)} | options
    whole = run(given(stream), **options)
    with pytest.raises(StreamError, match=f"for update {at + 1}:"):
        run(given(breaking(at, stream)), checkpoint=checkpoint, **options)
    assert list(_store.checkpoints_in(tmp_path)) == [at]
    got = run(given(stream), checkpoint=checkpoint, **options)
    assert got.state.step == whole.state.step == 9
    np.testing.assert_array_equal(got.model, whole.model)
    for name in ("step_loss", "loss", "val_loss"):
        np.testing.assert_array_equal(got.history[name], whole.history[name])


def test_a_state_given_goes_on_in_the_pass_it_is_in_and_takes_a_stream_as_it_comes():
    state = run(endless(), steps=4).state
    weights, _ = by_hand(BATCHES[:2] * 2 + BATCHES[1:])
    got = run(Loader(), state, epochs=2).model
    np.testing.assert_allclose(got, weights[-1], rtol=1e-6)
    with pytest.raises(ValueError, match="does not say how many batches a pass has"):
        run(iter(BATCHES), state, epochs=2)
    state = run(endless(), steps=3).state
    weights, _ = by_hand([*BATCHES[:2], BATCHES[0]] * 2)
    got = run(endless(), state, steps=6).model
    np.testing.assert_allclose(got, weights[-1], rtol=1e-6)


@pytest.fixture
def mapped(tmp_path):
    def save(x, name):
        np.save(tmp_path / name, x)
        return np.load(tmp_path / name, mmap_mode="r")

    return save


@pytest.mark.parametrize("batch_size", [4, 5, 100])
def test_mapped_arrays_are_read_in_the_order_of_those_in_memory(batch_size, mapped):
    options = {"epochs": 3, "batch_size": batch_size, "validation": (X,)}
    wanted = run((X,), **options)
    got = run((mapped(X, "x.npy"),), **options)
    assert got.state.step == wanted.state.step
    for name in ("step_loss", "loss", "val_loss"):
        np.testing.assert_allclose(got.history[name], wanted.history[name], rtol=1e-5)
    part = run((mapped(X, "x.npy"),), **options | {"epochs": 1}).state
    rest = run((mapped(X, "x.npy"),), part, **options)
    np.testing.assert_array_equal(rest.model, got.model)


def test_mapped_arrays_are_never_whole_on_the_device(mapped):
    sizes = []

    class Look(Callback):
        def on_call(self, state, call):
            sizes.extend(x.size for x in jax.live_arrays())

    x = mapped(np.ones(12345, np.float32), "x.npy")
    run((x,), epochs=1, batch_size=5000, callbacks=[Look()])
    assert 5000 in sizes
    assert 12345 not in sizes


def test_an_update_that_is_not_finite_is_found_on_a_stream():
    batches = [*BATCHES[:2], (np.array([1, np.nan, 1, 1], np.float32),), BATCHES[0]]
    with pytest.raises(NonFiniteError, match="update 3: the loss is nan") as caught:
        run(batches, epochs=1, callbacks=[CheckFinite()])
    weights, _ = by_hand(BATCHES[:2])
    np.testing.assert_allclose(caught.value.state.model, weights[-1], rtol=1e-6)


def test_the_loss_says_what_is_wrong_with_a_batch():
    labels = np.array([0, 1, 2, 1], np.int32)
    with pytest.raises(ValueError, match=r"must be in 0\.\.1, got 2"):
        run(
            [(X[:4], labels % 2), (X[:4], labels)],
            jnp.ones(2),
            loss=lambda w, x, y: losses.cross_entropy(lambda x: w * x, x, y),
            epochs=1,
        )


def test_the_loss_is_not_asked_about_padding():
    def inverse(w, x):
        if not isinstance(x, jax.core.Tracer) and x == 0:
            raise ValueError("x is 0")
        return w / x

    bad = np.full(3, np.nan, np.float32)
    assert np.isnan(run([(X[4:8],), (bad,)], loss=inverse, epochs=1).model)


@pytest.mark.parametrize(
    ("stream", "options", "match"),
    [
        (BATCHES, {}, "for a stream give epochs="),
        (endless, {"epochs": 2}, "for a function of the step give steps="),
        (BATCHES, {"epochs": 0}, "epochs must be an integer >= 1"),
        (BATCHES, {"steps": 2.5}, "steps must be an integer >= 1"),
        (BATCHES, {"epochs": 1, "batch_size": 0}, "batch_size must be an integer >= 1"),
        ((X,), {"epochs": 1, "steps": 2, "batch_size": 2}, "steps= is for streams"),
        ((X,), {"batch_size": 2}, "epochs must be an integer >= 1, got None"),
        ({"x": X}, {"epochs": 1, "batch_size": 2}, "must be a tuple of the arrays"),
        (3, {"epochs": 1, "batch_size": 2}, "must be a tuple of the arrays"),
    ],
)
def test_what_cannot_be_meant_is_refused(stream, options, match):
    with pytest.raises(ValueError, match=match):
        run(stream, **options)
