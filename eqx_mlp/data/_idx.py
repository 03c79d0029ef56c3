"""IDX files, the format MNIST and its relatives come in.

An IDX file is two zero bytes, one byte for the element type, one for the number of
dimensions, a big-endian uint32 for each dimension, and then the elements, big endian
and in C order. Format: http://yann.lecun.com/exdb/mnist/ (Y. LeCun).
"""

import contextlib
import gzip
import io
import math
import os
import sys
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from jaxtyping import Int32, Shaped

from .._checked import checked

PathLike: TypeAlias = str | os.PathLike[str]

DTYPES = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
# Files are told apart by these bytes: names lie (a browser unpacks a .gz as it saves).
GZIP_MAGIC = b"\x1f\x8b"
# What NumPy takes; the format itself allows 255.
MAX_DIMENSIONS = 64
LONGEST_HEADER = 4 + 4 * MAX_DIMENSIONS
DEFAULT_MAX_BYTES = 2**32
DOWNLOAD_AGAIN = "download the file again"


@checked()
def read_idx(
    path: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Shaped[np.ndarray, "..."]:
    """Read the array in one IDX file, gzipped or plain.

    Args:
        path: the file. Whether it is gzipped is read from its bytes, not its name.
        max_bytes: the largest uncompressed size to accept, 4 GiB unless told. No more
            than the header declares is ever decompressed.

    Returns:
        A writable array in the machine's byte order, of the file's shape and of dtype
        uint8, int8, int16, int32, float32 or float64.

    Raises:
        ValueError: the file is not IDX (a saved web page, say), is truncated, over-long
            or corrupt, or declares more than `max_bytes`.
        FileNotFoundError: there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> from eqx_mlp.data import read_idx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "labels-idx1-ubyte"
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 4]))
        ...     read_idx(path)
        array([5, 0, 4], dtype=uint8)
    """
    source = os.fspath(path)
    with _uncompressed(path) as stream:
        head = _read_at_most(stream, LONGEST_HEADER)
        dtype, shape = _parse_header(head, source)
        declared = _header_size(shape) + _body_size(dtype, shape)
        if declared > max_bytes:
            raise ValueError(
                f"{source}: expected at most {max_bytes} bytes, the header declares "
                f"{declared} (shape {shape}, {dtype.name}): the size is corrupt, so "
                f"{DOWNLOAD_AGAIN}; or, if it is right, pass a larger max_bytes"
            )
        # One byte more than declared shows an over-long body, however long.
        data = head + _read_at_most(stream, declared + 1 - len(head))
    return parse_idx(data, source)


def parse_idx(data: bytes, source: str) -> Shaped[np.ndarray, "..."]:
    """Turn the uncompressed bytes of an IDX file into the array they hold.

    Args:
        data: the whole file, header and body.
        source: what to call the file in errors.

    Returns:
        A writable array in the machine's byte order, of the shape in the header.

    Raises:
        ValueError: `data` is not exactly one IDX file.

    Example:
        >>> from eqx_mlp.data._idx import parse_idx
        >>> parse_idx(bytes([0, 0, 11, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 3]), "two")
        array([[256,   3]], dtype=int16)
    """
    dtype, shape = _parse_header(data, source)
    header = _header_size(shape)
    # Python integers do not overflow, and nothing is allocated before they agree.
    declared, found = header + _body_size(dtype, shape), len(data)
    if found != declared:
        fault, got = (
            ("truncated", f"{found} bytes")
            if found < declared
            else ("over-long", "more than that")
        )
        raise ValueError(
            f"{source}: {fault} IDX file: expected {declared} bytes (a header of "
            f"{header} and {dtype.name} elements of shape {shape}), got {got}: "
            f"{DOWNLOAD_AGAIN}"
        )
    stored = np.frombuffer(data, dtype, offset=header).reshape(shape)
    # astype also copies, so that the result is writable and lets go of `data`.
    return stored.astype(dtype.newbyteorder("="))


@checked()
def load_idx_pair(
    images: PathLike, labels: PathLike
) -> tuple[Shaped[np.ndarray, "batch ..."], Int32[np.ndarray, " batch"]]:
    """Read a file of examples and the file of their labels.

    Args:
        images: IDX file of any element type, shape [batch, ...].
        labels: IDX file of integers, shape [batch].

    Returns:
        The examples as stored, [batch, ...], and the labels as int32, [batch].

    Raises:
        ValueError: the counts disagree, the labels are not one integer an example, or
            either file is faulty (see `read_idx`).
        FileNotFoundError: one of the files is missing.

    Example:
        >>> import pathlib, tempfile
        >>> from eqx_mlp.data import load_idx_pair
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     x, y = pathlib.Path(folder, "x"), pathlib.Path(folder, "y")
        ...     _ = x.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 2, 9, 8]))
        ...     _ = y.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
        ...     load_idx_pair(x, y)
        (array([[9, 8]], dtype=uint8), array([7], dtype=int32))
    """
    return match_labels(
        read_idx(images), read_idx(labels), os.fspath(images), os.fspath(labels)
    )


def match_labels(
    x: Shaped[np.ndarray, "..."],
    y: Shaped[np.ndarray, "..."],
    x_source: str,
    y_source: str,
) -> tuple[Shaped[np.ndarray, "batch ..."], Int32[np.ndarray, " batch"]]:
    """Give back `x` and the int32 labels `y` if each example has one label.

    `x_source` and `y_source` name the two files in the ValueError.
    """
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError(
            f"{y_source}: expected labels, integers of shape [batch], got {y.dtype} of "
            f"shape {y.shape}: are the images and the labels swapped?"
        )
    if x.shape[0] != y.shape[0]:
        raise ValueError(
            f"expected one label an image, got {x.shape[0]} images in {x_source} and "
            f"{y.shape[0]} labels in {y_source}: take both from the same data set and "
            "the same part of it (train or test)"
        )
    return x, y.astype(np.int32)


def read_uncompressed(path: PathLike, max_bytes: int) -> bytes:
    """Read all of a file, gzipped or plain, refusing more than `max_bytes`.

    The bound holds while decompressing, so that a small file cannot fill the memory.
    """
    with _uncompressed(path) as stream:
        data = _read_at_most(stream, max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(
            f"{os.fspath(path)}: expected at most {max_bytes} bytes uncompressed, got "
            f"more: this is another file, or a corrupt one; {DOWNLOAD_AGAIN}"
        )
    return data


@contextlib.contextmanager
def _uncompressed(path: PathLike) -> Iterator[io.BufferedIOBase]:
    with open(path, "rb") as file:
        zipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        file.seek(0)
        if not zipped:
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as stream:
                yield stream
        except EOFError as error:
            raise ValueError(
                f"{os.fspath(path)}: expected a whole gzip stream, got a truncated one "
                f"({error}): {DOWNLOAD_AGAIN}"
            ) from error
        except (zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{os.fspath(path)}: expected one sound gzip stream, got one that is "
                f"corrupt or followed by other bytes ({error}): {DOWNLOAD_AGAIN}"
            ) from error


def _read_at_most(stream: io.BufferedIOBase, limit: int) -> bytes:
    # In pieces, because read(n) of a plain file allocates all of n first.
    chunks = []
    while limit > 0 and (chunk := stream.read(min(limit, 2**20))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _header_size(shape: tuple[int, ...]) -> int:
    return 4 + 4 * len(shape)


def _body_size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)


def _parse_header(head: bytes, source: str) -> tuple[np.dtype, tuple[int, ...]]:
    def fault(what: str, mend: str = DOWNLOAD_AGAIN) -> ValueError:
        return ValueError(f"{source}: {what}: {mend}")

    if not bytes(2).startswith(head[:2]):
        if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
            raise fault(
                "expected an IDX file, got HTML or XML: a web page was saved instead "
                "of the file",
                "download the file itself, not the page that links to it",
            )
        raise fault(
            "wrong magic: expected an IDX file, which begins with the bytes 00 00, got "
            f"{head[:4].hex(' ')}",
            "check that this is the right file, or download it again",
        )
    if len(head) < 4:
        raise fault(
            f"truncated header: expected at least 4 bytes of IDX, got {len(head)}"
        )
    code, ndim = head[2], head[3]
    if code not in DTYPES:
        known = ", ".join(f"0x{c:02x} {d.name}" for c, d in DTYPES.items())
        raise fault(f"expected an IDX element type ({known}), got 0x{code:02x}")
    if not 1 <= ndim <= MAX_DIMENSIONS:
        raise fault(
            f"expected 1 to {MAX_DIMENSIONS} dimensions, the header declares {ndim}"
        )
    size = 4 + 4 * ndim
    if len(head) < size:
        raise fault(
            f"truncated header: expected {size} bytes for {ndim} dimensions, got "
            f"{len(head)}"
        )
    dtype = DTYPES[code]
    shape = tuple(np.frombuffer(head, ">u4", count=ndim, offset=4).tolist())
    # An empty array passes every check of its size, yet NumPy has to address its axes.
    if dtype.itemsize * math.prod(max(n, 1) for n in shape) > sys.maxsize:
        raise fault(
            f"expected a shape that fits in memory, the header declares {shape}"
        )
    return dtype, shape
