"""Bringing home a run directory that its nodes have published (hpcdist/runs/publishing.py).

    <run>/fetched.json      the digest of each file that was brought, by its path

What the submission wrote, spec.json above all, stays as it is, whatever was published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.runs.publishing import (
    VERDICT,
    Entry,
    Published,
    Source,
    bring_file,
    files_of,
    is_wanted,
    read_starts,
)
from hpcdist.runs.run import Run

_FETCHED = "fetched.json"
_CHECKPOINTS = "checkpoints/"
_MOST_UNASKED_BYTES = 1 << 26
"""Larger files are brought where that is asked for, as checkpoints are."""
_MOST_BYTES = 2_000_000_000
"""So much of a run is brought unasked."""
_NEVER = "results/"
"""Pickles: whoever can write to the storage could have them run code here."""


class Fetched(NamedTuple):
    """The outcome of a fetch."""

    num_files: int
    """Files that were written."""
    num_left: int
    """Checkpoints and other large files that are still where they were published."""
    left_bytes: int


def fetch(run: Run, source: Source, *, with_checkpoints: bool = False) -> Fetched:
    """Bring what is new. Raises OSError where the source cannot be read, or the run directory
    cannot be written, and once all else is here, where a file is damaged; RunDirectoryError for
    somebody else's."""
    if not is_own(run.path):
        raise RunDirectoryError(
            f"{run.path} is another user's: nothing is downloaded to it",
            hint="its owner can fetch it",
        )
    found = files_of(read_starts(source))
    read = files.read_json(run.path / _FETCHED)
    before: dict[str, str] = read if isinstance(read, dict) else {}
    digests = dict(before)
    wanted, left = _choose(run, found, digests, with_checkpoints=with_checkpoints)
    damaged: files.DamagedFileError | None = None
    num_written = 0
    try:
        for path in track(wanted, "fetching"):
            try:
                bring_file(source, run.path, found[path])
            except FileNotFoundError:  # replaced at this moment: the next fetch has it
                continue
            except files.DamagedFileError as error:
                damaged = damaged or error
                continue
            digests[path] = found[path].entry.sha256
            num_written += 1
        for path in before.keys() - found.keys():
            del digests[path]
            if is_wanted(path) and path.startswith(_CHECKPOINTS):  # it is gone there
                (run.path / path).unlink(missing_ok=True)
    finally:
        files.write_json(run.path / _FETCHED, digests)
    if damaged is not None:
        raise damaged
    return Fetched(num_written, len(left), sum(entry.size for entry in left))


def _choose(
    run: Run,
    found: Mapping[str, Published],
    digests: Mapping[str, str],
    *,
    with_checkpoints: bool,
) -> tuple[list[str], list[Entry]]:
    """Return the files that are to be brought, the verdict last, and those that stay there."""
    wanted, left = [], []
    left_bytes = _MOST_BYTES
    for path in sorted(found, key=lambda path: (path == VERDICT, path)):
        entry = found[path].entry
        # A verdict that was written here stays, as of a run that was cancelled.
        is_of_this_side = path == VERDICT and path not in digests and run.verdict_file.exists()
        if path.startswith(_NEVER) or is_of_this_side:
            continue
        left_bytes -= entry.size
        is_large = path.startswith(_CHECKPOINTS) or entry.size > _MOST_UNASKED_BYTES
        if (is_large or left_bytes < 0) and not with_checkpoints:
            left.append(entry)
        elif digests.get(path) != entry.sha256 or not (run.path / path).is_file():
            wanted.append(path)
    return wanted, left
