"""Private training: DP-SGD, its sampling and its accounting."""

from ._accounting import epsilon as epsilon
from ._accounting import noise_multiplier_for as noise_multiplier_for
from ._dpsgd import DPSGD as DPSGD
from ._poisson import Poisson as Poisson
