"""What an estimator is made with, and what `fit` makes of it."""

import abc
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import optax
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, Options, StrOptions

from ...nn import MLP
from ...train import Callback, EarlyStopping, TrainState
from ._network import ACTIVATIONS
from ._training import nesterov, optimizer_of

_FRACTION = Interval(Real, 0, 1, closed="left")
_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
_COUNT = Interval(Integral, 1, None, closed="left")


class Parameters(BaseEstimator, abc.ABC):
    """The parameters that the classifier and the regressor have in common."""

    # How scikit-learn checks what `__init__` was given, once `fit` is called.
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "hidden_layer_sizes": ["array-like", _COUNT],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "solver": [StrOptions({"adam", "sgd"}), callable],
        "alpha": [_NOT_NEGATIVE],
        "batch_size": [StrOptions({"auto"}), _COUNT],
        "learning_rate_init": [_POSITIVE],
        "max_iter": [_COUNT],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [_NOT_NEGATIVE],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean"],
        "validation_fraction": [_FRACTION],
        "beta_1": [_FRACTION],
        "beta_2": [_FRACTION],
        "epsilon": [_POSITIVE],
        "n_iter_no_change": [_COUNT, Options(Real, {np.inf})],
        "dropout_rate": [_FRACTION],
    }

    # By scikit-learn's convention any value is taken here, and refused by `fit`.
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
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.solver = solver
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.momentum = momentum
        self.nesterovs_momentum = nesterovs_momentum
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change
        self.dropout_rate = dropout_rate

    def _hidden_sizes(self) -> list[int]:
        hidden = np.atleast_1d(self.hidden_layer_sizes).tolist()
        if not all(isinstance(size, int) and size > 0 for size in hidden):
            raise ValueError(
                "hidden_layer_sizes must be the width of each hidden layer, integers "
                f"> 0, got {self.hidden_layer_sizes}"
            )
        return hidden

    def _callbacks(self, scores: Callable[[MLP], float] | None) -> list[Callback]:
        callbacks: list[Callback] = [] if scores is None else [Scores(scores)]
        if self.n_iter_no_change == np.inf:
            return callbacks
        stop = EarlyStopping(
            "loss" if scores is None else "score",
            patience=int(self.n_iter_no_change),
            min_delta=float(self.tol),
            mode="min" if scores is None else "max",
            restore_best=scores is not None,
        )
        return [*callbacks, stop]

    def _optimizer(self, dtype: Any) -> optax.GradientTransformation:
        settings = {"learning_rate": self.learning_rate_init}
        make: Any = self.solver
        match self.solver:
            case "adam":
                make = optax.adam
                settings |= {"b1": self.beta_1, "b2": self.beta_2, "eps": self.epsilon}
            case "sgd":
                make = nesterov if self.nesterovs_momentum else optax.sgd
                settings |= {"momentum": self.momentum}
        return optimizer_of(
            make, {name: jnp.asarray(value, dtype) for name, value in settings.items()}
        )


class Scores(Callback):
    """Puts the score of held-out rows into the history, as "score"."""

    def __init__(self, of_model: Callable[[MLP], float]):
        """Ask `of_model` after each epoch."""
        self._of_model = of_model

    def measure(self, state: TrainState) -> Mapping[str, Any]:
        """The score now."""
        return {"score": self._of_model(state.model)}
