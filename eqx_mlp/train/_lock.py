"""One writer a folder."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system gives back even if we are killed.

    Raises:
        RuntimeError: another process, or another run of this one, holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+", encoding="utf-8") as file:
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip() or "another process"
            raise RuntimeError(
                f"the checkpoint folder {folder} is being written by {owner}: wait for "
                "it to end, or give another folder"
            ) from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _lock(file: Any) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        windows: Any = msvcrt
        # A byte far behind the text, which others must be able to read.
        file.seek(1 << 20)
        windows.locking(file.fileno(), windows.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
