"""The two parts of a data set: their sizes, their image files, and how classes are split.

Known before anything is loaded: imports no torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SplitSizes:
    """Number of samples in the two parts of a data set."""

    train: int
    test: int

    def first(self, train_samples: int | None, test_samples: int | None) -> SplitSizes:
        """Return the sizes when only the first samples of each part are used; None: all."""
        return SplitSizes(
            train=min(self.train, train_samples or self.train),
            test=min(self.test, test_samples or self.test),
        )


@dataclass(frozen=True, kw_only=True)
class ImageClass:
    """The image files of one class."""

    name: str
    """Name of the class: that of its folder."""
    paths: tuple[str, ...]
    """Relative to the data set's root; sorted by folder, then by name, as torchvision does."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles:
    """One part of a data set, in an order that is the same everywhere."""

    root: Path
    paths: tuple[str, ...]
    """One per sample, relative to root."""
    labels: tuple[int, ...]
    """One per sample: the number of its class."""
    classes: tuple[str, ...]
    """Names, by number."""

    def __len__(self) -> int:
        return len(self.paths)

    def first(self, number: int | None) -> ImageFiles:
        """Return only the first so many; None: all."""
        return replace(self, paths=self.paths[:number], labels=self.labels[:number])


@dataclass(frozen=True, kw_only=True)
class ImageParts:
    """Both parts of a data set; the classes are those of both."""

    train: ImageFiles
    test: ImageFiles

    @property
    def sizes(self) -> SplitSizes:
        """The number of samples in each."""
        return SplitSizes(train=len(self.train), test=len(self.test))

    def first(self, train_samples: int | None, test_samples: int | None) -> ImageParts:
        """Return only the first samples of each part; None: all."""
        return ImageParts(train=self.train.first(train_samples), test=self.test.first(test_samples))


TEST_SHARE = 0.2
_SEED = 5749  # fixed: accuracies of all runs are about the same test images


def split_classes(root: Path, classes: Sequence[ImageClass]) -> ImageParts:
    """Return a fifth of the images of each class as test images, drawn by a fixed seed.

    Of a class with several images at least one is kept for each part; a class with one trains. Only
    where every class has one image, the test images are drawn from all of them.
    """
    lots = random.Random(_SEED)
    test = {path for image_class in classes for path in _drawn(image_class.paths, lots)}
    if not test:
        everything = [path for image_class in classes for path in image_class.paths]
        test = set(lots.sample(everything, max(1, round(len(everything) * TEST_SHARE))))
    chosen = [
        (image_class, [path in test for path in image_class.paths]) for image_class in classes
    ]
    return ImageParts(
        train=make_files(
            root, classes, (_where(image_class, marks, False) for image_class, marks in chosen)
        ),
        test=make_files(
            root, classes, (_where(image_class, marks, True) for image_class, marks in chosen)
        ),
    )


def make_files(
    root: Path, classes: Sequence[ImageClass], paths: Iterable[Sequence[str]]
) -> ImageFiles:
    """A part of a data set from the paths that it has of each class; classes are in order."""
    of_class = list(paths)
    return ImageFiles(
        root=root,
        paths=tuple(path for some in of_class for path in some),
        labels=tuple(label for label, some in enumerate(of_class) for _ in some),
        classes=tuple(image_class.name for image_class in classes),
    )


def _drawn(paths: Sequence[str], lots: random.Random) -> list[str]:
    if len(paths) == 1:
        return []
    return lots.sample(paths, max(1, round(len(paths) * TEST_SHARE)))


def _where(image_class: ImageClass, marks: Sequence[bool], wanted: bool) -> list[str]:  # noqa: FBT001
    return [path for path, mark in zip(image_class.paths, marks, strict=True) if mark is wanted]
