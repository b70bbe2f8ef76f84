"""Snapshots: which files of the user's work tree a job gets a copy of.

`plan_snapshot` asks git. Nothing here writes: `hpcdist.runs.code` copies."""

from __future__ import annotations

import math
import os
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.files import open_regular
from hpcdist.base.progress import track
from hpcdist.base.secrets import is_fixture, is_private_key, is_secret_file
from hpcdist.base.text import show_bytes
from hpcdist.runs.run import DEFAULT_RUNS, all_runs
from hpcdist.runs.sweep import all_sweeps

DEFAULT_LIMIT_BYTES = 100e6

_LARGEST_SHOWN = 3
_SECRETS_SHOWN = 5
_KEY_BYTES = 16_384
_MAX_IGNORED_LINKS = 1000


class SnapshotTooLargeError(UserError):
    """The work tree is larger than snapshots may be."""


class Entry(NamedTuple):
    """A file or a symbolic link of a work tree."""

    path: str
    """Relative to the root."""
    size_bytes: int = 0
    is_executable: bool = False
    target: str = ""
    """Where a link points to; empty for a file."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPlan:
    """The files of a work tree that a job gets a copy of."""

    root: str
    """The folder that they are in."""
    source: str
    """The work tree: the same folder, but at a host to which a laptop has sent its work tree."""
    cwd: str
    """The folder within it that the job is submitted from."""
    entries: list[Entry]
    notes: list[str]
    """Notes for the user."""

    def path_in(self, copy: Path, path: str) -> Path | None:
        """Return the place of a file or a folder in a copy of the work tree; None where it has
        none. A path may go on within a file, which is a zip file then."""
        parent, name = os.path.split(os.path.abspath(path))
        # Links on the way are resolved, and it itself is not.
        relative = os.path.relpath(os.path.join(os.path.realpath(parent), name), self.root)
        for entry in self.entries:
            # What git ignores is a link to the original.
            is_copied = entry.target != os.path.join(self.source, entry.path)
            held = f"{entry.path}/"
            if is_copied and (
                relative == "." or held.startswith(f"{relative}/") or relative.startswith(held)
            ):
                return copy / relative
        return None

    def python_path_in(self, copy: Path, entries: Sequence[str]) -> list[str]:
        """Return entries of sys.path, with those that lead into the work tree leading into the
        copy."""
        return [str((entry and self.path_in(copy, entry)) or entry) for entry in entries]


def plan_snapshot(
    cwd: Path, *, runs: Path, limit_bytes: float = DEFAULT_LIMIT_BYTES
) -> SnapshotPlan:
    """List the git work tree of `cwd`: tracked and untracked files, with changes not committed.

    What git ignores, such as data or a virtual environment, is not copied but linked to. Folders of
    runs and bytecode are left out, and so are files that hold secrets, which a note names.

    Raises:
        NoWorkTreeError: there is no work tree.
        SnapshotTooLargeError: the files have more than `limit_bytes`.

    """
    root = find_work_tree(str(cwd))
    left_out = _folders_of_runs(root, cwd, runs)
    paths = [path for path in _list_files(root, _LISTED) if not _is_out(path, left_out)]
    secret = {path for path in paths if is_secret_file(path)}
    left_out |= secret
    statuses, links = _look_at(root, [path for path in paths if path not in secret])
    _check_size(root, {path: status.st_size for path, status in statuses.items()}, limit_bytes)
    originals, notes = _links_to_ignored(root, left_out, [*statuses, *links])
    are_keys = in_threads(lambda path: _is_key(root, path), list(statuses))
    secret.update(path for path, is_key in zip(statuses, are_keys, strict=True) if is_key)
    return SnapshotPlan(
        root=root,
        source=root,
        cwd=os.path.realpath(cwd),
        entries=[
            *(
                Entry(path, status.st_size, bool(status.st_mode & stat.S_IXUSR))
                for path, status in statuses.items()
                if path not in secret
            ),
            *(Entry(path, target=_target(root, path, left_out)) for path in links),
            *originals,
        ],
        notes=[*notes, *_notes_on_secrets(sorted(secret))],
    )


def _notes_on_secrets(paths: Sequence[str]) -> list[str]:
    if not paths:
        return []
    more = len(paths) - _SECRETS_SHOWN
    shown = ", ".join(paths[:_SECRETS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
    note = (
        f"left out of the snapshot, since it looks secret: {shown}; for a job that reads it, list "
        "it in .gitignore, and the snapshot has a link to the original"
    )
    return [note]


def _look_at(root: str, paths: Iterable[str]) -> tuple[dict[str, os.stat_result], list[str]]:
    """Return files with their status, and symbolic links; what was deleted is not there."""
    statuses: dict[str, os.stat_result] = {}
    links: list[str] = []
    for path in paths:
        try:
            status = os.lstat(os.path.join(root, path))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISLNK(status.st_mode):
            links.append(path)
        elif stat.S_ISREG(status.st_mode):
            statuses[path] = status
    # A folder may have been replaced by a link: git still lists the files that were in it.
    replaced = set(links)
    return (
        {path: statuses[path] for path in statuses if replaced.isdisjoint(parents_of(path))},
        [path for path in links if replaced.isdisjoint(parents_of(path))],
    )


def _is_key(root: str, path: str) -> bool:
    """Return whether the content of a file is a private key."""
    place = os.path.join(root, path)
    with open_original(place) as file:
        return is_private_key(os.pread(file.fileno(), _KEY_BYTES, 0)) and not is_fixture(path)


def open_original(path: str) -> FileIO:
    """Open a file of the work tree; UserError where that cannot be done."""
    try:
        return open_regular(path, most_bytes=math.inf, flags=os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read for the snapshot: {error.strerror}",
            hint="make it readable, list it in .gitignore, or use --no-snapshot",
        ) from None


def _target(root: str, path: str, left_out: set[str]) -> str:
    """Return where the copy of a link points to: within the snapshot, or else where the link
    points."""
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
    listed = ", ".join(f"{path} ({show_bytes(sizes[path])})" for path in largest)
    raise SnapshotTooLargeError(
        f"the work tree {root} has {show_bytes(total)} in {len(sizes):,} files, more than the "
        f"{show_bytes(limit_bytes)} that a snapshot may have; the largest: {listed}",
        hint="list what the job does not change in .gitignore (it is then linked to), raise the "
        "limit with --snapshot-limit MB, or run from the work tree itself with --no-snapshot",
    )


def _links_to_ignored(
    root: str, left_out: set[str], copied: Iterable[str]
) -> tuple[list[Entry], list[str]]:
    """Return links that keep what git ignores in reach, and what there is to say about them."""
    # git lists a folder whose files are all ignored by a pattern, and then its files as well.
    ignored = {entry.rstrip("/") for entry in _ls_files(root, _IGNORED)} - {""}
    whole = sorted(path for path in ignored if ignored.isdisjoint(parents_of(path)))
    taken = {place for path in copied for place in (path, *parents_of(path))}
    paths = [path for path in whole if path not in taken and not _is_out(path, left_out)]
    entries = [Entry(path, target=os.path.join(root, path)) for path in paths[:_MAX_IGNORED_LINKS]]
    missing = len(paths) - len(entries)
    if not missing:
        return entries, []
    note = (
        f"{missing:,} of {len(paths):,} files that git ignores are out of the snapshot's reach; "
        "ignore their folder whole, and it is linked to"
    )
    return entries, [note]


def _folders_of_runs(root: str, cwd: Path, runs: Path) -> set[str]:
    """Return folders that are left out, relative to the root, because runs are in them."""
    folders: list[Path] = []
    default = cwd / DEFAULT_RUNS
    for folder in (runs, default):
        if os.path.realpath(folder) == root:
            folders += [run.path for run in all_runs(folder)] + all_sweeps(folder)
        elif folder == runs or all_runs(folder):
            folders.append(folder)
    inside = (os.path.relpath(os.path.realpath(folder), root) for folder in folders)
    return {path for path in inside if path != "." and path.split("/")[0] != ".."}


def _is_out(path: str, left_out: set[str]) -> bool:
    if path.endswith(".pyc") or "__pycache__" in path.split("/"):
        return True
    return not left_out.isdisjoint([path, *parents_of(path)])


def parents_of(path: str) -> list[str]:
    """Return the folders above a path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


_NUM_THREADS = 8  # on a shared file system each file is a wait, not work

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    what: str = "reading files",
) -> list[Result]:
    """Return the function's results in order, the files being read side by side."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return list(track(pool.map(function, items), what, total=len(items)))


_TIMEOUT_S = 60.0
_LISTED = ("--cached", "--others", "--exclude-standard")
_IGNORED = ("--others", "--ignored", "--exclude-standard", "--directory")


class NoWorkTreeError(UserError):
    """The working directory lies in no git work tree, or git cannot tell."""


def find_work_tree(cwd: str) -> str:
    """Return the root of the work tree that `cwd` lies in; NoWorkTreeError where there is none."""
    done = run_git(cwd, ["rev-parse", "--show-toplevel"])
    root = os.fsdecode(done.stdout).removesuffix("\n")
    if not root:
        said = _said(done)  # where there simply is no repository, the same once more
        why = "" if said.startswith("not a git repository") else f" that can be read: {said}"
        raise NoWorkTreeError(
            f"{cwd} is in no git work tree{why}",
            hint="make one with git init, or submit without a snapshot: --no-snapshot",
        )
    return root


def _list_files(folder: str, arguments: Sequence[str], prefix: str = "") -> list[str]:
    """Return the files that git lists, those of nested work trees too; one that is tracked but
    deleted is still among them."""
    files: list[str] = []
    for entry in sorted(set(_ls_files(folder, arguments))):
        path = os.path.join(folder, entry)
        is_tree = os.path.lexists(os.path.join(path, ".git"))
        # A submodule, or a work tree that lies in this one: git lists the folder alone.
        if entry.endswith("/") or is_tree:
            name = entry.rstrip("/")
            if is_tree and not os.path.islink(path):
                files += _list_files(os.path.join(folder, name), arguments, f"{prefix}{name}/")
        else:
            files.append(prefix + entry)
    return files


def _ls_files(folder: str, arguments: Sequence[str]) -> list[str]:
    done = run_git(folder, ["ls-files", "-z", *arguments])
    if done.returncode:
        raise HpcdistError(
            f"git cannot list the files of {folder}: {_said(done)}",
            hint="see git status there, or submit without a snapshot: --no-snapshot",
        )
    return [os.fsdecode(entry) for entry in done.stdout.split(b"\0") if entry]


def run_git(
    folder: str, arguments: Sequence[str], *, limit_s: float = _TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, without any program that the repository's settings name: .git/config
    may have come with an archive. Raises HpcdistError where git is missing or does not answer."""
    settings = ["core.fsmonitor=", "core.hooksPath=/dev/null"]
    if "status" in arguments:  # it alone compares contents
        listed = _call_git(folder, settings, ["config", "--list", "-z"], limit_s).stdout
        names = {entry.partition("\n")[0] for entry in os.fsdecode(listed).split("\0")}
        filters = {name.rpartition(".")[0] for name in names if name.startswith("filter.")}
        if odd := next((each for each in filters if "=" in each), None):
            raise HpcdistError(f"the git repository of {folder} has the filter {odd!r}")
        settings += [
            f"{each}.{key}" for each in filters for key in ("clean=", "process=", "required=false")
        ]
    return _call_git(folder, settings, arguments, limit_s)


def _call_git(
    folder: str, settings: Sequence[str], arguments: Sequence[str], limit_s: float
) -> subprocess.CompletedProcess[bytes]:
    given = [word for setting in settings for word in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", "--no-optional-locks", *given, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError:
        raise NoWorkTreeError(
            "git is not installed, and says what a snapshot consists of",
            hint="install git, or submit without a snapshot: --no-snapshot",
        ) from None
    except subprocess.TimeoutExpired:
        raise HpcdistError(
            f"git {arguments[0]} has not answered after {limit_s:.0f} s in {folder}",
            hint="see whether the file system answers, or use --no-snapshot",
        ) from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    text = " ".join(done.stderr.decode(errors="replace").split())
    return text.removeprefix("fatal: ") or f"exit code {done.returncode}"
