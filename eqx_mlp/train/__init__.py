"""Training: a state, a pure step, the compiled loop, metrics over data."""

from ._callback import Callback as Callback
from ._checkpoint import Checkpoints as Checkpoints
from ._checkpoint import load as load
from ._checkpoint import save as save
from ._evaluate import evaluate as evaluate
from ._evaluate import predict as predict
from ._fit import FitResult as FitResult
from ._fit import fit as fit
from ._gradient import mean_grad as mean_grad
from ._optimizer import multi_transform as multi_transform
from ._state import TrainState as TrainState
from ._state import init_state as init_state
from ._step import make_step as make_step
