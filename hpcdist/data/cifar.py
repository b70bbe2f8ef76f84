"""cifar10: pickled batches under a root that the user names, in torchvision's layout.

    <root>/cifar-10-batches-py/data_batch_1            to data_batch_5, 10,000 images each
    <root>/cifar-10-batches-py/test_batch              10,000
    <root>/cifar-10-batches-py/batches.meta

A pickle can run anything: the files are unpickled only in the ranks, by torchvision, and only with
the checksums of the published ones, which are compared before.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.data.splits import SplitSizes, data_root, wrong_root
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet

_FOLDER = "cifar-10-batches-py"
_NUM_CLASSES = 10
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
"""Checksum of each file, as torchvision has them."""
_SIZES = SplitSizes(train=50_000, test=10_000)
_LAYOUT = (
    f"lay it out as <root>/{_FOLDER}/ with {', '.join(MD5)}, or set data.download to true where "
    "there is internet"
)


def check(data: Data) -> SplitSizes:
    """The sizes of the two parts; JobError where a file is missing or not the published one."""
    folder = data_root(data, _LAYOUT) / _FOLDER
    for name, md5 in MD5.items():
        path = folder / name
        try:
            status = path.stat()
            actual = _md5(path, status.st_size, status.st_mtime_ns)
        except OSError as error:
            wrong = f"{path} cannot be read: {error.strerror or error}"
            raise wrong_root(data, wrong, _LAYOUT) from None
        if actual != md5:
            wrong = f"{path} is damaged, or another file: its MD5 is {actual}, must be {md5}"
            raise wrong_root(data, wrong, _LAYOUT)
    return _SIZES


@functools.lru_cache(maxsize=len(MD5))  # a sweep asks for every point
def _md5(path: Path, _size: int, _changed_ns: int) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def is_complete(data: Data) -> bool:
    return all((data_root(data, _LAYOUT) / _FOLDER / name).is_file() for name in MD5)


def load(data: Data) -> DataSet:
    """Return the whole data set, through torchvision's class."""
    import torch
    from torchvision import datasets

    from hpcdist.data.arrays import make_data_set

    root = data_root(data, _LAYOUT)
    parts = (datasets.CIFAR10(root, train=is_train) for is_train in (True, False))
    train, test = ((torch.from_numpy(part.data), torch.tensor(part.targets)) for part in parts)
    return make_data_set(train, test, num_classes=_NUM_CLASSES)
