"""digits: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn.

The file is read without importing scikit-learn, whose import takes half a second. Source: E.
Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
"""

from __future__ import annotations

import functools
import gzip
import random
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.data.splits import SplitSizes
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet

_FILE = "datasets/data/digits.csv.gz"
_SIDE = 8
_NUM_CLASSES = 10
_TEST_SHARE = 0.2
_SPLIT_SEED = 1797  # fixed: accuracies of all runs are about the same test images

_Rows = list[list[int]]
"""A row per image: 64 pixels from 0 to 16, then the digit."""


def check(_data: Data) -> SplitSizes:
    """Return the sizes of the two parts; JobError where scikit-learn is not installed."""
    train, test = _read_parts(_path())
    return SplitSizes(train=len(train), test=len(test))


def load(_data: Data) -> DataSet:
    import torch

    from hpcdist.data.arrays import make_data_set

    tables = [torch.tensor(rows, dtype=torch.uint8) for rows in _read_parts(_path())]
    train, test = ((table[:, :-1].reshape(-1, _SIDE, _SIDE), table[:, -1]) for table in tables)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)


def _path() -> Path:
    package = find_spec("sklearn")
    path = Path(package.origin).parent / _FILE if package and package.origin else None
    if path is None or not path.is_file():
        raise JobError(
            "data.name is digits, but scikit-learn, which brings these images, is not installed",
            hint="install it with: pip install scikit-learn",
        )
    return path


@functools.cache  # a sweep asks for every point
def _read_parts(path: Path) -> tuple[_Rows, _Rows]:
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
