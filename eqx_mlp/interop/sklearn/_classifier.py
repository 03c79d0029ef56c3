"""The classifier."""

from typing import Any, ClassVar

import numpy as np
import scipy.special
from jaxtyping import Float
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import column_or_1d
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
    unique_labels,
)

from ..._types import Loss
from ._base import Network
from ._training import logistic_loss, softmax_loss


class MLPClassifier(ClassifierMixin, Network):
    """A multilayer perceptron that tells classes apart, as a scikit-learn estimator.

    Of two or more classes, or several labels a row, as `sklearn.neural_network` has it:
    parameters of the same name mean the same, the network begins with the same weights
    for the same `random_state`, and what is learned has the same names. It is trained
    by `eqx_mlp.fit`, in the floating-point type of `X`: float32, or float64 where `X`
    is float64.

    Args:
        hidden_layer_sizes: the width of each hidden layer; `()` is a linear model.
        activation: "relu", "logistic", "tanh", "identity", "elu", "gelu", "silu" or
            "mish".
        solver: "adam", "sgd", or a function that is called with `learning_rate=` and
            gives an Optax transformation, such as `optax.adamw`.
        alpha: strength of the penalty alpha |W|^2 / 2, divided by the weights of the
            rows of a batch.
        batch_size: rows an update; "auto" is 200, or all if there are fewer.
        learning_rate_init: the learning rate.
        max_iter: epochs at most.
        shuffle: whether each epoch has an order of its own. Without, batches are sent
            to the device one by one, which is slower.
        random_state: a seed, a `numpy.random.RandomState`, or None for NumPy's own.
        tol: what counts as an improvement of the loss, or of the validation score.
        verbose: whether to show a bar when standard error is a terminal.
        warm_start: whether `fit` goes on from what it learned before.
        momentum: of "sgd".
        nesterovs_momentum: whether that is Nesterov's.
        early_stopping: whether to hold out rows, to stop by their score, and to keep
            the network that had the best one.
        validation_fraction: the share of the rows to hold out.
        beta_1: of "adam", the decay of the first moment.
        beta_2: of "adam", the decay of the second moment.
        epsilon: of "adam", what is added to the root of the second moment.
        n_iter_no_change: epochs in a row without improvement after which `fit` stops.
        dropout_rate: probability of dropping a hidden unit in training.
        class_weight: how much the rows of a class count, as a dictionary from class to
            weight, or "balanced" for the inverse of its frequency; with several labels
            a row, a list of dictionaries.

    After `fit` there are `classes_`, `coefs_` and `intercepts_`, `model_` (the network
    as an Equinox model), `loss_curve_` (the loss of each epoch), `loss_`, `best_loss_`,
    `validation_scores_`, `best_validation_score_`, `n_iter_` (epochs), `t_` (rows
    seen), `n_layers_`, `n_outputs_`, `out_activation_`, `n_features_in_`, and
    `feature_names_in_` where `X` names its columns.

    >>> import numpy as np
    >>> from eqx_mlp.interop.sklearn import MLPClassifier
    >>> X = np.array([[0., 0.], [0., 1.], [1., 0.], [1., 1.]])
    >>> y = np.array(["same", "other", "other", "same"])
    >>> xor = MLPClassifier((16,), learning_rate_init=0.05, tol=1e-2, random_state=0)
    >>> xor.fit(X, y).predict(X).tolist()
    ['same', 'other', 'other', 'same']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **Network._parameter_constraints,
        "class_weight": [dict, list, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: Any = "relu",
        *,
        solver: Any = "adam",
        alpha: Any = 0.0001,
        batch_size: Any = "auto",
        learning_rate_init: Any = 0.001,
        max_iter: Any = 200,
        shuffle: Any = True,
        random_state: Any = None,
        tol: Any = 1e-4,
        verbose: Any = False,
        warm_start: Any = False,
        momentum: Any = 0.9,
        nesterovs_momentum: Any = True,
        early_stopping: Any = False,
        validation_fraction: Any = 0.1,
        beta_1: Any = 0.9,
        beta_2: Any = 0.999,
        epsilon: Any = 1e-8,
        n_iter_no_change: Any = 10,
        dropout_rate: Any = 0.0,
        class_weight: Any = None,
    ):
        super().__init__(
            hidden_layer_sizes,
            activation,
            solver=solver,
            alpha=alpha,
            batch_size=batch_size,
            learning_rate_init=learning_rate_init,
            max_iter=max_iter,
            shuffle=shuffle,
            random_state=random_state,
            tol=tol,
            verbose=verbose,
            warm_start=warm_start,
            momentum=momentum,
            nesterovs_momentum=nesterovs_momentum,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            n_iter_no_change=n_iter_no_change,
            dropout_rate=dropout_rate,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MLPClassifier":
        """Train, and give the estimator back.

        Args:
            X: features `[rows, features]`, dense: an array, a frame, lists.
            y: a class for each row, or `[rows, labels]` of 0 and 1.
            sample_weight: how much each row counts, not negative; None is 1 each.

        Raises:
            ValueError: a parameter out of range, missing values, rows that do not
                match, one class only, weights that ended up not finite.

        Warns:
            ConvergenceWarning: `max_iter` epochs were over before it stopped.
        """
        self._fit(X, y, sample_weight, incremental=False)
        return self

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, classes: Any = None
    ) -> "MLPClassifier":
        """One epoch more, on these rows, with the optimiser's state as it was left.

        Args:
            X: features `[rows, features]`.
            y: a class for each row, not necessarily all classes.
            sample_weight: how much each row counts.
            classes: all classes there will be; needed in the first call.

        Raises:
            ValueError: as `fit`; early_stopping=True or class_weight="balanced".
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' is not supported for partial_fit, which does "
                "not see all of y: use sklearn.utils.compute_class_weight with all of "
                "it, and pass what it gives as a dict"
            )
        if _check_partial_fit_first_call(self, classes):
            multilabel = type_of_target(y).startswith("multilabel")
            self._set_classes(y if multilabel else classes)
        self._fit(X, y, sample_weight, incremental=True)
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The probability of each class, in the order of `classes_`.

        Raises:
            NotFittedError, ValueError: as `predict`.
        """
        probability = self._probability(self._predicted_outputs(X))
        if self.n_outputs_ == 1:
            return np.hstack([1 - probability, probability])
        return probability

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "rows classes"]:
        """The logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def _set_classes(self, y: Any) -> None:
        self._binarizer = LabelBinarizer().fit(y)
        self.classes_ = self._binarizer.classes_
        kind = self._binarizer.y_type_
        if len(self.classes_) < 2 and not kind.startswith("multilabel"):
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes in the "
                f"data, but the data contains only one class: {self.classes_[0]!r}"
            )
        self.n_outputs_ = 1 if kind == "binary" else len(self.classes_)
        self.out_activation_ = "softmax" if kind == "multiclass" else "logistic"

    def _checked_rows(
        self, X: Any, y: Any, first: bool, incremental: bool
    ) -> tuple[Any, Any]:
        X, y = self._validated(X, y, first)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if first and not incremental:
            self._set_classes(y)
            return X, y
        classes = unique_labels(y)
        unknown = np.setdiff1d(classes, self.classes_)
        missing = [] if incremental else np.setdiff1d(self.classes_, classes)
        if len(unknown) or len(missing):
            raise ValueError(
                f"y must have the classes of the first call, {self.classes_}"
                f"{', or some of them' if incremental else ''}; got {classes}"
            )
        return X, y

    def _loss_and_target(self, y: Any, dtype: Any) -> tuple[Loss, np.ndarray]:
        indicators = self._binarizer.transform(y)
        if self.out_activation_ == "softmax":
            return softmax_loss, indicators.argmax(axis=1).astype(np.int32)
        return logistic_loss, indicators.astype(dtype)

    def _weight(self, y: Any, weight: Any) -> np.ndarray:
        if self.class_weight is None:
            return weight
        return weight * compute_sample_weight(self.class_weight, y)

    def _same_shares_of(self, y: Any) -> Any:
        # As scikit-learn's network does: where there are many classes, one may have a
        # single row, which cannot be shared.
        return y if self.n_outputs_ == 1 else None

    def _probability(self, outputs: Any) -> np.ndarray:
        if self.out_activation_ == "softmax":
            return scipy.special.softmax(outputs, axis=1)
        return scipy.special.expit(outputs)

    def _from_outputs(self, outputs: Any) -> Any:
        probability = self._probability(outputs)
        if self.n_outputs_ == 1:
            probability = probability.ravel()
        return self._binarizer.inverse_transform(probability)

    def _score_of(self, y: Any, predicted: Any, weight: Any) -> float:
        return accuracy_score(y, predicted, sample_weight=weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
