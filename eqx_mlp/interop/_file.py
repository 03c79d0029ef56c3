"""Files that are whole or not there."""

import os
import uuid
from pathlib import Path
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


def write_whole(path: PathLike, data: bytes | bytearray) -> None:
    """Write a file beside and rename it: nobody reads half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            # A rename must not reach the disk before what it renames.
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
