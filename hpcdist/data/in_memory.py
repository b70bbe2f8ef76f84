"""The data sets that are held in memory: digits, mnist, fashion_mnist and cifar10.

digits: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn. The file is read
without importing scikit-learn, whose import takes half a second. Source: E. Alpaydin and C. Kaynak,
Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.

mnist and fashion_mnist: IDX files under a root that the user names, in torchvision's layout.

    <root>/MNIST/raw/train-images-idx3-ubyte          60,000 images of 28 x 28 pixels
    <root>/MNIST/raw/train-labels-idx1-ubyte
    <root>/MNIST/raw/t10k-images-idx3-ubyte           10,000
    <root>/MNIST/raw/t10k-labels-idx1-ubyte

and the same under FashionMNIST/raw. An IDX file:

    bytes 0-3   magic: 0, 0, type of the elements (8: unsigned byte), number of dimensions
    then        one big-endian 32-bit size per dimension
    then        the elements, one after the other

cifar10: pickled batches under a root that the user names, in torchvision's layout.

    <root>/cifar-10-batches-py/data_batch_1            to data_batch_5, 10,000 images each
    <root>/cifar-10-batches-py/test_batch              10,000
    <root>/cifar-10-batches-py/batches.meta

A pickle can run anything: the files are unpickled only in the ranks, by torchvision, which compares
their checksums with those of the published ones before. Checking imports no torch.
"""

from __future__ import annotations

import functools
import gzip
import math
import random
import struct
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_regular, read_bytes
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
_SIZES = SplitSizes(train=1438, test=359)
"""The images have not changed since scikit-learn has them; to count them takes as long as many a
command."""
_SPLIT_SEED = 1797  # fixed: accuracies of all runs are about the same test images

_Rows = list[list[int]]
"""A row per image: 64 pixels from 0 to 16, then the digit."""


def check_digits(_data: Data) -> SplitSizes:
    """Return the sizes of the two parts; JobError where scikit-learn is not installed."""
    find_digits()
    return _SIZES


def load_digits(_data: Data) -> DataSet:
    import torch

    from hpcdist.data.arrays import make_data_set

    tables = [torch.tensor(rows, dtype=torch.uint8) for rows in read_digits(find_digits())]
    train, test = ((table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]) for table in tables)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)


def find_digits() -> Path:
    package = find_spec("sklearn")
    path = Path(package.origin).parent / _DIGITS if package and package.origin else None
    if path is None or not path.is_file():
        raise JobError(
            "data.name is digits, but scikit-learn, which brings these images, is not installed",
            hint="install it with: pip install scikit-learn",
        )
    return path


@functools.cache  # ranks that are forked of one process may have it from there
def read_digits(path: Path) -> tuple[_Rows, _Rows]:
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


_UNSIGNED_BYTE = 8
_MOST_BYTES = 8 * 10**9
"""Size of a file that is read: all of it is held in memory."""


@dataclass(frozen=True)
class IdxDataSet:
    """A data set of four IDX files that torchvision downloads."""

    torchvision_class: str
    """Name of the class in torchvision.datasets, and of the folder under root."""

    def check(self, data: Data) -> SplitSizes:
        """The sizes of the two parts; JobError where a file is missing or not what it must be."""
        existing_root(data, self._layout)
        shapes = []
        for images, labels in self._files(data):
            number, height, width = self._read_shape(data, images, 3)
            (num_labels,) = self._read_shape(data, labels, 1)
            largest = max(_read_elements(labels, 1), default=0)
            if number == 0 or number != num_labels:
                wrong = f"{labels} has {num_labels:,} labels for {number:,} images"
            elif largest >= _NUM_CLASSES:
                wrong = f"{labels} has the label {largest}, must be 0 to {_NUM_CLASSES - 1}"
            else:
                shapes.append((number, f"{width} x {height} pixels"))
                continue
            raise wrong_root(data, wrong, self._layout)
        (train, train_pixels), (test, test_pixels) = shapes
        if train_pixels != test_pixels:
            wrong = f"it has images of {train_pixels} for training, of {test_pixels} to test"
            raise wrong_root(data, wrong, self._layout)
        return SplitSizes(train=train, test=test)

    def is_complete(self, data: Data) -> bool:
        return all(path.is_file() for part in self._files(data) for path in part)

    def load(self, data: Data) -> DataSet:
        import torch

        from hpcdist.data.arrays import make_data_set

        def load(path: Path, num_dimensions: int) -> Tensor:
            shape = self._read_shape(data, path, num_dimensions)
            elements = bytearray(_read_elements(path, num_dimensions))
            return torch.frombuffer(elements, dtype=torch.uint8).reshape(shape)

        train, test = ((load(images, 3), load(labels, 1)) for images, labels in self._files(data))
        return make_data_set(train, test, num_classes=_NUM_CLASSES)

    @property
    def _layout(self) -> str:
        names = ", ".join(name for part in _IDX_NAMES for name in part)
        return (
            f"lay it out as <root>/{self.torchvision_class}/raw/ with {names}, or set "
            "data.download to true where there is internet"
        )

    def _files(self, data: Data) -> list[tuple[Path, Path]]:
        """Return the files with the images and the labels of each part."""
        raw = data_root(data, self._layout) / self.torchvision_class / "raw"
        return [(raw / images, raw / labels) for images, labels in _IDX_NAMES]

    def _read_shape(self, data: Data, path: Path, num_dimensions: int) -> tuple[int, ...]:
        """Return the shape of a file's elements, which its size must be that of."""
        header_bytes = 4 + 4 * num_dimensions
        magic = bytes((0, 0, _UNSIGNED_BYTE, num_dimensions))
        try:
            with open_regular(path, most_bytes=math.inf) as file:
                header = file.read(header_bytes)
            size = path.stat().st_size
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror or error}"
            if isinstance(error, FileNotFoundError):
                is_packed = path.with_name(f"{path.name}.gz").exists()
                packed = ", and there as .gz: gunzip it" if is_packed else ""
                wrong = f"{path} is missing{packed}"
            raise wrong_root(data, wrong, self._layout) from None
        if len(header) < header_bytes:
            wrong = f"it ends after {len(header)} bytes"
        elif header[:4] != magic:
            wrong = f"its first bytes are {header[:4].hex(' ')}, must be {magic.hex(' ')}"
        else:
            shape = struct.unpack(f">{num_dimensions}I", header[4:])
            expected = header_bytes + math.prod(shape)
            if size == expected <= _MOST_BYTES:
                return shape
            by = " x ".join(map(str, shape))
            wrong = f"it has {size:,} bytes, must have {expected:,} for its shape {by}"
            if expected > _MOST_BYTES:
                most = show_bytes(_MOST_BYTES)
                wrong = f"its shape is that of {show_bytes(expected)}, no more than {most} are read"
        wrong = f"{path} is not the IDX file it must be: {wrong}"
        raise wrong_root(data, wrong, self._layout)


_IDX_NAMES = tuple(
    (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")
)


def _read_elements(path: Path, num_dimensions: int) -> bytes:
    return read_bytes(path, most_bytes=_MOST_BYTES)[4 + 4 * num_dimensions :]


_CIFAR_FOLDER = "cifar-10-batches-py"
_CIFAR_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
_CIFAR_LAYOUT = (
    f"lay it out as <root>/{_CIFAR_FOLDER}/ with {', '.join(_CIFAR_FILES)}, or set data.download "
    "to true where there is internet"
)


def check_cifar(data: Data) -> SplitSizes:
    """Return the sizes of the two parts; JobError where a file is missing."""
    for path in _cifar_files(data):
        if not path.is_file():
            raise wrong_root(data, f"{path} is missing", _CIFAR_LAYOUT)
    return SplitSizes(train=50_000, test=10_000)


def has_cifar(data: Data) -> bool:
    return all(path.is_file() for path in _cifar_files(data))


def _cifar_files(data: Data) -> list[Path]:
    folder = data_root(data, _CIFAR_LAYOUT) / _CIFAR_FOLDER
    return [folder / name for name in _CIFAR_FILES]


def load_cifar(data: Data) -> DataSet:
    """Return the whole data set, through torchvision's class; JobError where a file is not the
    published one."""
    import torch
    from torchvision import datasets

    from hpcdist.data.arrays import make_data_set

    root = data_root(data, _CIFAR_LAYOUT)
    try:
        parts = [datasets.CIFAR10(root, train=is_train) for is_train in (True, False)]
    except RuntimeError:
        wrong = f"a file in {root / _CIFAR_FOLDER} is damaged, or not the published one"
        raise wrong_root(data, wrong, _CIFAR_LAYOUT) from None
    train, test = ((torch.from_numpy(part.data), torch.tensor(part.targets)) for part in parts)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)
