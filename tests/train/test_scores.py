"""Scores of every example of a data set, against formed gradients and by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_mlp import (
    MLP,
    Ensemble,
    el2n_scores,
    gradient_neighbors,
    grand_scores,
    influence,
    losses,
    map_examples,
    metrics,
    per_example_grad,
    rank_mislabelled,
)

METHODS = ("auto", "vmap")


def stored_to_input(x):
    """From what the data holds to what the model takes."""
    return x.astype(jnp.float32) / 8


OPTIONS = {"loss": losses.cross_entropy, "transform": stored_to_input}


@pytest.fixture(scope="module")
def models():
    return [MLP(3, 2, (4,), key=jax.random.key(i)) for i in range(2)]


@pytest.fixture(scope="module")
def stored():
    """Eleven examples: whole batches of 2 or 4 they are not."""
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, size=(11, 3)).astype(np.int8)
    return x, rng.integers(0, 2, size=11).astype(np.int32)


@pytest.fixture(scope="module")
def rows(models, stored):
    """Each model's gradients, materialised, one long row an example."""

    @eqx.filter_jit
    def grads(model, x, y):
        x = jax.vmap(stored_to_input)(x)
        return per_example_grad(losses.cross_entropy)(model, x, y)

    def flat(tree):
        leaves = [np.asarray(g, np.float64) for g in jax.tree.leaves(tree)]
        return np.concatenate([g.reshape(len(g), -1) for g in leaves], axis=1)

    return [flat(grads(model, *stored)) for model in models]


def test_el2n_by_hand():
    # Logits (0, log 3) are probabilities 1/4 and 3/4; (0, 0) are 1/2 and 1/2.
    data = (jnp.array([[0.0, np.log(3)], [0.0, 0.0]]), jnp.array([0, 1]))
    want = np.sqrt([2 * 0.75**2, 2 * 0.5**2])
    np.testing.assert_allclose(el2n_scores(lambda x: x, data), want, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_grand_is_the_norm_of_the_materialised_gradient(method, models, stored, rows):
    got = grand_scores(models[0], stored, method=method, batch_size=4, **OPTIONS)
    np.testing.assert_allclose(got, np.linalg.norm(rows[0], axis=1), rtol=1e-5)
    assert isinstance(got, np.ndarray)


def test_an_ensemble_has_the_scores_of_each_member(models, stored, rows):
    got = grand_scores(Ensemble(models), stored, batch_size=4, **OPTIONS)
    want = [np.linalg.norm(r, axis=1) for r in rows]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_influence_is_the_weighted_sum_of_products(method, models, stored, rows):
    test = tuple(x[3:8] for x in stored)
    got = influence(
        models,
        stored,
        test,
        learning_rates=[0.5, 2.0],
        method=method,
        batch_size=4,
        **OPTIONS,
    )
    want = sum(rate * r[3:8] @ r.T for rate, r in zip((0.5, 2.0), rows, strict=True))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_neighbors_are_the_most_similar_in_order(models, stored, rows):
    queries = tuple(x[:2] for x in stored)
    unit = rows[0] / np.linalg.norm(rows[0], axis=1, keepdims=True)
    for similarity, r in (("cosine", unit), ("dot", rows[0])):
        near = gradient_neighbors(
            models[0],
            stored,
            queries,
            k=3,
            similarity=similarity,
            batch_size=2,
            **OPTIONS,
        )
        products = r[:2] @ r.T
        want = -np.sort(-products, axis=1)[:, :3]
        np.testing.assert_allclose(near.similarity, want, rtol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(products, near.indices, axis=1), want, rtol=1e-5
        )
    # The nearest to each is itself, with cosine 1.
    cosines = gradient_neighbors(
        models[0], stored, queries, k=1, batch_size=2, **OPTIONS
    )
    np.testing.assert_allclose(cosines.similarity, 1, rtol=1e-5)


def test_mislabelled_examples_are_ranked_by_each_score(models, stored, rows):
    options = {"transform": stored_to_input, "batch_size": 4}
    x = stored_to_input(jnp.asarray(stored[0]))
    scores = {
        "grand": np.mean([np.linalg.norm(r, axis=1) for r in rows], axis=0),
        "self_influence": np.mean([(r**2).sum(axis=1) for r in rows], axis=0),
        "loss": 0,
        "margin": 0,
        "el2n": 0,
    }
    for model in models:
        logits = np.asarray(jax.vmap(model)(x), np.float64)
        own, other = (
            logits[np.arange(11), label] for label in (stored[1], 1 - stored[1])
        )
        wrong = 1 / (1 + np.exp(own - other))  # the probability of the other class
        scores["loss"] += -np.log1p(-wrong) / 2
        scores["margin"] += (other - own) / 2
        scores["el2n"] += np.sqrt(2) * wrong / 2
    for by, want in scores.items():
        ranking = rank_mislabelled(models, stored, by=by, **options)
        np.testing.assert_allclose(ranking.score, want, rtol=1e-4, atol=1e-6)
        assert ranking.order.tolist() == np.argsort(-ranking.score).tolist()


def test_a_margin_has_the_largest_other_logit():
    model = lambda x: x
    logits = jnp.array([1.0, 4.0, 2.5])
    assert [metrics.margin(model, logits, y).item() for y in range(3)] == [
        -3,
        1.5,
        -1.5,
    ]
    outside = jax.jit(lambda y: metrics.margin(model, logits, y))
    assert np.isnan(outside(3))
    with pytest.raises(ValueError, match=r"a label must be in 0\.\.2, got 3"):
        metrics.margin(model, logits, 3)


@pytest.mark.parametrize("n", [1, 3, 4, 32, 33, 67])
def test_results_come_in_order_whatever_the_batches(n, tmp_path):
    traces = []

    def f(w, x):
        traces.append(x.shape)
        return {"twice": w * x, "row": jnp.stack([x, -x], axis=1)}

    held = np.memmap(tmp_path / "x", np.float32, "w+", shape=(n,))
    held[:] = np.arange(n)
    for x in (held, jnp.arange(float(n))):
        got = map_examples(f, jnp.array(2.0), (x,), batch_size=2)
        assert got["twice"].tolist() == (2 * np.arange(n)).tolist()
        assert got["row"][:, 1].tolist() == (-np.arange(n)).tolist()
    # One program for blocks of all sizes: traced for shapes, and once to compile.
    assert traces == [(min(n, 2),)] * 2


def test_a_label_out_of_range_is_named_wherever_it_stands(models, stored):
    x, y = stored
    bad = (x, np.where(np.arange(11) == 9, 5, y).astype(np.int32))
    with pytest.raises(ValueError, match=r"in 0\.\.1, got 5"):
        el2n_scores(models[0], bad, transform=stored_to_input, batch_size=4)
    with pytest.raises(ValueError, match=r"in 0\.\.1, got 5"):
        grand_scores(models[0], bad, batch_size=4, **OPTIONS)
    with pytest.raises(ValueError, match=r"in 0\.\.1, got 5"):
        influence(models, stored, bad, batch_size=4, **OPTIONS)


def test_what_cannot_be_scored_is_refused(models, stored):
    model, loss = models[0], losses.cross_entropy
    with pytest.raises(ValueError, match="f must be a function of a model and a batch"):
        map_examples(None, model, stored)
    with pytest.raises(ValueError, match="must be a tuple of the arrays"):
        grand_scores(model, stored[0], loss=loss)
    with pytest.raises(ValueError, match="batch_size must be an integer >= 1, got 0"):
        el2n_scores(model, stored, batch_size=0)
    with pytest.raises(
        ValueError, match=r"leading axis, here of length 4, got shape \(\)"
    ):
        map_examples(lambda w, x, y: jnp.sum(x), model, stored, batch_size=4)
    with pytest.raises(ValueError, match="models must be a list"):
        rank_mislabelled(model, stored)
    with pytest.raises(ValueError, match="by must be one of"):
        rank_mislabelled(models, stored, by="luck")
    with pytest.raises(ValueError, match="one number for each of the 2 models"):
        influence(models, stored, stored, loss=loss, learning_rates=[1.0])
    with pytest.raises(ValueError, match="k must be at most the 11 examples"):
        gradient_neighbors(model, stored, stored, loss=loss, k=12)
    with pytest.raises(ValueError, match="similarity must be 'cosine' or 'dot'"):
        gradient_neighbors(model, stored, stored, loss=loss, similarity="l2")
