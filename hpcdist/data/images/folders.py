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
from hpcdist.data.splits import (
    Classes,
    ImageParts,
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
    """Raise JobError for a folder with less than two images."""
    if (number := sum(map(len, classes.values()))) < 2:
        raise JobError(
            f"there are {number or 'no'} images in the folders below {folder}, and one is needed "
            "for training and one for testing",
            hint=layout,
        )


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


def list_classes(root: Path, folder: str = "") -> dict[str, list[str]]:
    """Return the classes below a folder that hold images, by name, with the paths of these sorted
    by folder, then by name; JobError for unreadable ones."""
    classes = {}
    for name in folders_in(root / folder):
        seen = {_identity(root / folder)}
        found = []
        for place, inner, images in _walk(root / folder / name):
            if _identity(place) in seen:  # a link back to where we came from
                inner.clear()
                continue
            seen.add(_identity(place))
            found.append((os.path.relpath(place, root), images))
        if paths := [os.path.join(at, name) for at, names in sorted(found) for name in names]:
            classes[name] = paths
    return classes


def folders_in(folder: Path) -> list[str]:
    """Return names of the folders in a folder, sorted; JobError where it cannot be read."""
    return next(_walk(folder))[1]


def has_images(folder: Path) -> bool:
    """Return whether images lie in the folder itself."""
    return bool(next(_walk(folder))[2])


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder from this one on, with the names of its folders and images, sorted. By
    their names: what is a link that leads nowhere, or a pipe, is found when it is read."""
    for place, inner, names in os.walk(folder, onerror=_refuse, followlinks=True):
        inner[:] = sorted(name for name in inner if name[0] != ".")
        images = (name for name in names if name[0] != "." and name.lower().endswith(SUFFIXES))
        yield place, inner, sorted(images)


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _refuse(error: OSError) -> None:
    """Raise the error for a folder that the system does not let us read."""
    hint = f"check that it exists and that you may read it: ls -la {Path(error.filename).parent}"
    raise JobError(f"{error.filename} cannot be read: {error.strerror}", hint=hint)
