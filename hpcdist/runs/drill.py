"""A drill: the disturbances that an agent brings upon its own run, and what it tells of them.

Only `hpcdist drill` puts a plan into a run's spec.json. No key of a job file, no flag and no
profile stands for one, and a run that is resumed has none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run
from hpcdist.runs.spec import DisturbanceName, DrillPlan
from hpcdist.runs.verdict import UnixTime

SUFFIXES = (
    *(".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".npz", ".tar", ".h5"),
    *(".distcp", ".metadata"),
)
"""Endings of the names of checkpoints; the last two are of the parts of one."""
_PARTS = (".distcp", ".metadata")
_NO_CHECKPOINTS = frozenset({"submitit", "launch", "results", "site-packages", "node_modules"})
_OWN_FILES = frozenset({"function.pkl"})
_MOST_ENTRIES = 20_000
_MOST_FILES = 50


class SavedFile(Struct, frozen=True, kw_only=True):
    """A checkpoint: a file, or a folder of parts."""

    written_s: UnixTime
    read_s: UnixTime
    """As the file system tells; many do so late, or never."""
    size: int
    identity: int
    """Changes where a file is replaced, and not where it is written over."""


class JournalEntry(Struct, frozen=True, kw_only=True):
    """A line of a drill's journal."""

    event: Literal["disturb", "over", "life"]
    """`life`: the job has ended, and what it left is told."""
    time_s: UnixTime
    name: DisturbanceName | None = None
    attempt: int = -1
    node: int = 0
    rank: int | None = None
    step: int | None = None
    """The last step of that rank."""
    saved: dict[str, SavedFile] = {}
    """The newest checkpoints then, by path."""
    is_heeded: bool = False
    """Of the warning: the ranks listen for it."""
    damaged: str | None = None
    """The checkpoint that was damaged."""
    limit_bytes: int | None = None
    """Of a full disk: no file may be larger."""
    outcome: str | None = None


def journal_file(run: Run) -> Path:
    return run.events_folder / "drill.jsonl"


def read_journal(run: Run) -> list[JournalEntry]:
    """Return what a drill has told so far; nothing of what is none of its lines."""
    try:
        events = read_events(journal_file(run)).events
    except OSError:
        return []
    entries = []
    for event in events:
        try:
            entries.append(msgspec.convert(event, JournalEntry))
        except msgspec.ValidationError:
            continue
    return entries


def note_listening(run: Run, attempt: int, node: int) -> None:
    """Note that ranks of a node listen for the warning of the time limit."""
    (run.launch_folder / f"{_listening(attempt)}{node}").touch(files.PRIVATE_FILE)


def is_listened_for(run: Run, attempt: int) -> bool:
    """Return whether ranks of another node listen for the warning."""
    files.refresh(run.launch_folder)
    return any(name.startswith(_listening(attempt)) for name in files.list_names(run.launch_folder))


def _listening(attempt: int) -> str:
    return f"listens-{attempt}-"


def is_checkpoint_name(name: str) -> bool:
    """Return whether a file of this name may be a checkpoint, or a part of one."""
    is_hidden = name.startswith(".") and name not in _PARTS
    return name.endswith(SUFFIXES) and name not in _OWN_FILES and not is_hidden


def find_saved(run: Run, plan: DrillPlan) -> dict[str, SavedFile]:
    """Return the newest checkpoints that a run has saved, oldest first: in its directory, its
    working directory, and where its user said."""
    try:
        begin_s = (run.attempts_folder / "00000" / "begin.json").stat().st_mtime
    except OSError:  # it has not begun
        return {}
    own = [str(run.path), *([plan.work_folder] if plan.work_folder else [])]
    found: dict[str, list[os.stat_result]] = {}
    for place, status in _files([*own, *plan.folders]):
        if status.st_mtime >= begin_s:
            found.setdefault(place, []).append(status)
    saved = {place: _saved(statuses) for place, statuses in found.items()}
    newest = sorted(saved.items(), key=lambda each: each[1].written_s)
    return dict(newest[-_MOST_FILES:])


def is_newer(saved: Mapping[str, SavedFile], before: Mapping[str, SavedFile]) -> bool:
    """Return whether something was saved since; reading changes nothing."""
    return any(
        path not in before or before[path].written_s != file.written_s
        for path, file in saved.items()
    )


def is_own(run: Run, plan: DrillPlan, path: str) -> bool:
    """Return whether a file is in a folder that the drill has made."""
    own = [str(run.path), *([plan.work_folder] if plan.work_folder else [])]
    real = os.path.realpath(path)
    return any(real.startswith(f"{os.path.realpath(folder)}{os.sep}") for folder in own)


def largest_part(path: str) -> Path:
    """Return the file that a checkpoint is, or the largest of those in its folder."""
    place = Path(path)
    parts = [part for part in place.iterdir() if part.is_file()] if place.is_dir() else [place]
    return max(parts, key=lambda part: part.stat().st_size)


def _saved(statuses: Sequence[os.stat_result]) -> SavedFile:
    return SavedFile(
        written_s=max(status.st_mtime for status in statuses),
        read_s=max(status.st_atime for status in statuses),
        size=sum(status.st_size for status in statuses),
        identity=max(status.st_ino for status in statuses),
    )


def _files(folders: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of checkpoints, each with the checkpoint that it is, or is a part of."""
    num_left = _MOST_ENTRIES
    for folder in folders:
        for place, inner, names in os.walk(folder):
            num_left -= len(inner) + len(names)
            if num_left < 0:
                return
            inner[:] = [
                one for one in inner if one not in _NO_CHECKPOINTS and not one.startswith(".")
            ]
            has_parts = any(name.endswith(_PARTS) for name in names)
            for name in filter(is_checkpoint_name, names):
                path = os.path.join(place, name)
                try:
                    status = os.lstat(path)
                except OSError:  # replaced a moment ago
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield place if has_parts else path, status
