"""IDX files, the format of MNIST: what their header says, and whether the data are as it says.

bytes 0-3   magic: 0, 0, type of the elements (8: unsigned byte), number of dimensions
then        one big-endian 32-bit size per dimension
then        the elements, one after the other
"""

from __future__ import annotations

import functools
import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

_UNSIGNED_BYTE = 8
_PIECE_BYTES = 1 << 20


class IdxError(ValueError):
    """A file is not the IDX file it should be; the message says why, without the path."""


def read_shape(path: Path, num_dimensions: int) -> tuple[int, ...]:
    """The shape of an IDX file of unsigned bytes, plain or .gz; its size must be that of its shape.

    A .gz is unpacked for that, as only then it is known to be whole.
    """
    header_bytes = 4 + 4 * num_dimensions
    with open_idx(path) as file:
        header = _read(file, header_bytes)
    if len(header) < header_bytes:
        raise IdxError(f"it ends after {len(header)} bytes")
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    if header[:4] != magic:
        raise IdxError(f"its first bytes are {header[:4].hex(' ')}, must be {magic.hex(' ')}")
    shape = struct.unpack(f">{num_dimensions}I", header[4:])
    expected = header_bytes + math.prod(shape)
    actual = _unpacked_bytes(path)
    if actual != expected:
        raise IdxError(
            f"it has {actual:,} bytes, must have {expected:,} for its shape "
            + " x ".join(map(str, shape))
        )
    return shape


def read_labels(path: Path) -> bytes:
    """The elements of an IDX file with one dimension, one byte each."""
    with open_idx(path) as file:
        return _read(file)[8:]


def open_idx(path: Path) -> BinaryIO:
    """Open a plain or a .gz file for reading what is in it."""
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    return path.open("rb")


def _read(file: BinaryIO, num_bytes: int = -1) -> bytes:
    try:
        return file.read(num_bytes)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise IdxError(f"it cannot be unpacked: {error}") from None


def _unpacked_bytes(path: Path) -> int:
    found = path.stat()
    if path.suffix != ".gz":
        return found.st_size
    return _count_bytes(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=16)  # a sweep asks for every point
def _count_bytes(path: Path, _size: int, _changed_ns: int) -> int:
    with open_idx(path) as file:
        return sum(map(len, iter(lambda: _read(file, _PIECE_BYTES), b"")))
