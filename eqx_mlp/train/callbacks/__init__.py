"""Callbacks for everyday use, one a file."""

from ._check_finite import CheckFinite as CheckFinite
from ._check_finite import NonFiniteError as NonFiniteError
from ._early_stopping import EarlyStopping as EarlyStopping
from ._learning_rate import LearningRate as LearningRate
from ._noise_scale import NoiseScale as NoiseScale
