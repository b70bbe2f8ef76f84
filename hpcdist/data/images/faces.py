"""faces: photographs of people in the layout of LFW (Labeled Faces in the Wild), or a stand-in.

    <root>/Aaron_Eckhart/Aaron_Eckhart_0001.jpg        one folder per person

data.root is that folder, a folder that holds it, or LFW's .tgz, which is unpacked once into the
user's cache; without a root, photographs are made there. How they are split: `face_splits`, or a
fifth of each person's images for testing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.data.images import made_faces
from hpcdist.data.images.archives import is_archive, unpack
from hpcdist.data.images.face_splits import find_split_files, names_in_both, split_by_files
from hpcdist.data.images.files import ImageParts
from hpcdist.data.images.folders import check_enough, existing_root
from hpcdist.data.images.listing import folders_in, has_images, list_classes, unreadable
from hpcdist.data.images.made_once import cache_folder, make_once
from hpcdist.data.images.splits import split_classes
from hpcdist.data.sizes import SplitSizes
from hpcdist.job.spec import Data

VARIANTS = ("lfw", "lfw_funneled", "lfw-deepfunneled", "lfw-py")
"""Names of the folders in LFW's archives, and of the one that torchvision keeps them in."""
_STAND_IN = made_faces.Plan()
_VERSION = 1  # of what is made of a plan
NO_CLASS_IN_BOTH = (
    "no class is in both parts, so that a model which names classes is never right about the test "
    "images; data.split=stratified splits each class"
)
LAYOUT = (
    "lay it out as <root>/Person_Name/Person_Name_0001.jpg, or name LFW's .tgz: its own host is "
    "gone, but https://ndownloader.figshare.com/files/5976015 has it (funneled), from where "
    "sklearn.datasets.fetch_lfw_people() fetches it to ~/scikit_learn_data/lfw_home; without "
    "data.root, photographs are made"
)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the people's folders are."""

    root: Path
    top: Path
    """What data.root names, or what it was unpacked to; root is in it, or is it."""


def check(data: Data) -> SplitSizes | None:
    """The sizes of both parts, also of a stand-in that is still to be made.

    None where an archive is still to be unpacked. JobError where there are no images, or too few.
    """
    if data.root is None:
        return _STAND_IN.parts(stand_in_folder()).sizes
    if not is_complete(data):
        return None
    return images(data).sizes


def is_complete(data: Data) -> bool:
    """Whether the image files are there, and neither to be made nor to be unpacked."""
    made = _made_folder(data)
    return made is None or made.is_dir()


def prepare(data: Data) -> None:
    """Make the stand-in, or unpack the archive, unless that was done before."""
    made = _made_folder(data)
    if made is None:
        return
    if data.root is None:
        make_once(made, lambda folder: made_faces.make_faces(folder, _STAND_IN))
    else:
        archive = Path(data.root).expanduser()
        make_once(made, lambda folder: unpack(archive, folder))


def unmade(data: Data) -> str | None:
    """What `prepare` will make, in words; None: nothing."""
    made = _made_folder(data)
    if made is None or made.is_dir():
        return None
    if data.root is None:
        return f"{_STAND_IN.images:,} photographs for data.name=faces are made once, in {made}"
    return f"{data.root} is unpacked once, to {made}"


def remarks(data: Data) -> list[str]:
    """What the user should know of files that are there, and have been checked."""
    if data.root is None or data.split != "auto" or not is_complete(data):
        return []
    place = _find_people(_made_folder(data) or existing_root(data, LAYOUT))
    files = find_split_files(_between(place))
    if files is None or names_in_both(files):
        return []
    names = " and ".join(dict.fromkeys((files.train.name, files.test.name)))
    return [f"by {names} {NO_CLASS_IN_BOTH}"]


def images(data: Data) -> ImageParts:
    """The files of both parts; what is missing is made first."""
    prepare(data)
    if data.root is None:
        return _STAND_IN.parts(stand_in_folder())
    place = _find_people(_made_folder(data) or existing_root(data, LAYOUT))
    classes = list_classes(place.root)
    check_enough(classes, place.root, LAYOUT)
    files = None
    if data.split == "auto":
        files = find_split_files(_between(place))
    if files is None:
        return split_classes(place.root, classes)
    return split_by_files(place.root, classes, files)


def stand_in_folder() -> Path:
    """Where the stand-in is, or will be."""
    plan = _STAND_IN
    name = f"faces-{plan.people}-{plan.images}-{plan.seed}-v{_VERSION}"
    return cache_folder() / name


def _made_folder(data: Data) -> Path | None:
    """The folder in the cache that the images are in, or will be; None: they are under root."""
    if data.root is None:
        return stand_in_folder()
    root = Path(data.root).expanduser()
    if not root.is_file():
        return None
    if not is_archive(root):
        raise JobError(
            f"data.root is {data.root!r}: {root} is neither a folder nor a .tgz", hint=LAYOUT
        )
    try:
        found = root.stat()
    except OSError as error:
        raise unreadable(root, error) from None
    mark = f"{root.resolve()}\0{found.st_size}\0{found.st_mtime_ns}"
    digest = hashlib.sha256(mark.encode(errors="surrogateescape")).hexdigest()[:16]
    return cache_folder() / f"faces-{digest}"


def _find_people(top: Path) -> _Place:
    """The folder with a folder per person: `top`, or one below it, such as LFW's own."""
    root = top
    while True:
        below = folders_in(root)
        variants = [name for name in below if name in VARIANTS]
        if len(variants) > 1:
            raise JobError(
                f"{root} holds several variants of LFW: {', '.join(variants)}",
                hint=f"name one with data.root: {root / variants[0]}",
            )
        if variants:
            root /= variants[0]
        elif len(below) == 1 and not _holds_people(root, below):
            root /= below[0]
        else:
            return _Place(root=root, top=top)


def _holds_people(folder: Path, names: list[str]) -> bool:
    return any(has_images(folder / name) for name in names)


def _between(place: _Place) -> list[Path]:
    """The folders from the people's up to the top."""
    folders = [place.root]
    while folders[-1] != place.top:
        folders.append(folders[-1].parent)
    return folders
