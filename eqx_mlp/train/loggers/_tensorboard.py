"""Event files for TensorBoard, written without it and without TensorFlow.

An event file is a TFRecord file of `Event` messages. A record is the length of its data
(uint64), the masked CRC-32C of these eight bytes, the data, and their masked CRC-32C,
all little endian. Messages are in Protocol Buffers' encoding; the numbers of the fields
are those of TensorFlow's `event.proto` and `summary.proto`.
"""

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from ..._checked import checked
from ._lines import PathLike, append, require_path
from ._logger import Logger, Row, Values


class TensorBoardLogger(Logger):
    """Writes each value as a scalar, for `tensorboard --logdir folder`.

    A run that goes on writes another file, whose beginning has TensorBoard drop what
    the earlier ones hold of later steps.

    Args:
        folder: of one run; made where it is missing.

    >>> import pathlib, tempfile
    >>> from eqx_mlp import TensorBoardLogger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TensorBoardLogger(folder).log(1, {"loss": 0.5})
    ...     [path.name[:19] for path in pathlib.Path(folder).iterdir()]
    ['events.out.tfevents']
    """

    @checked(lambda self, folder: require_path("TensorBoardLogger", folder))
    def __init__(self, folder: PathLike):
        self.folder = Path(folder)
        self.start(0)

    def start(self, step: int) -> None:
        """Begin a file that has later steps dropped."""
        # TensorBoard reads files in the order of their names.
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        self._path = self.folder / name
        # A start of the session at a step drops what is of this step or later.
        self._head = _event(0, _text(3, "brain.Event:2"))
        self._head += _event(step + 1, _bytes(7, _integer(1, 1)))

    def write(self, rows: Sequence[Row]) -> None:
        """Append an event for each row."""
        events = b"".join(_event(step, _bytes(5, _summary(row))) for step, row in rows)
        append(self._path, self._head + events)
        self._head = b""


def _summary(row: Values) -> bytes:
    values = (_text(1, name) + _float(2, value) for name, value in row.items())
    return b"".join(_bytes(1, value) for value in values)


def _event(step: int, what: bytes) -> bytes:
    data = _double(1, time.time()) + _integer(2, step) + what
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float | int) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _crc_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


# CRC-32C (Castagnoli), as in RFC 3720.
_CRC = [_crc_of_byte(byte) for byte in range(256)]


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    # Masked as TFRecord does, lest a CRC over data that hold CRCs be weak.
    crc = _crc32c(data)
    rotated = crc >> 15 | crc << 17 & 0xFFFFFFFF
    return struct.pack("<I", rotated + 0xA282EAD8 & 0xFFFFFFFF)
