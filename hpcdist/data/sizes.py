"""How many samples a data set has, as known before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SplitSizes:
    """Number of samples in the two parts of a data set."""

    train: int
    test: int

    def first(self, train_samples: int | None, test_samples: int | None) -> SplitSizes:
        """The sizes when only the first samples of each part are used; None: all."""
        return SplitSizes(
            train=min(self.train, train_samples or self.train),
            test=min(self.test, test_samples or self.test),
        )
