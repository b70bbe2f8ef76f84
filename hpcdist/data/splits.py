"""The two parts of a data set: their sizes, their image files, and how classes are split.

Known before anything is loaded: imports no torch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.job.spec import Data


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


Classes = Mapping[str, Sequence[str]]
"""Name of a class, which is that of its folder -> its image files, relative to the data set's root;
sorted by folder, then by name, as torchvision does."""


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


@dataclass(frozen=True, kw_only=True)
class ImageParts:
    """Both parts of a data set; the classes are those of both."""

    train: ImageFiles
    test: ImageFiles

    @property
    def sizes(self) -> SplitSizes:
        return SplitSizes(train=len(self.train), test=len(self.test))

    def first(self, train_samples: int | None, test_samples: int | None) -> ImageParts:
        """Return only the first samples of each part; None: all."""

        def cut(part: ImageFiles, number: int | None) -> ImageFiles:
            return replace(part, paths=part.paths[:number], labels=part.labels[:number])

        return ImageParts(train=cut(self.train, train_samples), test=cut(self.test, test_samples))


TEST_SHARE = 0.2
_SEED = 5749  # fixed: accuracies of all runs are about the same test images


def split_classes(root: Path, classes: Classes) -> ImageParts:
    """Return a fifth of the images of each class as test images, drawn by a fixed seed.

    Of a class with several images at least one is kept for each part; a class with one trains. Only
    where every class has one image, the test images are drawn from all of them.
    """
    lots = random.Random(_SEED)
    several = [paths for paths in classes.values() if len(paths) > 1]
    test = {
        path
        for paths in several or [list(chain(*classes.values()))]
        for path in lots.sample(paths, max(1, round(len(paths) * TEST_SHARE)))
    }

    def of(*, is_test: bool) -> ImageFiles:
        part = {
            name: [path for path in paths if (path in test) == is_test]
            for name, paths in classes.items()
        }
        return label_files(root, part)

    return ImageParts(train=of(is_test=False), test=of(is_test=True))


def label_files(root: Path, classes: Classes) -> ImageFiles:
    """Return the files of all classes, which are numbered in their order."""
    return ImageFiles(
        root=root,
        paths=tuple(chain(*classes.values())),
        labels=tuple(label for label, some in enumerate(classes.values()) for _ in some),
        classes=tuple(classes),
    )


def existing_root(data: Data, layout: str) -> Path:
    """Return the folder data.root; JobError, whose hint is `layout`, where it is none."""
    if data.root is None:
        raise JobError(f"data.root is not set, and {data.name} is not bundled", hint=layout)
    root = Path(data.root).expanduser()
    if not root.is_dir():
        raise wrong_root(data, f"there is no folder {root}", layout)
    return root


def wrong_root(data: Data, wrong: str, layout: str) -> JobError:
    """Return the error for a data.root that does not hold what it must."""
    return JobError(f"data.root is {data.root!r}: {wrong}", hint=layout)
