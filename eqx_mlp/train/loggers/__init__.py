"""Where a run's numbers are written, one kind a file."""

from ._csv import CSVLogger as CSVLogger
from ._json import JSONLogger as JSONLogger
from ._logger import Logger as Logger
from ._tensorboard import TensorBoardLogger as TensorBoardLogger
