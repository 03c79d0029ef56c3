"""Comma-separated values."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..._checked import checked
from ._lines import PathLike, append, cut, require_path
from ._logger import Logger, Row


class CSVLogger(Logger):
    """Appends each row to a table with a column for each name, "step" first.

    What a row has no value for stays empty. A new name adds a column: then the table is
    written anew beside the file and takes its place, so that it is whole at any moment.

    Args:
        path: the file; its folder is made where it is missing.

    Raises:
        ValueError: in `start`, the file holds something else than such a table.

    >>> import pathlib, tempfile
    >>> from eqx_mlp import CSVLogger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.csv")
    ...     log = CSVLogger(path)
    ...     log.log(1, {"loss": 0.5})
    ...     log.log(1, {"epoch": 1})
    ...     path.read_text()
    'step,loss,epoch\\n1,0.5,\\n1,,1\\n'
    """

    @checked(lambda self, path: require_path("CSVLogger", path))
    def __init__(self, path: PathLike):
        self.path = Path(path)
        self._columns: list[str] | None = None

    def start(self, step: int) -> None:
        """Cut what the table holds of later steps."""
        cut(self.path, step, b"step,", _step_of)
        self._columns = None

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, after adding columns for the names that are new."""
        if self._columns is None:
            self._columns = self._header()
        names = dict.fromkeys(["step", *(name for _, row in rows for name in row)])
        new = [name for name in names if name not in self._columns]
        if new:
            self._widen([*self._columns, *new])
        table = [{"step": step, **row} for step, row in rows]
        append(self.path, _lines(table, self._columns))

    def _header(self) -> list[str]:
        if not self.path.exists():
            return []
        with open(self.path, newline="") as file:
            return next(csv.reader(file), [])

    def _widen(self, columns: list[str]) -> None:
        old: list[dict[str, Any]] = []
        if self.path.exists():
            with open(self.path, newline="") as file:
                old = list(csv.DictReader(file))
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        header = dict(zip(columns, columns, strict=True))
        append(beside, _lines([header, *old], columns))
        os.replace(beside, self.path)
        self._columns = columns


def _lines(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writerows(rows)
    return out.getvalue().encode()


def _step_of(line: str) -> int:
    first, _, _ = line.partition(",")
    if first == "step":  # the header
        return 0
    try:
        return int(first)
    except ValueError as error:
        raise ValueError("a row that begins with its step") from error
