"""The estimators, against scikit-learn's own checks and its own networks."""

import functools
import importlib
import os
import pickle
import sys
import warnings

import jax
import numpy as np
import optax
import pandas as pd
import pytest
from sklearn import neural_network as theirs
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils import Bunch, estimator_checks
from sklearn.utils.class_weight import compute_sample_weight

from eqx_mlp.interop import sklearn as ours
from eqx_mlp.interop.sklearn import _outputs

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4))
CLASS = np.argmax(X[:, :3] + RNG.normal(size=(24, 3)) / 2, axis=1)
Y = {
    "multiclass": np.array(["ant", "bee", "cat"])[CLASS],
    "binary": CLASS > 1,
    "multilabel": np.stack([CLASS > 0, CLASS > 1], axis=1).astype(int),
    "number": X @ [1.0, -2.0, 0.5, 0.0],
    "numbers": X @ RNG.normal(size=(4, 2)),
}
WEIGHT = RNG.integers(0, 4, size=24).astype(float)
SMALL = {
    "hidden_layer_sizes": (3,),
    "max_iter": 20,
    "n_iter_no_change": 50,
    "learning_rate_init": 0.05,
    "alpha": 0.1,
    "random_state": 3,
}


def classifier(**parameters):
    return ours.MLPClassifier(**SMALL | parameters)


def same_network(a, b, atol=1e-11):
    for x, y in zip(a.coefs_ + a.intercepts_, b.coefs_ + b.intercepts_, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


# The checks that run by default: those that are cheap, and the one of weights. All of
# them, with every parameter as it is, run in nox's session `long`.
CHECKS = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_estimators_empty_data_messages",
    "check_complex_data",
    "check_estimator_sparse_tag",
    "check_sample_weight_equivalence_on_dense_data",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimators_fit_returns_self",
    "check_requires_y_none",
}


@pytest.mark.parametrize("name", ["MLPClassifier", "MLPRegressor"])
def test_scikit_learns_own_checks_pass(name):
    if os.environ.get("EQX_MLP_LONG_TESTS"):
        estimator_checks.check_estimator(getattr(ours, name)(), on_skip=None)
        return
    estimator = getattr(ours, name)(max_iter=20)
    ran = set()
    for instance, check in estimator_checks.estimator_checks_generator(estimator):
        check_name = check.func.__name__
        if check_name in CHECKS:
            check(instance)
            ran.add(check_name)
    assert ran == CHECKS


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("MLPClassifier", "multiclass", {"batch_size": 10}),
        ("MLPClassifier", "multilabel", {"nesterovs_momentum": False}),
        ("MLPClassifier", "binary", {"early_stopping": True, "activation": "tanh"}),
        ("MLPRegressor", "number", {"early_stopping": True, "batch_size": 10}),
        ("MLPRegressor", "numbers", {"activation": "logistic", "solver": "adam"}),
    ],
)
def test_training_is_scikit_learns(name, kind, parameters):
    # Each has an order of its own, so nothing is shuffled; and Adam's epsilon stands in
    # another place there, so it is as good as 0.
    parameters = {"solver": "sgd", "shuffle": False, "epsilon": 1e-30} | parameters
    a = getattr(ours, name)(**SMALL | parameters)
    b = getattr(theirs, name)(**SMALL | parameters)
    for estimator in (a, b):
        estimator.fit(X, Y[kind], sample_weight=WEIGHT)
    same_network(a, b)
    assert (a.out_activation_, a.n_outputs_) == (b.out_activation_, b.n_outputs_)
    assert (a.n_iter_, a.n_layers_, a.t_) == (b.n_iter_, b.n_layers_, b.t_)
    if kind != "numbers":  # theirs are means over outputs
        np.testing.assert_allclose(a.loss_curve_, b.loss_curve_, atol=1e-12)
    if "early_stopping" in parameters:
        np.testing.assert_allclose(a.validation_scores_, b.validation_scores_)
        assert a.best_validation_score_ == pytest.approx(b.best_validation_score_)
    if kind.startswith("number"):
        np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-9)
    else:
        np.testing.assert_array_equal(a.predict(X), b.predict(X))


def test_a_whole_batch_needs_no_order():
    a, b = classifier(epsilon=1e-30), theirs.MLPClassifier(**SMALL, epsilon=1e-30)
    for estimator in (a, b):
        estimator.fit(X, Y["multiclass"])
    same_network(a, b)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), atol=1e-9)
    log_proba = b.predict_log_proba(X)
    np.testing.assert_allclose(a.predict_log_proba(X), log_proba, atol=1e-8)
    assert a.classes_.tolist() == ["ant", "bee", "cat"]
    assert a.score(X, Y["multiclass"]) == b.score(X, Y["multiclass"])
    # The model is an ordinary one, which gives logits.
    with _outputs.precision_of(np.float64):
        logits = jax.vmap(a.model_)(X)
        np.testing.assert_allclose(jax.nn.softmax(logits), a.predict_proba(X))

    for estimator in (a, b):
        estimator.set_params(warm_start=True, max_iter=5).fit(X, Y["multiclass"])
    same_network(a, b)
    assert len(a.loss_curve_) == len(b.loss_curve_) == 25
    with pytest.raises(ValueError, match="hidden_layer_sizes must be those"):
        a.set_params(hidden_layer_sizes=(4,)).fit(X, Y["multiclass"])
    with pytest.raises(ValueError, match="must have the classes of the first call"):
        a.set_params(hidden_layer_sizes=(3,)).fit(X, np.array(list("xy") * 12))


def test_partial_fit_is_scikit_learns():
    a, b = classifier(epsilon=1e-30), theirs.MLPClassifier(**SMALL, epsilon=1e-30)
    kept = Y["multiclass"] != "cat"
    rows, labels = X[kept], Y["multiclass"][kept]
    for estimator in (a, b):
        estimator.partial_fit(rows, labels, classes=["ant", "bee", "cat"])
        for _ in range(3):
            estimator.partial_fit(rows, labels)
    same_network(a, b)
    assert (a.n_iter_, a.t_, a.loss_curve_[-1]) == (1, b.t_, a.loss_)
    # Another learning rate holds from the next call on.
    before = [c.copy() for c in a.coefs_]
    a.set_params(learning_rate_init=1e-9).partial_fit(rows, labels)
    for x, y in zip(before, a.coefs_, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)

    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        classifier().partial_fit(rows, labels)
    with pytest.raises(ValueError, match=r"first call, .* or some of them; got .*ox"):
        a.partial_fit(rows[:2], ["ant", "ox"])
    with pytest.raises(ValueError, match="early_stopping"):
        a.set_params(early_stopping=True).partial_fit(rows, labels)
    with pytest.raises(ValueError, match="balanced"):
        classifier(class_weight="balanced").partial_fit(rows, labels)


def test_a_class_weight_is_the_weight_of_its_rows():
    y = Y["multiclass"]
    for class_weight in ({"ant": 3.0, "cat": 0.5}, "balanced"):
        weighted = classifier(class_weight=class_weight).fit(X, y, WEIGHT)
        of_rows = WEIGHT * compute_sample_weight(class_weight, y)
        same_network(weighted, classifier().fit(X, y, of_rows), atol=0)


def test_the_random_state_decides():
    y = Y["multiclass"]
    batches = {"batch_size": 10, "dropout_rate": 0.3, "max_iter": 3}
    fitted = classifier(**batches).fit(X, y)
    same_network(fitted, classifier(**batches).fit(X, y), atol=0)
    random = np.random.RandomState(3)
    same_network(fitted, classifier(**batches, random_state=random).fit(X, y), atol=0)
    # An instance goes on, and None is NumPy's own state.
    for state in (random, None, 4):
        other = classifier(**batches | {"random_state": state}).fit(X, y)
        assert not np.allclose(other.coefs_[0], fitted.coefs_[0])
    assert not np.allclose(classifier(max_iter=3).fit(X, y).coefs_[0], fitted.coefs_[0])
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.predict_proba(X))


TRACED = []


def counted(learning_rate, weight_decay):
    inner = optax.adamw(learning_rate, weight_decay=weight_decay)

    def update(*args):
        TRACED.append(learning_rate)
        return inner.update(*args)

    return optax.GradientTransformation(inner.init, update)


def test_a_search_compiles_once_for_each_number_of_rows():
    TRACED.clear()
    # Each clone gets a copy of the partial.
    solver = functools.partial(counted, weight_decay=0.1)
    grid = {"learning_rate_init": [1e-9, 1e-1], "alpha": [0.0, 1.0]}
    estimator = classifier(solver=solver, max_iter=2)
    search = GridSearchCV(estimator, grid, cv=KFold(3)).fit(X, CLASS)
    assert len(set(search.cv_results_["mean_test_score"])) > 1
    assert len(TRACED) == len({"16 rows", "24 rows"})
    fitted = pickle.loads(pickle.dumps(search.best_estimator_))
    fitted.partial_fit(X, CLASS)
    assert len(TRACED) == 2


def test_a_fitted_estimator_is_plain_data():
    fitted = classifier().fit(X, Y["multiclass"])
    leaves = jax.tree.leaves([list(vars(fitted).values())])
    assert not any(isinstance(leaf, jax.Array) for leaf in leaves)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    for estimator in (again, fitted):
        estimator.partial_fit(X, Y["multiclass"])
    same_network(again, fitted, atol=0)
    new = clone(fitted)
    assert new.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        new.predict(X)
    with pytest.raises(NotFittedError):
        _ = new.model_
    with pytest.raises(ValueError, match="Invalid parameter 'widths'"):
        new.set_params(widths=3)


def test_frames_as_fetch_openml_gives_them_in_a_pipeline():
    # Pixels in integer columns, and labels as categories of strings.
    pixels = np.clip(128 + 60 * X, 0, 255).astype(np.int64)
    mnist = Bunch(
        data=pd.DataFrame(pixels, columns=[f"pixel{i + 1}" for i in range(4)]),
        target=pd.Series(CLASS.astype(str), dtype="category", name="class"),
    )
    fitted = classifier().fit(mnist.data, mnist.target)
    assert fitted.feature_names_in_.tolist() == mnist.data.columns.tolist()
    assert (fitted.n_features_in_, fitted.classes_.tolist()) == (4, ["0", "1", "2"])
    assert fitted.coefs_[0].dtype == np.float32  # for integers
    assert set(fitted.predict(mnist.data)) <= set(mnist.target)
    pipeline = make_pipeline(MaxAbsScaler(), classifier())
    assert pipeline.fit(mnist.data, mnist.target).score(mnist.data, mnist.target) > 0.5
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.predict(mnist.data.rename(columns={"pixel1": "x"}))


def test_float32_stays_and_rows_are_predicted_in_parts(monkeypatch):
    x, y = X.astype(np.float32), Y["numbers"].astype(np.float32)
    fitted = ours.MLPRegressor(**SMALL | {"hidden_layer_sizes": ()}).fit(x, y)
    assert {c.dtype for c in fitted.coefs_} == {np.dtype(np.float32)}
    many = np.tile(x, (3, 1))[:70]
    monkeypatch.setattr(_outputs, "_MOST", 32)
    predicted = fitted.predict(many)
    assert predicted.dtype == np.float32
    by_hand = many @ fitted.coefs_[0] + fitted.intercepts_[0]
    np.testing.assert_allclose(predicted, by_hand, atol=1e-5)


def test_a_run_that_reaches_max_iter_warns_and_one_that_stops_does_not():
    with pytest.warns(ConvergenceWarning, match="max_iter=20 epochs are over"):
        classifier().fit(X, Y["multiclass"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = classifier(tol=1.0, n_iter_no_change=2).fit(X, Y["multiclass"])
    assert fitted.n_iter_ == len(fitted.loss_curve_) == 3
    assert fitted.best_loss_ == min(fitted.loss_curve_)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.where(X > 2, np.nan, X)}, "Input X contains NaN"),
        ({"y": np.ones(24)}, "at least 2 classes .* only one class: .*1.0"),
        ({"X": X[:1], "y": CLASS[:1]}, "at least 2 classes"),
        ({"X": X[0]}, "Expected 2D array, got 1D array instead"),
        ({"y": CLASS[:-1]}, "inconsistent numbers of samples"),
        ({"y": Y["number"]}, "Unknown label type"),
        ({"sample_weight": -WEIGHT}, "Negative values in data passed to .*weight"),
        ({"sample_weight": 0 * WEIGHT}, "at least one non-zero number"),
        ({"sample_weight": WEIGHT[1:]}, r"sample_weight.shape == \(23,\)"),
        ({"activation": "step"}, "'activation' parameter of MLPClassifier must be"),
        ({"dropout_rate": 1.0}, "'dropout_rate' parameter of MLPClassifier must be"),
        ({"solver": "lbfgs"}, "'solver' parameter of MLPClassifier must be"),
        ({"hidden_layer_sizes": (3, 0)}, "integers > 0"),
        (
            {"early_stopping": True, "validation_fraction": 0.01},
            "validation set is too small",
        ),
        ({"learning_rate_init": 1e200}, "non-finite"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else "",
)
def test_bad_input_gets_scikit_learns_kind_of_error(change, message):
    rows = {"X": X, "y": CLASS, "sample_weight": None}
    data = {name: change.get(name, value) for name, value in rows.items()}
    parameters = {name: v for name, v in change.items() if name not in rows}
    with pytest.raises(ValueError, match=message):
        classifier(**parameters).fit(**data)


def test_a_regressors_targets_are_checked():
    regressor = ours.MLPRegressor(**SMALL)
    regressor.fit(X[:1], Y["number"][:1])  # one row is enough
    with pytest.raises(ValueError, match="y has 2 outputs, but MLPRegressor is exp"):
        regressor.partial_fit(X, Y["numbers"])
    with pytest.raises(ValueError, match="X has 3 features, but MLPRegressor is exp"):
        regressor.predict(X[:, :3])
    with pytest.warns(DataConversionWarning):
        regressor.fit(X[:1], Y["number"][:1, None])


def test_without_scikit_learn_the_import_says_what_to_install(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("eqx_mlp.interop.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'eqx-mlp\[sklearn\]'"):
        importlib.import_module("eqx_mlp.interop.sklearn")
