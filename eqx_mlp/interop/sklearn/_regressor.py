"""The regressor."""

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d

from ..._types import Loss
from ._base import Network
from ._training import half_squared_error


class MLPRegressor(RegressorMixin, Network):
    """A multilayer perceptron that predicts numbers, as a scikit-learn estimator.

    One number a row or several. The loss is half the squared error, added up over the
    outputs. Parameters and what is learned are as in `MLPClassifier`, but for
    `class_weight` and `classes_`; the validation score is R^2.

    >>> import numpy as np
    >>> from eqx_mlp.interop.sklearn import MLPRegressor
    >>> X = np.linspace(-1, 1, 64)[:, None]
    >>> square = MLPRegressor((32,), learning_rate_init=0.1, random_state=0)
    >>> bool(square.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.99)
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MLPRegressor":
        """Train, and give the estimator back.

        Args:
            X: features `[rows, features]`, dense: an array, a frame, lists.
            y: a number for each row, or `[rows, outputs]`.
            sample_weight: how much each row counts, not negative; None is 1 each.

        Raises:
            ValueError: a parameter out of range, missing values, rows that do not
                match, weights that ended up not finite.

        Warns:
            ConvergenceWarning: `max_iter` epochs were over before it stopped.
        """
        self._fit(X, y, sample_weight, incremental=False)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MLPRegressor":
        """One epoch more, on these rows, with the optimiser's state as it was left.

        Raises:
            ValueError: as `fit`; early_stopping=True.
        """
        self._fit(X, y, sample_weight, incremental=True)
        return self

    def _checked_rows(
        self, X: Any, y: Any, first: bool, incremental: bool
    ) -> tuple[Any, Any]:
        X, y = self._validated(X, y, first, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        y = y.astype(X.dtype)
        outputs = 1 if y.ndim == 1 else y.shape[1]
        if not first and outputs != self.n_outputs_:
            raise ValueError(
                f"y has {outputs} outputs, but {type(self).__name__} is expecting "
                f"{self.n_outputs_} as in the first call"
            )
        self.n_outputs_ = outputs
        self.out_activation_ = "identity"
        return X, y

    def _loss_and_target(self, y: Any, dtype: Any) -> tuple[Loss, np.ndarray]:
        return half_squared_error, y.reshape(len(y), -1)

    def _from_outputs(self, outputs: Any) -> np.ndarray:
        return outputs.ravel() if self.n_outputs_ == 1 else outputs

    def _score_of(self, y: Any, predicted: Any, weight: Any) -> float:
        return r2_score(y, predicted, sample_weight=weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
