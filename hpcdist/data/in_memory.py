"""The data sets that are held in memory: digits, mnist, fashion_mnist and cifar10.

digits: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn. The file is read
without importing scikit-learn, whose import takes half a second. Source: E. Alpaydin and C. Kaynak,
Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.

mnist and fashion_mnist: IDX files under a root that the user names, in torchvision's layout.

    <root>/MNIST/raw/train-images-idx3-ubyte          60,000 images of 28 x 28 pixels
    <root>/MNIST/raw/train-labels-idx1-ubyte
    <root>/MNIST/raw/t10k-images-idx3-ubyte           10,000
    <root>/MNIST/raw/t10k-labels-idx1-ubyte

and the same under FashionMNIST/raw. Each may also be there as .gz only. Checking needs no torch.

An IDX file:

    bytes 0-3   magic: 0, 0, type of the elements (8: unsigned byte), number of dimensions
    then        one big-endian 32-bit size per dimension
    then        the elements, one after the other

cifar10: pickled batches under a root that the user names, in torchvision's layout.

    <root>/cifar-10-batches-py/data_batch_1            to data_batch_5, 10,000 images each
    <root>/cifar-10-batches-py/test_batch              10,000
    <root>/cifar-10-batches-py/batches.meta

A pickle can run anything: the files are unpickled only in the ranks, by torchvision, and only with
the checksums of the published ones, which are compared before.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_regular
from hpcdist.base.text import show_bytes
from hpcdist.data.splits import SplitSizes, data_root, existing_root, wrong_root
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from torch import Tensor

    from hpcdist.data.arrays import DataSet

_NUM_CLASSES = 10

_DIGITS = "datasets/data/digits.csv.gz"
_SIDE = 8
_TEST_SHARE = 0.2
_SPLIT_SEED = 1797  # fixed: accuracies of all runs are about the same test images

_Rows = list[list[int]]
"""A row per image: 64 pixels from 0 to 16, then the digit."""


def check_digits(_data: Data) -> SplitSizes:
    """Return the sizes of the two parts; JobError where scikit-learn is not installed."""
    train, test = _read_digits(_digits_file())
    return SplitSizes(train=len(train), test=len(test))


def load_digits(_data: Data) -> DataSet:
    import torch

    from hpcdist.data.arrays import make_data_set

    tables = [torch.tensor(rows, dtype=torch.uint8) for rows in _read_digits(_digits_file())]
    train, test = ((table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]) for table in tables)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)


def _digits_file() -> Path:
    package = find_spec("sklearn")
    path = Path(package.origin).parent / _DIGITS if package and package.origin else None
    if path is None or not path.is_file():
        raise JobError(
            "data.name is digits, but scikit-learn, which brings these images, is not installed",
            hint="install it with: pip install scikit-learn",
        )
    return path


@functools.cache  # a sweep asks for every point
def _read_digits(path: Path) -> tuple[_Rows, _Rows]:
    """The training and the test images: of each digit the same share, drawn by lot."""
    with gzip.open(path, "rt") as file:
        everything = [[int(value) for value in line.split(",")] for line in file]
    drawing = random.Random(_SPLIT_SEED)
    train: _Rows = []
    test: _Rows = []
    for digit in range(_NUM_CLASSES):
        rows = [row for row in everything if row[-1] == digit]
        drawing.shuffle(rows)
        num_test = round(len(rows) * _TEST_SHARE)
        test += rows[:num_test]
        train += rows[num_test:]
    drawing.shuffle(train)  # so that the first samples alone (data.train_samples) show all digits
    drawing.shuffle(test)
    return train, test


_PARTS = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class IdxDataSet:
    """A data set that torchvision reads from four IDX files."""

    torchvision_class: str
    """Name of the class in torchvision.datasets, and of the folder under root."""

    def check(self, data: Data) -> SplitSizes:
        """The sizes of the two parts; JobError where a file is missing or not what it must be."""
        existing_root(data, self._layout)
        shapes = {part: self._check_part(data, part) for part in _PARTS}
        (_, *train), (_, *test) = shapes.values()
        if train != test or 0 in train:
            wrong = f"it has images of {_pixels(train)} for training, of {_pixels(test)} to test"
            raise wrong_root(data, wrong, self._layout)
        return SplitSizes(**{part: number for part, (number, *_) in shapes.items()})

    def is_complete(self, data: Data) -> bool:
        return all(self._find(data, name) for part in _PARTS for name in _names(part))

    def load(self, data: Data) -> DataSet:
        import torch

        from hpcdist.data.arrays import make_data_set

        def load(name: str, num_dimensions: int) -> Tensor:
            path, shape = self._check_file(data, name, num_dimensions)
            elements = bytearray(read_elements(path, num_dimensions))
            return torch.frombuffer(elements, dtype=torch.uint8).reshape(shape)

        train, test = ((load(images, 3), load(labels, 1)) for images, labels in map(_names, _PARTS))
        return make_data_set(train, test, num_classes=_NUM_CLASSES)

    def _check_part(self, data: Data, part: str) -> tuple[int, ...]:
        """Return the shape of its images."""
        images, labels = _names(part)
        _, shape = self._check_file(data, images, 3)
        label_file, (num_labels,) = self._check_file(data, labels, 1)
        num_images = shape[0]
        if num_images == 0 or num_images != num_labels:
            wrong = f"{label_file} has {num_labels:,} labels for {num_images:,} images"
            raise wrong_root(data, wrong, self._layout)
        largest = max(read_elements(label_file, 1))
        if largest >= _NUM_CLASSES:
            wrong = f"{label_file} has the label {largest}, must be 0 to {_NUM_CLASSES - 1}"
            raise wrong_root(data, wrong, self._layout)
        return shape

    def _check_file(
        self, data: Data, name: str, num_dimensions: int
    ) -> tuple[Path, tuple[int, ...]]:
        """Return the path of a file and the shape of its elements."""
        path = self._find(data, name)
        if path is None:
            wrong = f"{self._raw_folder(data) / name} is missing, also as .gz"
            raise wrong_root(data, wrong, self._layout)
        try:
            return path, read_shape(path, num_dimensions)
        except IdxError as error:
            wrong = f"{path} is not the IDX file it must be: {error}"
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror or error}"
        raise wrong_root(data, wrong, self._layout)

    @property
    def _layout(self) -> str:
        names = ", ".join(name for part in _PARTS for name in _names(part))
        return (
            f"lay it out as <root>/{self.torchvision_class}/raw/ with {names} (plain or .gz), or "
            "set data.download to true where there is internet"
        )

    def _raw_folder(self, data: Data) -> Path:
        return data_root(data, self._layout) / self.torchvision_class / "raw"

    def _find(self, data: Data, name: str) -> Path | None:
        raw = self._raw_folder(data)
        return next((path for path in (raw / name, raw / f"{name}.gz") if path.is_file()), None)


def _pixels(size: Sequence[int]) -> str:
    height, width = size
    return f"{width} x {height} pixels"


def _names(part: str) -> tuple[str, str]:
    prefix = _PARTS[part]
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


_UNSIGNED_BYTE = 8
_PIECE_BYTES = 1 << 20
_MOST_BYTES = 8 * 10**9
"""Size of a file that is read, and of what is in it: all of it is held in memory."""


class IdxError(ValueError):
    """A file is not the IDX file it should be; the message says why, without the path."""


def read_shape(path: Path, num_dimensions: int) -> tuple[int, ...]:
    """The shape of an IDX file of unsigned bytes, plain or .gz; its size must be that of its shape.
    A .gz is unpacked for that, as only then it is known to be whole."""
    header_bytes = 4 + 4 * num_dimensions
    status = path.stat()
    with _opened(path) as file:
        header = file.read(header_bytes)
    if len(header) < header_bytes:
        raise IdxError(f"it ends after {len(header)} bytes")
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
    if header[:4] != magic:
        raise IdxError(f"its first bytes are {header[:4].hex(' ')}, must be {magic.hex(' ')}")
    shape = struct.unpack(f">{num_dimensions}I", header[4:])
    expected = header_bytes + math.prod(shape)
    if expected > _MOST_BYTES:
        sizes = f"{show_bytes(expected)}, and no more than {show_bytes(_MOST_BYTES)} are read"
        raise IdxError(f"its shape is that of {sizes}")
    actual = status.st_size
    if path.suffix == ".gz":
        actual = _count_bytes(path, actual, status.st_mtime_ns, most=expected)
    if actual != expected:
        wrong = f"{actual:,}"
        if path.suffix == ".gz" and actual > expected:  # what is beyond was not unpacked
            wrong = f"more than {expected:,}"
        raise IdxError(
            f"it has {wrong} bytes, must have {expected:,} for its shape "
            + " x ".join(map(str, shape))
        )
    return shape


def read_elements(path: Path, num_dimensions: int) -> bytes:
    with _opened(path) as file:
        return file.read()[4 + 4 * num_dimensions :]


@functools.lru_cache(maxsize=16)  # a sweep asks for every point
def _count_bytes(path: Path, _size: int, _changed_ns: int, *, most: int) -> int:
    """Return how much a .gz unpacks to; of what is more than `most` only a part is unpacked."""
    num_bytes = 0
    with _opened(path) as file:
        while num_bytes <= most and (piece := file.read(_PIECE_BYTES)):
            num_bytes += len(piece)
    return num_bytes


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or a .gz file for reading what is in it; IdxError where it is damaged."""
    try:
        with open_regular(path, most_bytes=_MOST_BYTES) as raw:
            is_packed = path.suffix == ".gz"
            with gzip.GzipFile(fileobj=raw) if is_packed else nullcontext(raw) as file:
                yield cast("BinaryIO", file)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise IdxError(f"it cannot be unpacked: {error}") from None


_CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
"""Checksum of each file, as torchvision has them."""
_CIFAR_SIZES = SplitSizes(train=50_000, test=10_000)
_CIFAR_LAYOUT = (
    f"lay it out as <root>/{_CIFAR_FOLDER}/ with {', '.join(CIFAR_MD5)}, or set data.download to "
    "true where there is internet"
)


def check_cifar(data: Data) -> SplitSizes:
    """The sizes of the two parts; JobError where a file is missing or not the published one."""
    folder = data_root(data, _CIFAR_LAYOUT) / _CIFAR_FOLDER
    for name, md5 in CIFAR_MD5.items():
        path = folder / name
        try:
            status = path.stat()
            actual = _md5(path, status.st_size, status.st_mtime_ns)
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror or error}"
            raise wrong_root(data, wrong, _CIFAR_LAYOUT) from None
        if actual != md5:
            wrong = f"{path} is damaged, or another file: its MD5 is {actual}, must be {md5}"
            raise wrong_root(data, wrong, _CIFAR_LAYOUT)
    return _CIFAR_SIZES


@functools.lru_cache(maxsize=len(CIFAR_MD5))  # a sweep asks for every point
def _md5(path: Path, _size: int, _changed_ns: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open_regular(path, most_bytes=_MOST_BYTES) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def has_cifar(data: Data) -> bool:
    return all(
        (data_root(data, _CIFAR_LAYOUT) / _CIFAR_FOLDER / name).is_file() for name in CIFAR_MD5
    )


def load_cifar(data: Data) -> DataSet:
    """Return the whole data set, through torchvision's class."""
    import torch
    from torchvision import datasets

    from hpcdist.data.arrays import make_data_set

    root = data_root(data, _CIFAR_LAYOUT)
    parts = (datasets.CIFAR10(root, train=is_train) for is_train in (True, False))
    train, test = ((torch.from_numpy(part.data), torch.tensor(part.targets)) for part in parts)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)
