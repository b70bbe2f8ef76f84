"""Which image files a data set consists of, and what each shows; known without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hpcdist.data.sizes import SplitSizes


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
        """Only the first so many; None: all."""
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
        """Only the first samples of each part; None: all."""
        return ImageParts(train=self.train.first(train_samples), test=self.test.first(test_samples))
