"""What a snapshot of a work tree holds, and what it is called: reads, and writes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import UserError
from hpcdist.base.text import show_bytes
from hpcdist.runs.run import DEFAULT_RUNS, all_runs
from hpcdist.runs.snapshot.entries import Entry, content_id, in_threads, open_file, read_through
from hpcdist.runs.snapshot.tree import find_work_tree, ignored, parents, tracked_and_untracked
from hpcdist.runs.sweep import all_sweeps

FOLDER = ".snapshots"
DEFAULT_LIMIT_BYTES = 100e6

_ID_LENGTH = 32
_LARGEST_SHOWN = 3
_MAX_IGNORED_LINKS = 1000


class SnapshotTooLargeError(UserError):
    """The work tree is larger than snapshots may be."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPlan:
    """A work tree as it was read."""

    id: str
    """Made from the contents: equal trees have one."""
    root: str
    """The work tree."""
    cwd: str
    """The folder within it that the job is submitted from."""
    commit: str | None
    """The commit that is checked out there; None before the first."""
    entries: list[Entry]
    notes: list[str]
    """What the user should know."""

    def folder(self, runs: Path) -> Path:
        """Where the snapshot is among these runs, once it is stored."""
        return runs / FOLDER / self.id

    def cwd_in(self, folder: Path) -> Path:
        """The working directory within the snapshot that is in `folder`."""
        return folder / os.path.relpath(self.cwd, self.root)

    def path_in(self, folder: Path, path: str) -> Path | None:
        """The copy of a file or a folder in the snapshot that is in `folder`; None where there is
        none. A path may go on within a file, which is a zip file then."""
        relative = self._relative(path)
        if relative is None or not any(_overlap(relative, entry.path) for entry in self.files()):
            return None
        return folder / relative

    def python_path_in(self, folder: Path, entries: Sequence[str]) -> list[str]:
        """Entries of sys.path, with those that lead into the work tree leading into the copy."""
        return [self._module_folder(folder, entry) or entry for entry in entries]

    def files(self) -> Iterable[Entry]:
        """What is copied: all but the links to what git ignores."""
        return (entry for entry in self.entries if not self._is_original(entry))

    def _module_folder(self, folder: Path, path: str) -> str | None:
        copy = self.path_in(folder, path) if path else None
        return None if copy is None else str(copy)

    def _relative(self, path: str) -> str | None:
        """A path relative to the root; links on the way to it are resolved, it itself is not."""
        parent, name = os.path.split(os.path.abspath(path))
        relative = os.path.relpath(os.path.join(os.path.realpath(parent), name), self.root)
        return None if relative.split("/")[0] == ".." else relative

    def _is_original(self, entry: Entry) -> bool:
        return entry.target == os.path.join(self.root, entry.path)


def _overlap(path: str, held: str) -> bool:
    """Whether two relative paths are the same, or one is below the other."""
    return path == "." or f"{held}/".startswith(f"{path}/") or path.startswith(f"{held}/")


def plan_snapshot(
    cwd: Path, *, runs: Path, limit_bytes: float = DEFAULT_LIMIT_BYTES
) -> SnapshotPlan:
    """Read the git work tree of `cwd`: tracked and untracked files, with changes not committed.

    What git ignores, such as data or a virtual environment, is not copied but linked to. Folders of
    runs and bytecode are left out.

    Raises:
        NoWorkTreeError: there is no work tree.
        SnapshotTooLargeError: the files have more than `limit_bytes`.

    """
    tree = find_work_tree(str(cwd))
    left_out = _folders_of_runs(tree.root, cwd, runs)
    paths = [path for path in tracked_and_untracked(tree.root) if not _is_out(path, left_out)]
    sizes, links = _look_at(tree.root, paths)
    _check_size(tree.root, {path: status.st_size for path, status in sizes.items()}, limit_bytes)
    originals, notes = _links_to_ignored(tree.root, left_out, [*sizes, *links])
    entries = [
        *in_threads(lambda item: _file(tree.root, *item), list(sizes.items())),
        *(Entry(path=path, target=_target(tree.root, path, left_out)) for path in links),
        *originals,
    ]
    return SnapshotPlan(
        id=content_id(entries)[:_ID_LENGTH],
        root=tree.root,
        cwd=os.path.realpath(cwd),
        commit=tree.commit,
        entries=entries,
        notes=notes,
    )


def _look_at(root: str, paths: Iterable[str]) -> tuple[dict[str, os.stat_result], list[str]]:
    """Files with their status, and symbolic links; what was deleted is not there."""
    found: dict[str, os.stat_result] = {}
    links: list[str] = []
    for path in paths:
        try:
            status = os.lstat(os.path.join(root, path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISLNK(status.st_mode):
            links.append(path)
        elif stat.S_ISREG(status.st_mode):
            found[path] = status
    # A folder may have been replaced by a link: git still lists the files that were in it.
    replaced = set(links)
    return (
        {path: found[path] for path in found if replaced.isdisjoint(parents(path))},
        [path for path in links if replaced.isdisjoint(parents(path))],
    )


def _file(root: str, path: str, status: os.stat_result) -> Entry:
    try:
        with open_file(os.path.join(root, path)) as file:
            sha256, size_bytes = read_through(file)
    except OSError as error:
        raise UserError(
            f"{os.path.join(root, path)} cannot be read for the snapshot: {error.strerror}",
            hint="make it readable, list it in .gitignore, or use --no-snapshot",
        ) from None
    return Entry(
        path=path,
        size_bytes=size_bytes,
        sha256=sha256,
        executable=bool(status.st_mode & stat.S_IXUSR),
    )


def _target(root: str, path: str, left_out: set[str]) -> str:
    """Where the copy of a link points to: within the snapshot, or else where the link points."""
    folder = os.path.dirname(path)
    target = os.readlink(os.path.join(root, path))
    within = os.path.relpath(os.path.normpath(os.path.join(root, folder, target)), root)
    if within.split("/")[0] == ".." or _is_out(within, left_out):
        return os.path.join(root, folder, target)
    return os.path.relpath(within, folder or ".") if os.path.isabs(target) else target


def _check_size(root: str, sizes: dict[str, int], limit_bytes: float) -> None:
    total = sum(sizes.values())
    if total <= limit_bytes:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:_LARGEST_SHOWN]
    shown = ", ".join(f"{path} ({show_bytes(sizes[path])})" for path in largest)
    raise SnapshotTooLargeError(
        f"the work tree {root} has {show_bytes(total)} in {len(sizes):,} files, more than the "
        f"{show_bytes(limit_bytes)} that a snapshot may have; the largest: {shown}",
        hint="list what the job does not change in .gitignore (it is then linked to), raise the "
        "limit with --snapshot-limit MB, or run from the work tree itself with --no-snapshot",
    )


def _links_to_ignored(
    root: str, left_out: set[str], copied: Iterable[str]
) -> tuple[list[Entry], list[str]]:
    """Links that keep what git ignores in reach, and what there is to say about them."""
    taken = {place for path in copied for place in (path, *parents(path))}
    paths = [path for path in ignored(root) if path not in taken and not _is_out(path, left_out)]
    entries = [
        Entry(path=path, target=os.path.join(root, path)) for path in paths[:_MAX_IGNORED_LINKS]
    ]
    missing = len(paths) - len(entries)
    if not missing:
        return entries, []
    note = (
        f"{missing:,} of {len(paths):,} files that git ignores are out of the snapshot's reach; "
        "ignore their folder whole, and it is linked to"
    )
    return entries, [note]


def _folders_of_runs(root: str, cwd: Path, runs: Path) -> set[str]:
    """Folders that are left out, relative to the root, because runs are in them."""
    found: list[Path] = [runs / FOLDER]
    default = cwd / DEFAULT_RUNS
    for folder in (runs, default):
        if os.path.realpath(folder) == root:
            found += [run.path for run in all_runs(folder)] + all_sweeps(folder)
        elif folder == runs or all_runs(folder):
            found.append(folder)
    inside = (os.path.relpath(os.path.realpath(folder), root) for folder in found)
    return {path for path in inside if path != "." and path.split("/")[0] != ".."}


def _is_out(path: str, left_out: set[str]) -> bool:
    if path.endswith(".pyc") or "__pycache__" in path.split("/"):
        return True
    return not left_out.isdisjoint([path, *parents(path)])
