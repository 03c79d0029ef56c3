"""Multilayer perceptrons as scikit-learn's estimators, trained by `fit`."""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "eqx_mlp.interop.sklearn builds on scikit-learn, which is not installed: pip "
        "install 'eqx-mlp[sklearn]'"
    ) from error

from ._classifier import MLPClassifier as MLPClassifier
from ._regressor import MLPRegressor as MLPRegressor
