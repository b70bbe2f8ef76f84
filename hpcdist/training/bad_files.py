"""Files that are no images, told in the run's notes as they are met."""

from __future__ import annotations

from hpcdist.data.images.samples import BadFile
from hpcdist.rank.context import RankContext

_NAMED = 20
"""More are met in silence: whoever has so many looks for all of them."""

_COUNTED = frozenset(10**power for power in range(2, 9))


class BadFileNotes:
    """Names the files that this rank skips, each once."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._number = 0

    def __call__(self, bad: BadFile) -> None:
        """A file was met that is no image."""
        self._number += 1
        if self._number <= _NAMED:
            self._context.note(f"skipped, with no part in the loss: {bad}")
        elif self._number in _COUNTED:
            self._context.note(f"{self._number:,} files are skipped so far")
        elif self._number == _NAMED + 1:
            self._context.note(
                f"more than {_NAMED} files are skipped; hpcdist data check names all of them"
            )
