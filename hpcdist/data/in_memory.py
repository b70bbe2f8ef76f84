"""The data sets that are held in memory: digits, mnist and fashion_mnist.

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

Checking imports no torch.
"""

from __future__ import annotations

import functools
import gzip
import math
import random
import struct
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_regular, read_bytes
from hpcdist.data.splits import SplitSizes, existing_root, wrong_root
from hpcdist.job.spec import Data
from hpcdist.machine.command import python_command

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


_MOST_BYTES = 8 * 10**9
"""Size of a file that is read: all of it is held in memory."""


@dataclass(frozen=True)
class IdxDataSet:
    """A data set of four IDX files, as torchvision lays them out."""

    torchvision_class: str
    """Name of the class in torchvision.datasets, and of the folder under root."""

    def check(self, data: Data) -> SplitSizes:
        """The sizes of the two parts; JobError where a file is missing or not what it must be."""
        if self._is_to_come(data):
            return SplitSizes(train=60_000, test=10_000)
        existing_root(data, self._layout)
        shapes = []
        for part in ("train", "t10k"):
            images, labels = self._files(data, part)
            number, *side = self._read_shape(data, images, 3)
            (num_labels,) = self._read_shape(data, labels, 1)
            if number == 0 or number != num_labels:
                wrong = f"{labels} has {num_labels:,} labels for {number:,} images"
                raise wrong_root(data, wrong, self._layout)
            if (largest := max(_read_elements(labels, 1))) >= _NUM_CLASSES:
                wrong = f"{labels} has the label {largest}, must be 0 to {_NUM_CLASSES - 1}"
                raise wrong_root(data, wrong, self._layout)
            shapes.append((number, side))
        if shapes[0][1] != shapes[1][1]:
            wrong = "its images for training and those to test differ in their numbers of pixels"
            raise wrong_root(data, wrong, self._layout)
        return SplitSizes(train=shapes[0][0], test=shapes[1][0])

    def prepare(self, data: Data) -> None:
        """Download what is missing where the job asks for it, or raise JobError. torchvision does
        it, in a process of its own, and leaves no file that it did not verify."""
        if not self._is_to_come(data):
            return
        code = f"import sys, torchvision; torchvision.datasets.{self.torchvision_class}"
        command = python_command(f"{code}(sys.argv[1], download=True)", str(_root(data)))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last_line = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            wrong = f"data.download: {self.torchvision_class} cannot be fetched: {last_line}"
            raise wrong_root(data, wrong, self._layout)

    def _is_to_come(self, data: Data) -> bool:
        """Return whether the job downloads files that are not there."""
        files = (path for part in ("train", "t10k") for path in self._files(data, part))
        return data.download and data.root is not None and not all(map(Path.is_file, files))

    def load(self, data: Data) -> DataSet:
        import torch

        from hpcdist.data.arrays import make_data_set

        def load(path: Path, num_dimensions: int) -> Tensor:
            shape = self._read_shape(data, path, num_dimensions)
            elements = bytearray(_read_elements(path, num_dimensions))
            return torch.frombuffer(elements, dtype=torch.uint8).reshape(shape)

        files = (self._files(data, part) for part in ("train", "t10k"))
        train, test = ((load(images, 3), load(labels, 1)) for images, labels in files)
        return make_data_set(train, test, num_classes=_NUM_CLASSES)

    @property
    def _layout(self) -> str:
        return (
            f"it needs <root>/{self.torchvision_class}/raw/, as torchvision makes it; with "
            "data.download=true it is fetched where there is internet"
        )

    def _files(self, data: Data, part: str) -> tuple[Path, Path]:
        """Return the files with the images and the labels of a part."""
        raw = _root(data) / self.torchvision_class / "raw"
        return raw / f"{part}-images-idx3-ubyte", raw / f"{part}-labels-idx1-ubyte"

    def _read_shape(self, data: Data, path: Path, num_dimensions: int) -> tuple[int, ...]:
        """Return the shape of a file's elements, which its size must be that of."""
        header_bytes = 4 + 4 * num_dimensions
        try:
            with open_regular(path, most_bytes=_MOST_BYTES) as file:
                header = file.read(header_bytes)
            size = path.stat().st_size
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror or error}"
            raise wrong_root(data, wrong, self._layout) from None
        if header[:4] == bytes((0, 0, 8, num_dimensions)) and len(header) == header_bytes:
            shape = struct.unpack(f">{num_dimensions}I", header[4:])
            if size == header_bytes + math.prod(shape):
                return shape
        wrong = f"{path} is not the IDX file it must be: {size:,} bytes, from {header[:4].hex(' ')}"
        raise wrong_root(data, wrong, self._layout)


IDX_DATA_SETS = {"mnist": IdxDataSet("MNIST"), "fashion_mnist": IdxDataSet("FashionMNIST")}
"""data.name -> data set."""


def _root(data: Data) -> Path:
    return Path(data.root or "").expanduser()


def _read_elements(path: Path, num_dimensions: int) -> bytes:
    return read_bytes(path, most_bytes=_MOST_BYTES)[4 + 4 * num_dimensions :]
