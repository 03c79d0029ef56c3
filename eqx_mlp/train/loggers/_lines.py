"""Files that are appended to, and lines that are cut at a step."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


def require_path(owner: str, path: Any) -> None:
    """Raise a ValueError unless `path` is one."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{owner}: path must be that of a file, got {path!r}")


def append(path: Path, data: bytes) -> None:
    """Append to a file, and close it: what is written is then the system's to keep."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(data)


def cut(path: Path, step: int, head: bytes, step_of: Callable[[str], int]) -> None:
    """Cut the file after the last row of `step` or before, by one truncation.

    A last line without its end, which a process was killed in, goes too. The file
    begins with `head`; `step_of` gives a line's step, and its ValueError says what it
    expected.
    """
    if not path.exists():
        return
    with open(path, "r+b") as file:
        end, done = 0, False
        for number, line in enumerate(file, 1):
            try:
                if number == 1 and line[: len(head)] != head[: len(line)]:
                    raise ValueError(f"it to begin with {head.decode()!r}")
                if not line.endswith(b"\n"):
                    break
                done |= step_of(line.decode(errors="replace")) > step
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: expected {error}, got {line[:60]!r}: this "
                    "is no log to go on with, so give another path, or remove it"
                ) from error
            end += 0 if done else len(line)
        file.truncate(end)
