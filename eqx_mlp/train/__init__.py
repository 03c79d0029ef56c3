"""Training: a state, a pure step, the compiled loop, metrics over data."""

from ._call import Call as Call
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
from ._retrace import RetraceWarning as RetraceWarning
from ._retrace import retrace_guard as retrace_guard
from ._state import TrainState as TrainState
from ._state import init_state as init_state
from ._step import make_step as make_step
from .callbacks import CheckFinite as CheckFinite
from .callbacks import EarlyStopping as EarlyStopping
from .callbacks import LearningRate as LearningRate
from .callbacks import NonFiniteError as NonFiniteError
from .loggers import CSVLogger as CSVLogger
from .loggers import JSONLogger as JSONLogger
from .loggers import Logger as Logger
from .loggers import TensorBoardLogger as TensorBoardLogger
