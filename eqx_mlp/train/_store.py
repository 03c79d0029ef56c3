"""Checkpoints as folders of files: written whole or not at all, checked when read.

A checkpoint is `folder/<step>`, with the bytes of all arrays in Orbax's format in
`arrays` (as one array, since each has its price, which the steps would pay) and with
`manifest.json`, which says where each of them is, holds everything else, and has the
SHA-256 of each file and of itself. It is written beside and renamed, and renamed before
it is deleted.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

# Raised whenever an older reader could take a checkpoint for something it is not.
FORMAT = 2

_WRITING = ".writing"
_DELETING = ".deleting"


def write(
    folder: Path,
    step: int,
    data: UInt8[np.ndarray, " bytes"],
    content: dict[str, Any],
) -> None:
    """Write a checkpoint: afterwards it is there and whole, at any moment before not.

    Only the process that holds the folder's lock may call this.
    """
    beside = folder / _WRITING
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    if data.size:  # Orbax refuses arrays without elements
        ocp, handler = _orbax()
        arrays = (beside / "arrays").absolute()
        arrays.mkdir()
        handler.save(arrays, args=ocp.args.PyTreeSave({"bytes": data}))
    files = sorted(path for path in beside.rglob("*") if path.is_file())
    content = {"format": FORMAT, "step": step} | content
    content["files"] = {
        path.relative_to(beside).as_posix(): _sha256(path.read_bytes())
        for path in files
    }
    content["sha256"] = _sha256(_canonical(content))
    manifest = beside / "manifest.json"
    manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for path in (*files, manifest, beside):
        _sync(path)
    os.rename(beside, _path(folder, step))
    _sync(folder)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after its own sum was checked.

    Raises:
        ValueError: another format version, or a file that is damaged or gone.
    """
    try:
        content = json.loads((path / "manifest.json").read_bytes())
        version = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "manifest.json", str(error)) from error
    if version != FORMAT:
        raise ValueError(
            f"the checkpoint {path} is of format version {version}, expected {FORMAT}: "
            "read it with the version of eqx_mlp that wrote it"
        )
    expected = content.pop("sha256", None)
    found = _sha256(_canonical(content))
    if found != expected:
        raise _damaged(path, "manifest.json", f"SHA-256 {found}, expected {expected}")
    return content


def read_bytes(path: Path, content: dict[str, Any]) -> UInt8[np.ndarray, " bytes"]:
    """The bytes of a checkpoint's arrays, after the sum of each file was checked.

    Raises:
        ValueError: a file that is damaged or gone.
    """
    for name, expected in content["files"].items():
        try:
            found = _sha256((path / name).read_bytes())
        except OSError as error:
            raise _damaged(path, name, str(error)) from error
        if found != expected:
            raise _damaged(path, name, f"SHA-256 {found}, expected {expected}")
    if not (path / "arrays").exists():
        return np.zeros(0, np.uint8)
    ocp, handler = _orbax()
    arrays = (path / "arrays").absolute()
    return np.asarray(handler.restore(arrays, args=ocp.args.PyTreeRestore())["bytes"])


def checkpoints_in(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by step, the latest last."""
    if not folder.is_dir():
        return {}
    paths = [path for path in folder.iterdir() if path.name.isdecimal()]
    return {int(path.name): path for path in sorted(paths, key=lambda p: int(p.name))}


def delete(folder: Path, step: int) -> None:
    """Delete a checkpoint, which at no moment looks whole and is not."""
    os.rename(_path(folder, step), folder / f"{_DELETING}-{step}")
    shutil.rmtree(folder / f"{_DELETING}-{step}", ignore_errors=True)


def clean(folder: Path) -> None:
    """Delete what a killed process left half written or half deleted."""
    for path in [folder / _WRITING, *folder.glob(f"{_DELETING}-*")]:
        shutil.rmtree(path, ignore_errors=True)


def require_orbax() -> None:
    """Raise an ImportError that names the extra where Orbax is not installed."""
    try:
        import orbax.checkpoint  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "checkpoints are stored with Orbax, which is not installed: "
            "pip install 'eqx-mlp[checkpoint]'"
        ) from error


def _orbax() -> tuple[Any, Any]:
    import jax
    import orbax.checkpoint as ocp

    # Each process is on its own here: it does not wait for others, who may not come.
    own = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"of{own}"
    )
    # The fewest files and threads: the steps need the cores. A handler without its
    # Checkpointer, which would write beside and rename a second time; plain Zarr, since
    # OCDBT, made for many small arrays, is merged by further work; no compression,
    # since weights hardly shrink.
    return ocp, ocp.PyTreeCheckpointHandler(
        use_ocdbt=False,
        use_zarr3=True,
        use_compression=False,
        multiprocessing_options=alone,
    )


def _path(folder: Path, step: int) -> Path:
    return folder / f"{step:012d}"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _damaged(path: Path, name: str, why: str) -> ValueError:
    return ValueError(
        f"the checkpoint {path} is damaged: {name}: {why}. Nothing was loaded; delete "
        f"{path} to go on from an earlier one"
    )


def _sync(path: Path) -> None:
    # A rename must not reach the disk before what it renames.
    if os.name == "nt" and path.is_dir():  # Windows opens no folder
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
