"""The snapshots beside the runs: each stored once, whole or not at all.

<runs>/.snapshots/
  <id>/          files, readable only; folders can be written to, for what a job leaves in them
  <id>.json      the manifest: every file with size and hash, where it was taken from; its time of
                 change is when a submission used the snapshot last
  .<id>.<token>  being copied, or being removed
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunDirectoryError
from hpcdist.base.ownership import doors, is_own
from hpcdist.base.trees import Tree, list_tree, open_own_folder, remove_listed
from hpcdist.runs.run import cannot_write
from hpcdist.runs.snapshot import (
    FOLDER,
    Entry,
    SnapshotPlan,
    in_threads,
    is_entry,
    open_file,
    read_through,
)

_FILE = 0o400
_EXECUTABLE = 0o500
_MOST_MANIFEST_BYTES = 250_000_000
"""Size of a manifest that is read, which has a line for each of a million files."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a stored snapshot."""

    id: str
    source: str
    """The work tree."""
    commit: str | None
    created_s: float
    entries: list[Entry]


class SnapshotChangedError(HpcdistError):
    """A file changed after it was read for the plan of the snapshot."""


def store(plan: SnapshotPlan, runs: Path) -> Path:
    """Copy the work tree into the folder of the runs, unless it is there; returns its folder.

    Any number may do so at once. A snapshot that is there is verified, and made whole where files
    were lost or changed. Raises SnapshotChangedError where the work tree is not as planned any
    more; then nothing is left behind.
    """
    folder = plan.folder(runs)
    try:
        folder.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        _check_own(folder)
        with suppress(FileNotFoundError):
            os.utime(manifest_file(folder))  # it is used from now on
        if manifest_file(folder).exists() and folder.is_dir():
            _mend(plan, folder)
        else:
            _store_new(plan, folder)
    except OSError as error:
        raise cannot_write(runs, error) from None
    return folder


def _check_own(folder: Path) -> None:
    """Raise RunDirectoryError where others made the folder of the snapshots, or can write it: a job
    would run what they put there."""
    for place in (folder.parent, folder):
        open_to = [door for door in doors(place) if door.path == place]
        if os.path.lexists(place) and (open_to or not is_own(place)):
            raise RunDirectoryError(
                f"{open_to[0] if open_to else place}: no job is run from a snapshot there",
                hint="name another folder with --runs or HPCDIST_RUNS, or use --no-snapshot",
            )


def manifest_file(folder: Path) -> Path:
    return folder.with_name(folder.name + ".json")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest; None where it is missing or damaged."""
    try:
        content = files.read_bytes(manifest_file(folder), most_bytes=_MOST_MANIFEST_BYTES)
        return files.convert(files.parse_json(content), Manifest)
    except (OSError, msgspec.ValidationError):
        return None


def find_stored(cwd: Path) -> SnapshotPlan | None:
    """Return the stored snapshot that a folder lies in: a laptop's work tree, say, which was sent
    here and is worked in; None elsewhere."""
    here = Path(os.path.realpath(cwd))
    for folder in (here, *here.parents):
        if folder.parent.name == FOLDER and _ID.fullmatch(folder.name) and is_own(folder):
            manifest = read_manifest(folder)
            if manifest is None:
                return None
            return SnapshotPlan(
                id=folder.name,
                root=str(folder),
                cwd=str(here),
                commit=manifest.commit,
                entries=manifest.entries,
                notes=[],
            )
    return None


def unfinished_folder(folder: Path) -> Path:
    """Return a name beside a snapshot's folder that nobody else uses."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def _store_new(plan: SnapshotPlan, folder: Path) -> None:
    copy = unfinished_folder(folder)
    copy.mkdir(mode=files.PRIVATE_FOLDER)
    try:
        _make_folders(plan, copy)
        in_threads(
            lambda entry: _put(plan, entry, os.path.join(copy, entry.path)),
            plan.entries,
            what="copying the work tree",
        )
        manifest = Manifest(
            id=plan.id,
            source=plan.root,
            commit=plan.commit,
            created_s=time.time(),
            entries=plan.entries,
        )
        files.write_json(manifest_file(folder), msgspec.to_builtins(manifest))
        try:
            copy.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            _mend(plan, folder)  # another submission was first, or its manifest had been lost
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _make_folders(plan: SnapshotPlan, folder: Path) -> None:
    for path in sorted({os.path.dirname(entry.path) for entry in plan.entries} - {""}):
        os.makedirs(os.path.join(folder, path), mode=files.PRIVATE_FOLDER, exist_ok=True)


def _mend(plan: SnapshotPlan, folder: Path) -> None:
    """Bring what a folder has lost, or has changed, to what it was; jobs may be running in it."""
    _make_folders(plan, folder)
    whole = in_threads(lambda entry: is_entry(str(folder), entry), plan.entries)
    for entry, is_whole in zip(plan.entries, whole, strict=True):
        if is_whole:
            continue
        path = os.path.join(folder, entry.path)
        copy = os.path.join(os.path.dirname(path), f".hpcdist-{secrets.token_hex(4)}")
        try:
            _put(plan, entry, copy)
            os.replace(copy, path)
        except BaseException:
            Path(copy).unlink(missing_ok=True)
            raise


def _put(plan: SnapshotPlan, entry: Entry, copy: str) -> None:
    if entry.target:
        os.symlink(entry.target, copy)
        return
    source = plan.original(entry)
    try:
        original = open_file(source)
    except OSError as error:
        raise _changed(source, error.strerror) from None
    mode = _EXECUTABLE if entry.executable else _FILE
    with (
        original,
        open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb", buffering=0) as file,
    ):
        if read_through(original, copy_to=file) != (entry.sha256, entry.size_bytes):
            raise _changed(source, "its contents are others")


def _changed(source: str, how: str | None) -> SnapshotChangedError:
    return SnapshotChangedError(
        f"{source} changed while the snapshot was taken: {how}",
        hint="submit again when nothing writes into the work tree, list what is written to in "
        ".gitignore, or use --no-snapshot",
    )


_ID = re.compile(r"[0-9a-f]{32}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.[0-9a-f]{8}")
_SUBMITTING_S = 3600.0
"""So long after its last use a snapshot may be that of a submission that has no run yet."""

_ABANDONED_S = 86400.0


def list_stored(runs: Path) -> list[Path]:
    """Return the folders of all snapshots among these runs."""
    return _folders(runs, _ID)


def list_unfinished(runs: Path) -> list[Path]:
    """Return the copies that were begun a day ago or before, and never finished."""
    if not (found := _folders(runs, _UNFINISHED)):
        return []
    oldest = files.now_by(runs) - _ABANDONED_S
    return [path for path in found if path.lstat().st_mtime < oldest]


def age_s(folder: Path) -> float:
    """Return the seconds since a submission used the snapshot."""
    try:
        return files.now_by(folder.parent) - manifest_file(folder).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def why_not_removable(folder: Path) -> str | None:
    """Return what speaks against removing a snapshot that no run needs, such as files that are not
    of it."""
    manifest = read_manifest(folder)
    if manifest is None:
        return "its manifest is missing or damaged, so it is not known what a job wrote there"
    if age_s(folder) < _SUBMITTING_S:
        return "a submission used it within the last hour"
    own = {entry.path for entry in manifest.entries}
    others = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]  # bytecode does not count
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        paths = (os.path.relpath(os.path.join(parent, name), folder) for name in names + links)
        others += [path for path in paths if path not in own]
    changed = [
        entry.path
        for entry in manifest.entries
        if os.path.lexists(folder / entry.path) and not is_entry(str(folder), entry)
    ]
    if written := sorted([*others, *changed]):
        more = f" and {len(written) - 1:,} more" if len(written) > 1 else ""
        return f"jobs wrote into it: {folder / written[0]}{more} (move them away, or remove them)"
    return None


def remove(tree: Tree) -> str | None:
    """Remove a snapshot as it was listed; returns why it was kept, where a submission took it at
    this moment, say."""
    folder = tree.path
    away = unfinished_folder(folder)
    with open_own_folder(folder.parent) as parent:

        def rename(old: Path, new: Path) -> None:
            os.rename(old.name, new.name, src_dir_fd=parent, dst_dir_fd=parent)

        rename(folder, away)
        if list_tree(away).entries != tree.entries:
            rename(away, folder)
            return "it is not as it was when it was listed"
        # A submission marks the manifest before it looks for the folder: one of the two sees the
        # other.
        is_taken = age_s(folder) < _SUBMITTING_S
        if is_taken and not folder.exists():
            rename(away, folder)
            return "a submission has just used it"
        if not is_taken:
            with suppress(FileNotFoundError):
                os.unlink(manifest_file(folder).name, dir_fd=parent)
        remove_listed(tree, at=away)
        os.rmdir(away.name, dir_fd=parent)
    return "a submission has just used it" if is_taken else None


def remove_unfinished(tree: Tree) -> str | None:
    """Remove a copy that was never finished; returns what of it was not listed, and stays."""
    left = remove_listed(tree)
    if left is None:
        with open_own_folder(tree.path.parent) as parent:
            os.rmdir(tree.path.name, dir_fd=parent)
    return left and f"{left} has come there since it was listed"


def _folders(runs: Path, name: re.Pattern[str]) -> list[Path]:
    if (runs / FOLDER).is_symlink():  # to the snapshots of other runs, perhaps
        return []
    try:
        entries = list(os.scandir(runs / FOLDER))
    except FileNotFoundError:
        return []
    return sorted(
        Path(entry.path)
        for entry in entries
        if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    )
