"""Models of one example, and the initialisers they draw from."""

from ._ensemble import Ensemble as Ensemble
from ._init import Initializer as Initializer
from ._init import glorot_uniform as glorot_uniform
from ._init import he_normal as he_normal
from ._mlp import MLP as MLP
from ._residual import ResidualBlock as ResidualBlock
from ._residual import ResidualMLP as ResidualMLP
from ._summary import summary as summary
