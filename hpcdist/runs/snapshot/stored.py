"""The snapshots that are stored: finding those that are not needed, and removing them."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from hpcdist.runs.snapshot.entries import is_entry
from hpcdist.runs.snapshot.plan import FOLDER
from hpcdist.runs.snapshot.store import aside, manifest_file, read_manifest

_ID = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{8}")
_SUBMITTING_S = 3600.0
"""So long after its last use a snapshot may be that of a submission that has no run yet."""

_ABANDONED_S = 86400.0


def list_stored(runs: Path) -> list[Path]:
    """The folders of all snapshots among these runs."""
    return _folders(runs, _ID)


def list_unfinished(runs: Path) -> list[Path]:
    """Copies that were begun a day ago or before, and never finished."""
    return [
        path
        for path in _folders(runs, _UNFINISHED)
        if time.time() - path.lstat().st_mtime > _ABANDONED_S
    ]


def age_s(folder: Path) -> float:
    """Seconds since a submission used the snapshot."""
    try:
        return time.time() - manifest_file(folder).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def why_not_removable(folder: Path) -> str | None:
    """What speaks against removing a snapshot that no run needs: files that are not of it, say."""
    manifest = read_manifest(folder)
    if manifest is None:
        return "its manifest is missing or damaged, so it is not known what a job wrote there"
    if age_s(folder) < _SUBMITTING_S:
        return "a submission used it within the last hour"
    others = _written(folder, {entry.path for entry in manifest.entries})
    changed = [
        entry.path
        for entry in manifest.entries
        if os.path.lexists(folder / entry.path) and not is_entry(str(folder), entry)
    ]
    if found := sorted([*others, *changed]):
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        return f"jobs wrote into it: {folder / found[0]}{more} (move them away, or remove them)"
    return None


def remove(folder: Path) -> str | None:
    """Remove a snapshot; returns why it was kept, where a submission took it at this moment."""
    away = aside(folder)
    folder.rename(away)
    # A submission marks the manifest before it looks for the folder: one of the two sees the other.
    if age_s(folder) < _SUBMITTING_S:
        if folder.exists():
            shutil.rmtree(away)
        else:
            away.rename(folder)
        return "a submission has just used it"
    manifest_file(folder).unlink(missing_ok=True)
    shutil.rmtree(away)
    return None


def _folders(runs: Path, name: re.Pattern[str]) -> list[Path]:
    try:
        entries = list(os.scandir(runs / FOLDER))
    except FileNotFoundError:
        return []
    return sorted(
        Path(entry.path)
        for entry in entries
        if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    )


def _written(folder: Path, known: set[str]) -> list[str]:
    """What is in a snapshot's folder and not of the snapshot; bytecode does not count."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        paths = (os.path.relpath(os.path.join(parent, name), folder) for name in names + links)
        found += [path for path in paths if path not in known]
    return found
