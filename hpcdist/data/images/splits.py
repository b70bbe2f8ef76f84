"""Training and test images: cut out of classes that come in one piece."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcdist.data.images.files import ImageFiles, ImageParts
from hpcdist.data.images.listing import Found

TEST_SHARE = 0.2
_SEED = 5749  # fixed: accuracies of all runs are about the same test images


def split_classes(root: Path, classes: Sequence[Found]) -> ImageParts:
    """A fifth of the images of each class as test images, drawn by a fixed seed.

    Of a class with several images at least one is kept for each part; a class with one trains. Only
    where every class has one image, the test images are drawn from all of them.
    """
    lots = random.Random(_SEED)
    test = {path for found in classes for path in _drawn(found.paths, lots)}
    if not test:
        everything = [path for found in classes for path in found.paths]
        test = set(lots.sample(everything, max(1, round(len(everything) * TEST_SHARE))))
    chosen = [(found, [path in test for path in found.paths]) for found in classes]
    return ImageParts(
        train=make_files(root, classes, (_where(found, marks, False) for found, marks in chosen)),
        test=make_files(root, classes, (_where(found, marks, True) for found, marks in chosen)),
    )


def make_files(root: Path, classes: Sequence[Found], paths: Iterable[Sequence[str]]) -> ImageFiles:
    """A part of a data set from the paths that it has of each class; classes are in order."""
    of_class = list(paths)
    return ImageFiles(
        root=root,
        paths=tuple(path for some in of_class for path in some),
        labels=tuple(label for label, some in enumerate(of_class) for _ in some),
        classes=tuple(found.name for found in classes),
    )


def _drawn(paths: Sequence[str], lots: random.Random) -> list[str]:
    if len(paths) == 1:
        return []
    return lots.sample(paths, max(1, round(len(paths) * TEST_SHARE)))


def _where(found: Found, marks: Sequence[bool], wanted: bool) -> list[str]:  # noqa: FBT001
    return [path for path, mark in zip(found.paths, marks, strict=True) if mark is wanted]
