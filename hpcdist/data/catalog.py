"""The data sets by name, and what can be known about one before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcdist.data import digits
from hpcdist.data.mnist import IdxDataSet
from hpcdist.data.sizes import SplitSizes
from hpcdist.errors import JobError
from hpcdist.nearest import nearest_first
from hpcdist.spec import Data

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a data set offers."""

    check: Callable[[Data], SplitSizes]
    """Its sizes; JobError where its files are missing or damaged. Imports no torch."""
    load: Callable[[Data], DataSet]
    """All of it, in every rank."""
    download: Callable[[Data], None] | None = None
    """Fetch what is missing; None: bundled."""
    is_complete: Callable[[Data], bool] = lambda _data: True
    """Whether all of its files are there."""
    modules: tuple[str, ...] = ()
    """Heavy modules that `load` imports."""


def _from_idx_files(torchvision_class: str) -> Entry:
    data_set = IdxDataSet(torchvision_class)
    return Entry(
        check=data_set.check,
        load=data_set.load,
        download=data_set.download,
        is_complete=data_set.is_complete,
        modules=("torchvision",),
    )


DATA_SETS = {
    "digits": Entry(check=digits.check, load=digits.load),
    "mnist": _from_idx_files("MNIST"),
    "fashion_mnist": _from_idx_files("FashionMNIST"),
}
"""data.name -> what it offers."""


def find_data_set(data: Data) -> Entry:
    """The entry that data.name names."""
    if data.name not in DATA_SETS:
        names = nearest_first(data.name, DATA_SETS)
        raise JobError(
            f"data.name is {data.name!r}, which is no data set that is known",
            hint="known are: " + ", ".join(names),
        )
    return DATA_SETS[data.name]


def check_data(data: Data) -> SplitSizes | None:
    """The sizes of the parts that the job uses; JobError for all that is wrong with `data`.

    None where the files are still to be downloaded.
    """
    if data.download and not find_data_set(data).is_complete(data):
        return None
    return find_data_set(data).check(data).first(data.train_samples, data.test_samples)


def load_data(data: Data) -> DataSet:
    """The data set as the job uses it."""
    return find_data_set(data).load(data).first(data.train_samples, data.test_samples)


def download_data(data: Data) -> None:
    """Fetch what is missing of the data set, where the job asks for it."""
    fetch = find_data_set(data).download
    if data.download and fetch is not None:
        fetch(data)
