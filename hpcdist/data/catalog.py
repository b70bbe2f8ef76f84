"""The data sets by name, and what can be known about one before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.data import in_memory
from hpcdist.data.images import faces, folders
from hpcdist.data.splits import SplitSizes
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet, Shape
    from hpcdist.data.images.samples import FastImages
    from hpcdist.data.splits import ImageFiles, ImageParts


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set: how it is checked, made and loaded."""

    check: Callable[[Data], SplitSizes]
    """Its sizes; JobError where its files are missing or damaged. Imports no torch."""
    load: Callable[[Data], DataSet] | None = None
    """All of it, in every rank; None: it is not loaded as a whole, see `images`."""
    images: Callable[[Data], ImageParts] | None = None
    """The image files that it consists of; None: it is loaded as a whole."""
    prepare: Callable[[Data], None] = lambda _data: None
    """Make what is missing."""


DATA_SETS = {
    "digits": Entry(check=in_memory.check_digits, load=in_memory.load_digits),
    **{
        name: Entry(check=idx.check, load=idx.load, prepare=idx.prepare)
        for name, idx in in_memory.IDX_DATA_SETS.items()
    },
    "faces": Entry(check=faces.check, images=faces.images, prepare=faces.prepare),
    "image_folder": Entry(check=lambda data: folders.images(data).sizes, images=folders.images),
}
"""data.name -> what it offers."""


def find_data_set(data: Data) -> Entry:
    if data.name not in DATA_SETS:
        names = nearest_first(data.name, DATA_SETS)
        raise JobError(
            f"data.name is {data.name!r}, which is not a known data set",
            hint="the known ones are: " + ", ".join(names),
        )
    return DATA_SETS[data.name]


def check_data(data: Data) -> SplitSizes:
    """Return the sizes of the parts that the job uses; JobError for all that is wrong with
    `data`."""
    entry = find_data_set(data)
    if entry.images is None and data.transform not in {"none", ()}:
        raise JobError(
            f"data.transform is set, but {data.name} is held in memory, normalised once for all "
            "epochs",
            hint="leave it out, or take image files: data.name faces or image_folder",
        )
    return entry.check(data).first(data.train_samples, data.test_samples)


def load_data(data: Data, *, seed: int = 0) -> DataSet:
    """Return the data set as the job uses it; `seed` is train.seed."""
    from hpcdist.data.arrays import DataSet

    entry = find_data_set(data)
    if entry.load is not None:
        return entry.load(data).first(data.train_samples, data.test_samples)
    parts = find_images(data)
    assert parts is not None
    train = open_images(parts.train, data, seed)
    as_train = msgspec.structs.replace(data, transform="none")
    test = open_images(parts.test, as_train, seed, shape=train.shape)
    return DataSet(train=train, test=test, num_classes=len(parts.train.classes))


def open_images(
    files: ImageFiles, data: Data, seed: int, *, shape: Shape | None = None
) -> FastImages:
    """Return image files as the job reads them, of this shape if it is given."""
    from hpcdist.data.images.samples import FastImages

    return FastImages(
        files,
        size=data.size,
        transform=data.transform,
        decode=data.decoder,
        seed=seed,
        shape=shape,
    )


def find_images(data: Data) -> ImageParts | None:
    """The image files of the data set as the job uses it; None for one that is held in memory."""
    images = find_data_set(data).images
    return None if images is None else images(data).first(data.train_samples, data.test_samples)
