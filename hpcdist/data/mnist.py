"""mnist and fashion_mnist: IDX files under a root that the user names, in torchvision's layout.

    <root>/MNIST/raw/train-images-idx3-ubyte          60,000 images of 28 x 28 pixels
    <root>/MNIST/raw/train-labels-idx1-ubyte
    <root>/MNIST/raw/t10k-images-idx3-ubyte           10,000
    <root>/MNIST/raw/t10k-labels-idx1-ubyte

and the same under FashionMNIST/raw. Each may also be there as .gz only. Checking needs no torch.

An IDX file:

    bytes 0-3   magic: 0, 0, type of the elements (8: unsigned byte), number of dimensions
    then        one big-endian 32-bit size per dimension
    then        the elements, one after the other
"""

from __future__ import annotations

import functools
import gzip
import math
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from hpcdist.base.errors import JobError
from hpcdist.data.splits import SplitSizes
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from torch import Tensor

    from hpcdist.data.arrays import DataSet


_NUM_CLASSES = 10
_PARTS = {"train": "train", "test": "t10k"}
_DOWNLOAD = "import sys, torchvision; {call}(sys.argv[1], download=True)"


@dataclass(frozen=True)
class IdxDataSet:
    """A data set that torchvision reads from four IDX files."""

    torchvision_class: str
    """Name of the class in torchvision.datasets, and of the folder under root."""

    def check(self, data: Data) -> SplitSizes:
        """The sizes of the two parts; JobError where a file is missing or not what it must be."""
        root = self._root(data)
        if not root.is_dir():
            raise self._error(data, f"{root} is not a folder")
        shapes = {part: self._check_part(data, part) for part in _PARTS}
        (_, *train), (_, *test) = shapes.values()
        if train != test or 0 in train:
            raise self._error(
                data, f"it has images of {_pixels(train)} to train with, of {_pixels(test)} to test"
            )
        return SplitSizes(**{part: number for part, (number, *_) in shapes.items()})

    def is_complete(self, data: Data) -> bool:
        root = self._root(data)
        return all(self._find(root, name) for part in _PARTS for name in _names(part))

    def load(self, data: Data) -> DataSet:
        from hpcdist.data.arrays import make_data_set

        return make_data_set(
            self._load_part(data, "train"), self._load_part(data, "test"), num_classes=_NUM_CLASSES
        )

    def download(self, data: Data) -> None:
        """Download what is missing, through torchvision's class in a process of its own.

        JobError where that fails; torchvision leaves no file that it did not verify.
        """
        if self.is_complete(data):
            return
        download_by_torchvision(self.torchvision_class, self._root(data))

    def _check_part(self, data: Data, part: str) -> tuple[int, ...]:
        """Return the shape of its images."""
        root = self._root(data)
        images, labels = _names(part)
        shape = self._check_file(data, images, num_dimensions=3)
        num_images = shape[0]
        (num_labels,) = self._check_file(data, labels, num_dimensions=1)
        label_file = self._find(root, labels)
        if num_images == 0 or num_images != num_labels:
            raise self._error(
                data, f"{label_file} has {num_labels:,} labels for {num_images:,} images"
            )
        assert label_file is not None
        try:
            largest = max(read_elements(label_file, 1))
        except IdxError as error:
            raise self._error(data, f"{label_file} is damaged: {error}") from None
        if largest >= _NUM_CLASSES:
            raise self._error(
                data, f"{label_file} has the label {largest}, must be 0 to {_NUM_CLASSES - 1}"
            )
        return shape

    def _check_file(self, data: Data, name: str, num_dimensions: int) -> tuple[int, ...]:
        root = self._root(data)
        path = self._find(root, name)
        if path is None:
            raise self._error(data, f"{self._raw_folder(root) / name} is missing, also as .gz")
        try:
            return read_shape(path, num_dimensions)
        except IdxError as error:
            raise self._error(data, f"{path} is not the IDX file it must be: {error}") from None
        except OSError as error:
            raise self._error(data, f"{path} cannot be read: {error.strerror or error}") from None

    def _root(self, data: Data) -> Path:
        if data.root is None:
            raise JobError(
                f"data.root is not set, and {data.name} is not bundled",
                hint="name the folder that holds it: " + self._layout(),
            )
        return Path(data.root).expanduser()

    def _error(self, data: Data, wrong: str) -> JobError:
        hint = (
            f"lay it out as {self._layout()}, or set data.download to true where there is internet"
        )
        return JobError(f"data.root is {data.root!r}: {wrong}", hint=hint)

    def _layout(self) -> str:
        names = ", ".join(name for part in _PARTS for name in _names(part))
        return f"<root>/{self.torchvision_class}/raw/ with {names} (plain or .gz)"

    def _raw_folder(self, root: Path) -> Path:
        return root / self.torchvision_class / "raw"

    def _find(self, root: Path, name: str) -> Path | None:
        raw = self._raw_folder(root)
        return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)

    def _load_part(self, data: Data, part: str) -> tuple[Tensor, Tensor]:
        """Return images [samples, height, width] and labels [samples], uint8."""
        images, labels = (
            self._load_file(data, name, num_dimensions)
            for name, num_dimensions in zip(_names(part), (3, 1), strict=True)
        )
        return images, labels

    def _load_file(self, data: Data, name: str, num_dimensions: int) -> Tensor:
        import torch

        shape = self._check_file(data, name, num_dimensions)
        path = self._find(self._root(data), name)
        assert path is not None
        elements = bytearray(read_elements(path, num_dimensions))
        return torch.frombuffer(elements, dtype=torch.uint8).reshape(shape)


def download_by_torchvision(torchvision_class: str, root: Path) -> None:
    """Have torchvision download a data set, in a process of its own; JobError where that fails.

    torchvision leaves no file that it did not verify.
    """
    code = _DOWNLOAD.format(call=f"torchvision.datasets.{torchvision_class}")
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise JobError(
            f"data.download: {torchvision_class} cannot be fetched to {root}: {last_line}",
            hint="download it where there is internet, and name its folder with data.root",
        )


def _pixels(size: Sequence[int]) -> str:
    height, width = size
    return f"{width} x {height} pixels"


def _names(part: str) -> tuple[str, str]:
    prefix = _PARTS[part]
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


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


def read_elements(path: Path, num_dimensions: int) -> bytes:
    """Return the elements of an IDX file of unsigned bytes."""
    with open_idx(path) as file:
        return _read(file)[4 + 4 * num_dimensions :]


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
    status = path.stat()
    if path.suffix != ".gz":
        return status.st_size
    return _count_bytes(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=16)  # a sweep asks for every point
def _count_bytes(path: Path, _size: int, _changed_ns: int) -> int:
    with open_idx(path) as file:
        return sum(map(len, iter(lambda: _read(file, _PIECE_BYTES), b"")))
