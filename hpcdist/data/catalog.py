"""The data sets by name, and what can be known about one before anything is loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import nearest_first
from hpcdist.data import in_memory
from hpcdist.data.images import faces, folders
from hpcdist.data.images.transforms import is_unchanged, notes_on_transform
from hpcdist.data.splits import SplitSizes
from hpcdist.job.spec import Data
from hpcdist.machine.command import python_command

if TYPE_CHECKING:
    from hpcdist.data.arrays import DataSet, Shape
    from hpcdist.data.images.samples import FastImages
    from hpcdist.data.splits import ImageFiles, ImageParts


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set: how it is checked, loaded and fetched."""

    check: Callable[[Data], SplitSizes | None]
    """Its sizes, None where they are known only when it is complete; JobError where its files are
    missing or damaged. Imports no torch."""
    load: Callable[[Data], DataSet] | None = None
    """All of it, in every rank; None: it is not loaded as a whole, see `images`."""
    images: Callable[[Data], ImageParts] | None = None
    """The image files that it consists of; None: it is loaded as a whole."""
    torchvision_class: str | None = None
    """Name of the class in torchvision.datasets that downloads it; None: nothing does."""
    prepare: Callable[[Data], None] | None = None
    """Make what is missing, without internet; None: nothing to make."""
    unmade: Callable[[Data], str | None] = lambda _data: None
    """A note on what `prepare` will make."""
    is_complete: Callable[[Data], bool] = lambda _data: True
    """Return whether all of its files are there."""
    modules: tuple[str, ...] = ()
    """Heavy modules that `load` imports."""


DATA_SETS = {
    "digits": Entry(check=in_memory.check_digits, load=in_memory.load_digits),
    **{
        name: Entry(
            check=(data_set := in_memory.IdxDataSet(torchvision_class)).check,
            load=data_set.load,
            torchvision_class=torchvision_class,
            is_complete=data_set.is_complete,
        )
        for name, torchvision_class in (("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST"))
    },
    "cifar10": Entry(
        check=in_memory.check_cifar,
        load=in_memory.load_cifar,
        torchvision_class="CIFAR10",
        is_complete=in_memory.has_cifar,
        modules=("torchvision",),
    ),
    "faces": Entry(
        check=faces.check,
        images=faces.images,
        prepare=faces.prepare,
        unmade=faces.unmade,
        is_complete=faces.is_complete,
    ),
    "image_folder": Entry(check=folders.check, images=folders.images),
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


def check_data(data: Data) -> SplitSizes | None:
    """Return the sizes of the parts that the job uses; JobError for all that is wrong with `data`.
    None where the files are still to be downloaded or unpacked."""
    if _to_download(data):
        return None
    sizes = find_data_set(data).check(data)
    return sizes and sizes.first(data.train_samples, data.test_samples)


def load_data(data: Data, *, seed: int = 0) -> DataSet:
    """Return the data set as the job uses it; `seed` is train.seed."""
    entry = find_data_set(data)
    if entry.load is None:
        return _from_files(data, seed)
    whole = entry.load(data).first(data.train_samples, data.test_samples)
    if is_unchanged(data.transform):
        return replace(whole, pixels=None)
    from hpcdist.data.arrays import Samples
    from hpcdist.data.images.samples import PixelSamples

    assert isinstance(whole.test, Samples)
    train = PixelSamples(whole, data.transform, seed)
    return replace(whole, train=train, test=whole.test.scaled(train.shape), pixels=None)


def _from_files(data: Data, seed: int) -> DataSet:
    from hpcdist.data.arrays import DataSet

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
        bad_files=data.bad_files,
        seed=seed,
        shape=shape,
    )


def find_images(data: Data) -> ImageParts | None:
    """The image files of the data set as the job uses it; None for one that is held in memory."""
    images = find_data_set(data).images
    return None if images is None else images(data).first(data.train_samples, data.test_samples)


def data_notes(data: Data) -> list[str]:
    """Return notes for the user before the data are used; `data` has been checked."""
    entry = find_data_set(data)
    unmade = entry.unmade(data)
    notes = [unmade] if unmade else []
    if _to_download(data):
        notes.append(f"the job downloads {data.name} to {data.root}")
    return notes + notes_on_transform(data.transform)


def download_data(data: Data) -> None:
    """Fetch or make what is missing of the data set where the job asks for it, or raise JobError.
    torchvision downloads, in a process of its own; it leaves no file that it did not verify."""
    prepare = find_data_set(data).prepare
    if prepare is not None:
        prepare(data)
    name = _to_download(data)
    if name is None or data.root is None:
        return
    root = Path(data.root).expanduser()
    code = f"import sys, torchvision; torchvision.datasets.{name}(sys.argv[1], download=True)"
    done = subprocess.run(
        python_command(code, str(root)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise JobError(
            f"data.download: {name} cannot be fetched to {root}: {last_line}",
            hint="download it where there is internet, and name its folder with data.root",
        )


def _to_download(data: Data) -> str | None:
    """Return the class of torchvision that is to download the data set; None: none is."""
    entry = find_data_set(data)
    if not data.download or entry.torchvision_class is None or entry.is_complete(data):
        return None
    return entry.torchvision_class
