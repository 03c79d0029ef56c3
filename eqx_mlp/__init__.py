"""Train Equinox models with compiled steps, and see the gradient of each example."""

from . import data as data
from . import losses as losses
from . import metrics as metrics
from . import nn as nn
from ._select import Selection as Selection
from ._select import decay_mask as decay_mask
from ._select import select as select
from .nn import MLP as MLP
from .nn import ResidualMLP as ResidualMLP
from .per_example import ExampleStats as ExampleStats
from .per_example import clipped_grad as clipped_grad
from .per_example import explain as explain
from .per_example import per_example_grad as per_example_grad
from .per_example import per_example_grad_norm as per_example_grad_norm
from .per_example import per_example_value_and_grad as per_example_value_and_grad
from .train import Call as Call
from .train import Callback as Callback
from .train import CheckFinite as CheckFinite
from .train import Checkpoints as Checkpoints
from .train import CSVLogger as CSVLogger
from .train import EarlyStopping as EarlyStopping
from .train import FitResult as FitResult
from .train import JSONLogger as JSONLogger
from .train import LearningRate as LearningRate
from .train import Logger as Logger
from .train import NonFiniteError as NonFiniteError
from .train import RetraceWarning as RetraceWarning
from .train import StreamError as StreamError
from .train import TensorBoardLogger as TensorBoardLogger
from .train import TrainState as TrainState
from .train import ema_model as ema_model
from .train import evaluate as evaluate
from .train import fit as fit
from .train import init_state as init_state
from .train import load as load
from .train import make_step as make_step
from .train import mean_grad as mean_grad
from .train import mixed_precision as mixed_precision
from .train import multi_transform as multi_transform
from .train import predict as predict
from .train import retrace_guard as retrace_guard
from .train import save as save
from .train import with_ema as with_ema
from .train import with_loss_scale as with_loss_scale

__version__ = "0.1.0"
