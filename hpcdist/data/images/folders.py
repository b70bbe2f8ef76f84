"""image_folder: one folder per class, in the layout of torchvision's ImageFolder.

    <root>/<class>/...jpg                              split here, a fifth of each class for testing
    <root>/train/<class>/...jpg, <root>/test/...       or val, or valid, in place of test

Only names are read, no content. Links to folders are followed, but not in circles. Names that begin
with a dot are left out: what editors and other systems leave behind is no class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.base.files import is_folder
from hpcdist.data.splits import (
    Classes,
    ImageParts,
    SplitSizes,
    existing_root,
    label_files,
    split_classes,
)
from hpcdist.job.spec import Data

_TRAIN = "train"
_TESTS = ("test", "val", "valid")
_LAYOUT = (
    "lay it out as <root>/<class>/<image>.jpg, or as <root>/train/<class>/<image>.jpg and "
    "<root>/test/<class>/<image>.jpg"
)


def check(data: Data) -> SplitSizes:
    """Return the sizes of the two parts; JobError where there are no images, or too few."""
    return images(data).sizes


def images(data: Data) -> ImageParts:
    root = existing_root(data, _LAYOUT)
    folders = folders_in(root)
    test = next((name for name in _TESTS if name in folders), None)
    if _TRAIN in folders and test is not None:
        return _both_parts(root, test)
    top = _TRAIN if folders == [_TRAIN] else ""
    classes = list_classes(root, top)
    check_enough(classes, root / top, _LAYOUT)
    return split_classes(root, classes)


def check_enough(classes: Classes, folder: Path, layout: str) -> None:
    """Raise JobError for a folder with less than two images, saying what is there instead."""
    number = sum(map(len, classes.values()))
    if number == 0 and has_images(folder):
        wrong = f"{folder} holds images, but no folders with images in them"
    elif number == 0:
        wrong = f"there are no images in {folder}, nor in the folders below it"
    elif number == 1:
        wrong = (
            f"there is one image in {folder}, and one is needed for training and one for testing"
        )
    else:
        return
    raise JobError(wrong, hint=layout)


def _both_parts(root: Path, test: str) -> ImageParts:
    parts = []
    for folder in (_TRAIN, test):
        parts.append(list_classes(root, folder))
        if not parts[-1]:
            check_enough(parts[-1], root / folder, _LAYOUT)
    names = sorted(set().union(*parts))
    in_train, in_test = ({name: part.get(name, []) for name in names} for part in parts)
    return ImageParts(train=label_files(root, in_train), test=label_files(root, in_test))


SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of the files that torchvision's ImageFolder takes for images; in either case."""

_Identity = tuple[int, int]


def list_classes(root: Path, folder: str = "") -> dict[str, list[str]]:
    """Return the classes below a folder that hold images, by name; JobError for unreadable ones."""
    ancestors = (_identity(root / folder),)
    classes = {
        name: _paths_below(root, os.path.join(folder, name), ancestors)
        for name in folders_in(root / folder)
    }
    return {name: paths for name, paths in classes.items() if paths}


def folders_in(folder: Path) -> list[str]:
    """Return names of the folders in a folder, sorted; JobError where it cannot be read."""
    return sorted(entry.name for entry in _entries(folder) if is_folder(entry))


def has_images(folder: Path) -> bool:
    """Return whether images lie in the folder itself."""
    return any(_is_image(entry) for entry in _entries(folder))


def _paths_below(root: Path, relative: str, ancestors: tuple[_Identity, ...]) -> list[str]:
    """Sorted by folder, then by name."""
    folders: list[tuple[str, list[str]]] = []
    waiting = [(relative, ancestors)]
    while waiting:
        relative, above = waiting.pop()
        identity = _identity(root / relative)
        if identity in above:  # a link back to where we came from
            continue
        names = []
        for entry in _entries(root / relative):
            if _is_image(entry):
                names.append(entry.name)
            elif is_folder(entry):
                waiting.append((os.path.join(relative, entry.name), (*above, identity)))
        folders.append((relative, sorted(names)))
    return [os.path.join(relative, name) for relative, names in sorted(folders) for name in names]


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Return whether it has an image's name, and is a file, or a link that leads nowhere.

    Such a link is a file that is missing, which is found when it is read. Pipes and the like would
    block their reader.
    """
    if not entry.name.lower().endswith(SUFFIXES):
        return False
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:  # a link that leads to itself
        return True


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise unreadable(folder, error) from None


def _identity(folder: Path) -> _Identity:
    try:
        status = folder.stat()
    except OSError as error:
        raise unreadable(folder, error) from None
    return status.st_dev, status.st_ino


def unreadable(path: Path, error: OSError) -> JobError:
    """Return the error for a folder or file that the system does not let us read."""
    return JobError(
        f"{path} cannot be read: {error.strerror or error}",
        hint="check that it exists and that you may read it: ls -la " + str(path.parent),
    )
