"""JSON lines: https://jsonlines.org."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._checked import checked
from ._lines import PathLike, append, cut, require_path
from ._logger import Logger, Row, Values


class JSONLogger(Logger):
    """Appends each row to a file as one line of JSON: `{"step": 50, "loss": 0.3}`.

    The file holds whole lines at any moment, so it can be followed with `tail -f`.
    JSON has no NaN and no infinity; they are written as null.

    Args:
        path: the file; its folder is made where it is missing.

    Raises:
        ValueError: in `start`, the file holds something else than such a log.

    >>> import pathlib, tempfile
    >>> from eqx_mlp import JSONLogger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.jsonl")
    ...     JSONLogger(path).log(1, {"loss": 0.5})
    ...     path.read_text()
    '{"step": 1, "loss": 0.5}\\n'
    """

    @checked(lambda self, path: require_path("JSONLogger", path))
    def __init__(self, path: PathLike):
        self.path = Path(path)

    def start(self, step: int) -> None:
        """Cut what the file holds of later steps."""
        cut(self.path, step, b'{"step": ', _step_of)

    def write(self, rows: Sequence[Row]) -> None:
        """Append a line for each row."""
        lines = (json.dumps({"step": step, **_finite(row)}) for step, row in rows)
        append(self.path, "".join(f"{line}\n" for line in lines).encode())


def _finite(values: Values) -> dict[str, Any]:
    return {name: x if math.isfinite(x) else None for name, x in values.items()}


def _step_of(line: str) -> int:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError("a JSON object with a step") from error
    if type(step) is not int:
        raise ValueError("a step that is an integer")
    return step
