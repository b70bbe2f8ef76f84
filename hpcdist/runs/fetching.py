"""Bringing home a run directory that its nodes have published in parcels (hpcdist/runs/parcels.py).

    <run>/parcels/      the parcels that were brought, by their names, and marks.json: which file of
                        the run was written from which of them

A parcel never changes, so each is brought once, and a fetch that was interrupted goes on. What the
submission wrote, spec.json above all, stays as it is, whatever was published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.base.text import show_bytes
from hpcdist.runs import parcels
from hpcdist.runs.parcels import Entry, FolderSource, Source
from hpcdist.runs.run import Run

_FOLDER = "parcels"
_MARKS = "marks.json"
_CHECKPOINTS = "checkpoints/"
_MOST_UNASKED_BYTES = 1 << 26
"""Larger files are brought where that is asked for, as checkpoints are."""
_MOST_BYTES = 2_000_000_000
"""So much of a run is read into memory, and so much is brought unasked."""
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
    somebody else's, and where more was published than is read."""
    if not is_own(run.path):
        raise RunDirectoryError(
            f"{run.path} is another user's: nothing is downloaded to it",
            hint="its owner can fetch it",
        )
    folder = run.path / _FOLDER
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    names = _bring_parcels(run, source)
    found = parcels.files_of(parcels.read_starts(FolderSource(folder), names))
    marks = files.read_json(folder / _MARKS)
    marks = marks if isinstance(marks, dict) else {}
    before = dict(marks)
    left = {}
    left_bytes = _MOST_BYTES
    beside = Counter(f"{last.folder}/{last.entry.data}" for *_, last in found.values())
    damaged: list[files.DamagedFileError] = []
    try:
        for path in sorted(found, key=lambda path: (path == parcels.VERDICT, path)):
            if path.startswith(_NEVER) or _is_of_this_side(run, path, marks):
                continue
            last = found[path][-1]
            if last.entry.data is not None and beside[f"{last.folder}/{last.entry.data}"] > 1:
                continue  # no node writes a file that stands for several
            left_bytes -= last.entry.offset + last.entry.size
            if (_is_large(path, last.entry) or left_bytes < 0) and not with_checkpoints:
                left[path] = last.entry
                continue
            try:
                marks[path] = parcels.write_file(source, run.path, path, found[path], marks)
            except FileNotFoundError:  # replaced at this moment: the next fetch has it
                continue
            except files.DamagedFileError as error:
                damaged.append(error)
        for path in before.keys() - found.keys():
            _remove(run, path)
            del marks[path]
    finally:
        files.write_json(folder / _MARKS, marks)
    if damaged:
        raise damaged[0]
    written = [path for path, mark in marks.items() if before.get(path) != mark]
    return Fetched(len(written), len(left), sum(entry.size for entry in left.values()))


def _bring_parcels(run: Run, source: Source) -> list[str]:
    """Bring the parcels that are not here yet; return the names of all."""
    folder = run.path / _FOLDER
    sizes = source.sizes()
    names = [
        name for name in parcels.parcel_names(sizes) if sizes[name] <= parcels.MOST_PARCEL_BYTES
    ]
    num_bytes = sum(sizes[name] for name in names)
    if num_bytes > _MOST_BYTES or len(names) > files.MOST_ENTRIES:
        raise RunDirectoryError(
            f"{len(names):,} parcels with {show_bytes(num_bytes)} were published of {run.id}, and "
            f"no more than {files.MOST_ENTRIES:,} with {show_bytes(_MOST_BYTES)} are read",
            hint="copy its folder by hand if you know who wrote it",
        )
    for name in track(names, "fetching"):
        if not (folder / name).is_file():
            parcels.make_folders(folder, name)
            files.write_whole(folder / name, source.read(name))
    return names


def _is_large(path: str, entry: Entry) -> bool:
    is_other = entry.data is not None and entry.size > _MOST_UNASKED_BYTES
    return path.startswith(_CHECKPOINTS) or is_other


def _is_of_this_side(run: Run, path: str, marks: Mapping[str, str]) -> bool:
    """Return whether it is a verdict that was written here, as of a run that was cancelled."""
    return path == parcels.VERDICT and path not in marks and run.verdict_file.exists()


def _remove(run: Run, path: str) -> None:
    """Remove a file that was brought, and is gone where it came from."""
    if parcels.is_wanted(path) and path.startswith(_CHECKPOINTS):
        (run.path / path).unlink(missing_ok=True)
