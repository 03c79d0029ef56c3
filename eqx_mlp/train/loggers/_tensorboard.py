"""Event files for TensorBoard, by tensorboardX."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._checked import checked
from ._lines import PathLike, require_path
from ._logger import Logger, Row


class TensorBoardLogger(Logger):
    """Writes each value as a scalar, for `tensorboard --logdir folder`.

    A run that goes on writes another file, whose beginning has TensorBoard drop what
    the earlier ones hold of later steps. Rows reach the disk from a thread, within
    about a second: a process that is killed with SIGKILL loses those still on the way.

    Args:
        folder: of one run; made where it is missing.

    Raises:
        ImportError: tensorboardX, the extra `tensorboard`, is not installed.

    >>> import pathlib, tempfile
    >>> from eqx_mlp import TensorBoardLogger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = TensorBoardLogger(folder)
    ...     log.log(1, {"loss": 0.5})
    ...     log.end()
    ...     [path.name[:19] for path in pathlib.Path(folder).iterdir()]
    ['events.out.tfevents']
    """

    @checked(lambda self, folder: require_path("TensorBoardLogger", folder))
    def __init__(self, folder: PathLike):
        _require_tensorboardx()
        self.folder = Path(folder)
        self._writer: Any = None

    def start(self, step: int) -> None:
        """Begin a file that has later steps dropped."""
        from tensorboardX import SummaryWriter

        self.end()
        self._writer = SummaryWriter(
            str(self.folder),
            purge_step=step + 1,
            flush_secs=1,
            # Names hold the second alone, and TensorBoard reads in their order.
            filename_suffix=f".{time.time_ns()}",
        )

    def write(self, rows: Sequence[Row]) -> None:
        """Hand each value to the thread that writes."""
        if self._writer is None:
            self.start(0)
        writer: Any = self._writer
        for step, values in rows:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        writer.flush()

    def end(self) -> None:
        """Wait until everything is written."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _require_tensorboardx() -> None:
    try:
        import tensorboardX  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "TensorBoard's files are written with tensorboardX, which is not "
            "installed: pip install 'eqx-mlp[tensorboard]'"
        ) from error
