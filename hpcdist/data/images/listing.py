"""Which image files lie in the folders of a data set: one folder per class, and folders in it.

Only names are read, no content; links to folders are followed, but none round in a circle. Names
that begin with a dot are left out: what editors and other systems leave behind is no class.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import JobError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Of the files that torchvision's ImageFolder takes for images; in either case."""

_Identity = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The image files of one class."""

    name: str
    """Of the class: that of its folder."""
    paths: tuple[str, ...]
    """Relative to the data set's root; sorted by folder, then by name, as torchvision does."""


def list_classes(root: Path, folder: str = "") -> list[Found]:
    """The classes below a folder of the root that hold images, sorted by name.

    JobError where a folder cannot be read.
    """
    top = root / folder
    ancestors = (_identity(top),)
    classes = []
    for entry in sorted(_entries(top), key=lambda entry: entry.name):
        if is_folder(entry):
            paths = _paths_below(Path(entry.path), os.path.join(folder, entry.name), ancestors)
            if paths:
                classes.append(Found(name=entry.name, paths=tuple(paths)))
    return classes


def folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted; JobError where it cannot be read."""
    return sorted(entry.name for entry in _entries(folder) if is_folder(entry))


def has_images(folder: Path) -> bool:
    """Whether images lie in the folder itself."""
    return any(_is_image(entry) for entry in _entries(folder))


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link that leads to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _paths_below(folder: Path, relative: str, ancestors: tuple[_Identity, ...]) -> list[str]:
    """Sorted by folder, then by name."""
    found: list[tuple[str, list[str]]] = []
    waiting = [(folder, relative, ancestors)]
    while waiting:
        folder, relative, above = waiting.pop()
        identity = _identity(folder)
        if identity in above:  # a link back to where we came from
            continue
        names = []
        for entry in _entries(folder):
            if _is_image(entry):
                names.append(entry.name)
            elif is_folder(entry):
                path = os.path.join(relative, entry.name)
                waiting.append((Path(entry.path), path, (*above, identity)))
        found.append((relative, sorted(names)))
    return [os.path.join(relative, name) for relative, names in sorted(found) for name in names]


def _is_image(entry: os.DirEntry[str]) -> bool:
    """Whether it has an image's name, and is a file, or a link that leads nowhere.

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
        found = folder.stat()
    except OSError as error:
        raise unreadable(folder, error) from None
    return found.st_dev, found.st_ino


def unreadable(path: Path, error: OSError) -> JobError:
    """The error for a folder or file that the system does not let us read."""
    return JobError(
        f"{path} cannot be read: {error.strerror or error}",
        hint="see that it is there, and that you may read it: ls -la " + str(path.parent),
    )
