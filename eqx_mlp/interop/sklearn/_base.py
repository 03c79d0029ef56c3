"""What the classifier and the regressor share: training and prediction."""

import abc
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from ..._types import Loss
from ...nn import MLP
from ...train import FitResult, TrainState, fit, init_state
from ._network import coefficients_of, first_coefficients, model_of
from ._outputs import outputs_of, precision_of
from ._parameters import Parameters
from ._training import WeightedMean


class Network(Parameters):
    """An estimator whose network `fit` trains; subclasses say what its outputs mean.

    What is learned is kept as NumPy arrays, so that an estimator can be pickled.
    """

    n_outputs_: int

    @abc.abstractmethod
    def _checked_rows(
        self, X: Any, y: Any, first: bool, incremental: bool
    ) -> tuple[Any, Any]:
        """Both as arrays that fit what is known, or that say it, where `first`."""

    @abc.abstractmethod
    def _loss_and_target(self, y: Any, dtype: Any) -> tuple[Loss, np.ndarray]:
        """The loss, and `y` as it takes it."""

    @abc.abstractmethod
    def _from_outputs(self, outputs: Any) -> Any:
        """What `predict` gives."""

    @abc.abstractmethod
    def _score_of(self, y: Any, predicted: Any, weight: Any) -> float:
        """What `score` gives."""

    def _weight(self, y: Any, weight: Any) -> np.ndarray:
        """How much each row counts, where `weight` is what the caller says."""
        return weight

    def _same_shares_of(self, y: Any) -> Any:
        """Labels whose shares are the same in training and validation, or None."""
        return None

    @property
    def model_(self) -> MLP:
        """The trained network, an Equinox model that gives logits or predictions."""
        check_is_fitted(self, "coefs_")
        with precision_of(self.coefs_[0].dtype):
            return eqx.nn.inference_mode(self._model())

    def _model(self) -> MLP:
        options = self.activation, float(self.dropout_rate)
        return model_of(self.coefs_, self.intercepts_, *options)

    def _validated(self, X: Any, y: Any, first: bool, **options: Any) -> Any:
        # Whatever is no float is computed with as float32.
        dtype = (np.float32, np.float64) if first else self.coefs_[0].dtype
        return validate_data(
            self, X, y, dtype=dtype, reset=first, multi_output=True, **options
        )

    def _fit(self, X: Any, y: Any, sample_weight: Any, incremental: bool) -> "Network":
        self._validate_params()
        if incremental and self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True")
        first = not hasattr(self, "coefs_") or not (self.warm_start or incremental)
        X, y = self._checked_rows(X, y, first, incremental)
        weight = _check_sample_weight(
            sample_weight, X, dtype=X.dtype, ensure_non_negative=True
        )
        if not np.any(weight):
            raise ValueError("Sample weights must contain at least one non-zero number")
        weight = self._weight(y, weight).astype(X.dtype)
        random = check_random_state(self.random_state)
        sizes = (X.shape[1], *self._hidden_sizes(), self.n_outputs_)
        if first:
            self._start(sizes, X.dtype, random)
        elif sizes[1:] != tuple(len(b) for b in self.intercepts_):
            raise ValueError(
                "hidden_layer_sizes must be those of the network that is to go on, "
                f"{tuple(len(b) for b in self.intercepts_[:-1])}, got "
                f"{self.hidden_layer_sizes}: leave them, or call fit with "
                "warm_start=False"
            )
        rows: Any = (X, y, weight)
        score_of_model = None
        if self.early_stopping:
            rows, score_of_model = self._hold_out(rows, random)
        with precision_of(X.dtype):
            self._train(rows, random, score_of_model, incremental)
        return self

    def _hold_out(
        self, rows: Any, random: np.random.RandomState
    ) -> tuple[Any, Callable[[MLP], float]]:
        """The rows to train on, and the score of a model on the others."""
        split: Any = train_test_split(
            *rows,
            random_state=random,
            test_size=self.validation_fraction,
            stratify=self._same_shares_of(rows[1]),
        )
        X, y, weight = split[1::2]
        if len(X) < 2:
            raise ValueError(
                "The validation set is too small: it must have at least 2 samples, "
                f"got {len(X)}. Increase validation_fraction or the data set"
            )

        def score_of_model(model: MLP) -> float:
            predicted = self._from_outputs(outputs_of(model, X))
            return float(self._score_of(y, predicted, weight))

        return tuple(split[::2]), score_of_model

    def _start(
        self, sizes: tuple[int, ...], dtype: Any, random: np.random.RandomState
    ) -> None:
        self.coefs_, self.intercepts_ = first_coefficients(
            sizes, self.activation, dtype, random
        )
        self.n_layers_ = len(sizes)
        self.t_ = 0
        self.loss_curve_: list[float] = []
        self.validation_scores_: list[float] | None = None
        vars(self).pop("_opt_state", None)

    def _train(
        self,
        rows: tuple[
            Float[np.ndarray, "rows in"],
            Shaped[np.ndarray, "rows ..."],
            Float[np.ndarray, " rows"],
        ],
        random: np.random.RandomState,
        score_of_model: Callable[[MLP], float] | None,
        incremental: bool,
    ) -> None:
        """Run `fit` on (X, y, weight), and keep what comes of it."""
        X, y, weight = rows
        loss, target = self._loss_and_target(y, X.dtype)
        optimizer = self._optimizer(X.dtype)
        # With the samples seen so far, or each partial_fit would draw the same.
        seed = np.random.SeedSequence([random.randint(2**31 - 1), self.t_])
        key = jax.random.key(int(seed.generate_state(1)[0]))
        if incremental and hasattr(self, "_opt_state"):
            opt_state = jax.tree.map(jnp.asarray, self._opt_state)
            step = jnp.zeros((), jnp.int32)
            state = TrainState(self._model(), opt_state, step, key)
        else:
            state = init_state(self._model(), optimizer, key=key)
        size = 200 if self.batch_size == "auto" else int(self.batch_size)
        size = min(size, len(X))
        data: Any = (X, target, weight)
        if not self.shuffle:
            starts = range(0, len(X), size)
            data = [tuple(a[i : i + size] for a in data) for i in starts]
        callbacks = [] if incremental else self._callbacks(score_of_model)
        result = fit(
            state,
            data,
            loss=loss,
            optimizer=optimizer,
            epochs=1 if incremental else int(self.max_iter),
            batch_size=size,
            gradient=WeightedMean(jnp.asarray(self.alpha, X.dtype)),
            callbacks=callbacks,
            progress=bool(self.verbose),
        )
        self._keep(result, len(X))
        if self.n_iter_ == self.max_iter and not incremental:
            warnings.warn(
                f"{type(self).__name__}: max_iter={self.max_iter} epochs are over, and "
                "the optimization hasn't converged yet",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _keep(self, result: FitResult, rows: int) -> None:
        coefs, intercepts = coefficients_of(result.model)
        if not all(np.isfinite(x).all() for x in (*coefs, *intercepts)):
            raise ValueError(
                "Solver produced non-finite parameter weights. The input data may "
                "contain large values and need to be preprocessed, or "
                f"learning_rate_init={self.learning_rate_init} is too large"
            )
        self.coefs_, self.intercepts_ = coefs, intercepts
        self._opt_state = jax.tree.map(np.asarray, result.state.opt_state)
        losses = result.history["loss"].tolist()
        self.n_iter_ = len(losses)
        self.t_ += self.n_iter_ * rows
        self.loss_curve_ += losses
        self.loss_ = losses[-1]
        self.best_loss_, self.best_validation_score_ = min(self.loss_curve_), None
        if "score" in result.history:
            earlier = self.validation_scores_ or []
            scores = [*earlier, *result.history["score"].tolist()]
            self.validation_scores_, self.best_validation_score_ = scores, max(scores)
            self.best_loss_ = None

    def _predicted_outputs(self, X: Any) -> Float[np.ndarray, "rows out"]:
        check_is_fitted(self, "coefs_")
        X = validate_data(self, X, dtype=self.coefs_[0].dtype, reset=False)
        with precision_of(X.dtype):
            return outputs_of(self._model(), X)

    def predict(self, X: Any) -> Shaped[np.ndarray, "rows ..."]:
        """What is predicted for each row of `X`.

        Raises:
            NotFittedError: `fit` has not been called.
            ValueError: missing values, another number of features than in `fit`.
        """
        return self._from_outputs(self._predicted_outputs(X))
