"""MNIST: found on disk or downloaded, and never trusted before its hash is checked."""

import contextlib
import hashlib
import io
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Int32, Shaped, UInt8

from .._checked import checked
from ._cache import cache_folder as _cache_folder
from ._idx import PathLike, match_labels, parse_idx, read_uncompressed

logger = logging.getLogger("eqx_mlp")

ENVIRONMENT = "EQX_MLP_DATA"
MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Of the uncompressed bytes: gzip writes the time and its own level into the .gz.
SHA256 = {
    "train-images-idx3-ubyte": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "train-labels-idx1-ubyte": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "t10k-images-idx3-ubyte": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "t10k-labels-idx1-ubyte": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}
# Above the largest file (47,040,016 bytes); bounds a download and its decompression.
MAX_BYTES = 64 * 2**20
# Seconds to connect, and between two pieces of an answer.
TIMEOUT = (10, 30)
# There in a clone only: the files are in neither the wheel nor the sdist.
BESIDE_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "data" / "mnist"


class DataNotFoundError(FileNotFoundError, ValueError):
    """The files of a data set are in none of the places that were looked in."""


class Split(NamedTuple):
    """A data set in its two parts, each a pair of examples and labels."""

    train: tuple[UInt8[np.ndarray, "train 28 28"], Int32[np.ndarray, " train"]]
    test: tuple[UInt8[np.ndarray, "test 28 28"], Int32[np.ndarray, " test"]]

    def __repr__(self) -> str:
        return eqx.tree_pformat(self)


@checked()
def mnist(path: PathLike | None = None) -> Split:
    """Load MNIST, from disk where it is there and from a mirror otherwise.

    Looks in `path`, else in the folder `$EQX_MLP_DATA`: one that is given must hold
    the files, and nothing else is tried. Without either: the files beside the examples
    of a clone, the user's cache (`$XDG_CACHE_HOME/eqx_mlp/mnist`, or where the system
    keeps caches), then a download into that cache. The logger `eqx_mlp` says at level
    INFO which it was.

    In a folder each of the four files may be gzipped or not, and be called
    `train-images-idx3-ubyte` or `train-images.idx3-ubyte`, with or without `.gz`. The
    SHA-256 of its uncompressed bytes is checked on every route.

    Args:
        path: a folder with the four files.

    Returns:
        `train`, a pair of images uint8 [60000, 28, 28] from 0 (paper) to 255 (ink) and
        labels int32 [60000] from 0 to 9; and `test`, the same with 10000.

    Raises:
        DataNotFoundError: a ValueError and a FileNotFoundError; a given folder lacks a
            file, or no place and no mirror had it. It lists every one that was tried.
        ValueError: a file in a given folder is not the right one.
        ImportError: a download is needed and pooch is not installed.

    Example:
        >>> from eqx_mlp.data import mnist
        >>> (x, y), _ = mnist()
        >>> x.shape, x.dtype, y[:3]
        ((60000, 28, 28), dtype('uint8'), array([5, 0, 4], dtype=int32))

    Data: Y. LeCun, C. Cortes and C. J. C. Burges, licence CC BY-SA 3.0.
    """
    given, said_by = path, "path"
    if given is None:
        # Set but empty is how a shell often unsets a variable.
        given, said_by = os.environ.get(ENVIRONMENT) or None, f"${ENVIRONMENT}"
    if given is not None:
        folder = Path(given).expanduser()
        split = _from_given(folder, said_by)
        logger.info("MNIST: read from %s (%s)", folder, said_by)
        return split

    tried: list[str] = []
    split = _from_clone(tried)
    if split is not None:
        logger.info("MNIST: read from %s (beside the examples)", BESIDE_EXAMPLES)
        return split
    return _from_cache_or_mirrors(tried)


def _from_given(folder: Path, said_by: str) -> Split:
    missing = _missing(folder)
    if missing:
        looked_for = "".join(
            f"\n  {' or '.join(path.name for path in _candidates(folder, name))}"
            for name in missing
        )
        state = "lacks some" if folder.is_dir() else "is not a folder"
        raise DataNotFoundError(
            f"{said_by}: expected a folder with the four MNIST files, got {folder}, "
            f"which {state}. Looked for{looked_for}\nPut them there, or give neither "
            f"path nor ${ENVIRONMENT} to have them found or downloaded"
        )
    return _read_folder(folder)


def _from_clone(tried: list[str]) -> Split | None:
    folder = BESIDE_EXAMPLES
    if missing := _missing(folder):
        tried.append(f"{folder}: no {', '.join(missing)}")
        return None
    try:
        return _read_folder(folder)
    except (OSError, ValueError) as error:
        # Nobody asked for these, so they do not stand in the way of good ones.
        logger.warning("MNIST: passing over the files beside the examples: %s", error)
        tried.append(str(error))
        return None


def _from_cache_or_mirrors(tried: list[str]) -> Split:
    try:
        folder = _cache_folder()
    except RuntimeError as error:
        raise _nowhere([*tried, f"the cache: {error} Set XDG_CACHE_HOME"]) from error
    arrays: dict[str, np.ndarray] = {}
    mirrors: list[str] = list(MIRRORS)
    used: list[str] = []
    for name in SHA256:
        array = _from_cache(folder, name, tried)
        if array is None:
            array, mirror = _download(folder, name, mirrors, tried)
            # The next file begins with the mirror that works, not with a time-out.
            mirrors.sort(key=lambda m, good=mirror: m != good)
            used.append(mirror)
        arrays[name] = array
    split = _split(arrays, folder)
    if used:
        origin = ", ".join(dict.fromkeys(used))
        logger.info("MNIST: downloaded from %s into the cache %s", origin, folder)
    else:
        logger.info("MNIST: read from the cache %s", folder)
    return split


def _from_cache(
    folder: Path, name: str, tried: list[str]
) -> Shaped[np.ndarray, "..."] | None:
    present = _present(folder, name)
    if not present:
        tried.append(f"{folder}: no {name}")
    for path in present:
        try:
            return _verified(path, name)
        except (OSError, ValueError) as error:
            logger.warning("MNIST: replacing a bad file in the cache: %s", error)
            tried.append(str(error))
    return None


def _download(
    folder: Path, name: str, mirrors: list[str], tried: list[str]
) -> tuple[Shaped[np.ndarray, "..."], str]:
    """Fetch one file into the cache; the array in it, and the mirror it came from."""
    downloader = _http_downloader(tried)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _nowhere([*tried, f"{folder}: cannot be made: {error}"]) from error
    reasons = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}.gz"
        # A name of its own in the same folder: nobody reads it before it is whole and
        # checked, os.replace is atomic, and two processes do not write to one file.
        part = folder / f".{name}.{os.getpid()}.{uuid.uuid4().hex}.part"
        try:
            with open(part, "xb") as file:
                downloader(url, _Bounded(file), None)
            array = _verified(part, name)
            # Windows refuses while another process reads a copy just as good.
            with contextlib.suppress(PermissionError):
                os.replace(part, folder / f"{name}.gz")
            return array, mirror
        # requests' errors are OSErrors. A wrong hash counts like a lost connection.
        except (OSError, ValueError) as error:
            logger.info("MNIST: no %s from %s: %s", name, mirror, error)
            reasons.append(f"{url}: {str(error).removeprefix(f'{part}: ')}")
        finally:
            part.unlink(missing_ok=True)
    raise _nowhere([*tried, *reasons])


def _http_downloader(tried: list[str]) -> Callable[..., object]:
    try:
        from pooch import HTTPDownloader
    except ImportError as error:
        looked = "".join(f"\n  {line}" for line in tried)
        raise ImportError(
            "MNIST has to be downloaded, which needs pooch: pip install "
            f"'eqx-mlp[download]', or put the four files in a folder and name it as "
            f"path or ${ENVIRONMENT}. Looked in{looked}"
        ) from error
    return HTTPDownloader(timeout=TIMEOUT, chunk_size=2**16)


class _Bounded:
    """A file that refuses to grow past MAX_BYTES, whatever a server sends."""

    def __init__(self, file: io.BufferedIOBase):
        self.file = file

    def write(self, data: bytes) -> None:
        if self.file.tell() + len(data) > MAX_BYTES:
            raise ValueError(
                f"expected at most {MAX_BYTES} bytes, the mirror sent more"
            )
        self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _nowhere(tried: list[str]) -> DataNotFoundError:
    places = "".join(f"\n  {line}" for line in tried)
    return DataNotFoundError(
        f"MNIST is in none of the places looked in, and no mirror gave it:{places}\n"
        "Put the four files in a folder and name it as path or "
        f"${ENVIRONMENT}, or mend the network and call again"
    )


def _candidates(folder: Path, name: str) -> list[Path]:
    dotted = name.replace("-idx", ".idx")
    return [folder / n for n in (f"{name}.gz", name, f"{dotted}.gz", dotted)]


def _present(folder: Path, name: str) -> list[Path]:
    # os.path.isfile, because Path.is_file raises in a folder one may not enter.
    return [path for path in _candidates(folder, name) if os.path.isfile(path)]


def _missing(folder: Path) -> list[str]:
    return [name for name in SHA256 if not _present(folder, name)]


def _read_folder(folder: Path) -> Split:
    return _split(
        {name: _verified(_present(folder, name)[0], name) for name in SHA256}, folder
    )


def _verified(path: Path, name: str) -> Shaped[np.ndarray, "..."]:
    """Read the array in a file, once its uncompressed bytes have the right hash."""
    data = read_uncompressed(path, MAX_BYTES)
    found = hashlib.sha256(data).hexdigest()
    if found == SHA256[name]:
        return parse_idx(data, str(path))
    reason = "an IDX file with other contents"
    try:
        parse_idx(data, str(path))
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
    raise ValueError(
        f"{path}: not MNIST's {name}: expected SHA-256 {SHA256[name]} of the "
        f"uncompressed bytes, found {found} ({len(data)} bytes; {reason}): "
        f"replace it with {name}.gz from {' or '.join(MIRRORS)}"
    )


def _split(arrays: dict[str, Shaped[np.ndarray, "..."]], folder: Path) -> Split:
    def pair(x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
        return match_labels(arrays[x], arrays[y], str(folder / x), str(folder / y))

    train_x, train_y, test_x, test_y = SHA256
    return Split(train=pair(train_x, train_y), test=pair(test_x, test_y))
