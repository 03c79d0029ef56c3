"""Sums that go over to CLU's collections and back compute what they computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import evaluate, metrics
from eqx_mlp.interop.clu import from_clu, to_clu

theirs = pytest.importorskip("clu.metrics")

X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = (np.arange(20) % 3).astype(np.int32)
OURS = {
    "accuracy": metrics.accuracy,
    "confusion": metrics.confusion_matrix,
    "recall": lambda model, x, y: metrics.Metric(
        jax.nn.one_hot(y, 3) * (jnp.argmax(model(x)) == y), jax.nn.one_hot(y, 3)
    ),
}


@pytest.fixture(autouse=True)
def its_own_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def logits(x):
    return x


def sums(rows):
    return {
        name: metrics.sum_metric(lambda x, y, m=metric: m(logits, x, y))(
            X[rows], Y[rows]
        )
        for name, metric in OURS.items()
    }


def test_metrics_merged_in_clu_are_those_of_evaluate():
    @jax.jit
    def added(a, b):
        return a.merge(to_clu(b))

    first, second = sums(slice(0, 7)), sums(slice(7, 20))
    collection = added(to_clu(first), second)
    # The class is the same each time, or this would be compiled again.
    added(collection, second)
    assert added._cache_size() == 1
    want = evaluate(logits, (X, Y), metrics=OURS)
    got = collection.compute()
    assert got.keys() == want.keys()
    back = from_clu(collection)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6)
        np.testing.assert_allclose(back[name].compute(), want[name], rtol=1e-6)
    assert from_clu(collection.empty())["confusion"].compute() == 0


def test_clus_metrics_go_into_evaluate():
    collection = theirs.Collection.create(
        accuracy=theirs.Accuracy, largest=theirs.Average.from_output("largest")
    )
    outputs = dict(logits=X, labels=Y, largest=X.max(axis=1))
    want = collection.single_from_model_output(**outputs).compute()

    def one(model, x, y):
        return from_clu(
            theirs.Accuracy.from_model_output(logits=model(x)[None], labels=y[None])
        )

    got = evaluate(logits, (X, Y), metrics={"accuracy": one}, batch_size=8)
    np.testing.assert_allclose(got["accuracy"], want["accuracy"], rtol=1e-6)
    back = from_clu(collection.single_from_model_output(**outputs))
    for name in ("accuracy", "largest"):
        np.testing.assert_allclose(back[name].compute(), want[name], rtol=1e-6)


def test_what_does_not_add_up_is_refused():
    std = theirs.Collection.create(spread=theirs.Std.from_output("x"))
    with pytest.raises(TypeError, match=r"what adds up.* spread is of type FromOutput"):
        from_clu(std.single_from_model_output(x=X))
    with pytest.raises(TypeError, match=r"to_clu takes names and the Metrics .* got 3"):
        to_clu(3)
    with pytest.raises(ValueError, match=r"such as top_2, got 'top 2'"):
        to_clu({"top 2": sums(slice(3))["accuracy"]})
