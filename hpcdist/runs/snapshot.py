"""The copy of the user's work tree that a run, or all runs of a sweep, start from.

    <runs>/<run or sweep id>/code/    files, readable only; folders can be written to, for what a
                                      job leaves in them

`plan_snapshot` lists the files, by git, and writes nothing; `copy_code` copies them. A file that
has not changed since the last submission is a hard link to the copy that was made then.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.base.secrets import is_secret_file
from hpcdist.base.text import first_few, show_bytes
from hpcdist.runs.run import ID, SWEEP_FILE, Run, cannot_write
from hpcdist.runs.spec import RunSpec

FOLDER = "code"
RECEIVED = re.compile(r"\.tree-[0-9a-f]{8}")
"""Name of a folder with a work tree that a laptop has sent for one command."""
DEFAULT_LIMIT_BYTES = 100e6

_TICK_NS = 2_000_000_000
"""Two changes of a file within this time may have the same time of change."""
_NUM_THREADS = 8  # on a shared file system each file is a wait, not work


class NoWorkTreeError(UserError):
    """The working directory lies in no git work tree, or git cannot tell."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPlan:
    """The files of a work tree that a job gets a copy of."""

    root: str
    """The folder that they are in."""
    source: str
    """The work tree: the same folder, but at a host to which a laptop has sent its work tree."""
    cwd: str
    """The folder within it that the job is submitted from."""
    targets: dict[str, str]
    """Path of each file and link, relative to the root -> where a link points; "" for a file."""
    num_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """Notes for the user."""

    def path_in(self, copy: Path, path: str) -> Path | None:
        """Return the place of a file or a folder in a copy of the work tree; None where it has
        none."""
        parent, name = os.path.split(os.path.abspath(path))
        # Links on the way are resolved, and it itself is not.
        relative = os.path.relpath(os.path.join(os.path.realpath(parent), name), self.root)
        for held, target in self.targets.items():
            is_copied = target != os.path.join(self.source, held)  # what git ignores is linked to
            if is_copied and (relative == "." or f"{held}/".startswith(f"{relative}/")):
                return copy / relative
        return None

    def python_path_in(self, copy: Path, entries: Sequence[str]) -> list[str]:
        """Return entries of sys.path; those in the work tree lead into the copy."""
        return [str((entry and self.path_in(copy, entry)) or entry) for entry in entries]


# What is copied.


def plan_snapshot(
    cwd: Path, *, runs: Path, limit_bytes: float = DEFAULT_LIMIT_BYTES
) -> SnapshotPlan:
    """List the git work tree of `cwd`: tracked and untracked files, with changes not committed.

    What git ignores, such as data or a virtual environment, is not copied but linked to. Folders of
    runs and bytecode are left out, and so are files that hold secrets by their names; a note names
    these.

    Raises NoWorkTreeError, and UserError where the files have more than `limit_bytes`.
    """
    root = find_work_tree(str(cwd))
    listed = sorted(_list_files(root))
    # Runs of other days, too.
    of_runs = ("/spec.json", f"/{SWEEP_FILE}")
    others = {os.path.dirname(path) for path in listed if path.endswith(of_runs)}
    left_out = {folder for folder in others if ID.fullmatch(os.path.basename(folder))}
    left_out.add(os.path.relpath(os.path.realpath(runs), root))
    secret = {path for path in listed if is_secret_file(path) and not _is_out(path, left_out)}
    passed_over = left_out | secret
    links: set[str] = set()
    sizes: dict[str, int] = {}
    for path in listed:
        # Where a link is in the place of a folder, git still lists the files that were in it.
        if _is_out(path, passed_over):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):  # and those that were deleted
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISLNK(status.st_mode):
                links.add(path)
                passed_over.add(path)
            elif stat.S_ISREG(status.st_mode):
                sizes[path] = status.st_size
    _check_size(root, sizes, limit_bytes)
    left_out |= secret
    targets = dict.fromkeys(sizes, "")
    targets |= {path: _target(root, path, left_out) for path in links}
    # git lists a folder whose files are all ignored by a pattern, and then its files as well.
    shapes = ("--others", "--ignored", "--exclude-standard", "--directory")
    ignored = {entry.rstrip("/") for entry in _ls_files(root, *shapes)}
    taken = {place for path in targets for place in (path, *parents_of(path))}
    for path in ignored - taken:
        if ignored.isdisjoint(parents_of(path)) and not _is_out(path, left_out):
            targets[path] = os.path.join(root, path)
    note = (
        f"left out of the snapshot, since it looks secret: {first_few(sorted(secret))}; for a job "
        "that reads it, list it in .gitignore, and the snapshot has a link to the original"
    )
    return SnapshotPlan(
        root=root,
        source=root,
        cwd=os.path.realpath(cwd),
        targets=dict(sorted(targets.items())),
        num_bytes=sum(sizes.values()),
        notes=[note] if secret else [],
    )


def _check_size(root: str, sizes: dict[str, int], limit_bytes: float) -> None:
    if (total := sum(sizes.values())) > limit_bytes:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        listed = ", ".join(f"{path} ({show_bytes(sizes[path])})" for path in largest)
        raise UserError(
            f"the work tree {root} has {show_bytes(total)} in {len(sizes):,} files, more than the "
            f"{show_bytes(limit_bytes)} that a snapshot may have; the largest: {listed}",
            hint="list what the job does not change in .gitignore (it is then linked to), or use "
            "--no-snapshot",
        )


def find_received(cwd: Path) -> SnapshotPlan | None:
    """Return the plan for a folder in a work tree that a laptop has sent; None elsewhere."""
    here = Path(os.path.realpath(cwd))
    for root in (here, *here.parents):
        if RECEIVED.fullmatch(root.name) and is_own(root):
            targets = {path: target for path, _, target in walk(root)}
            return SnapshotPlan(
                root=str(root), source=str(root.parent), cwd=str(here), targets=targets
            )
    return None


def _open_original(path: str) -> FileIO:
    try:
        return files.open_regular(path, most_bytes=math.inf, flags=os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read for the snapshot: {error.strerror}",
            hint="make it readable, list it in .gitignore, or use --no-snapshot",
        ) from None


def _target(root: str, path: str, left_out: set[str]) -> str:
    """Return where the copy of a link points: within the snapshot, or else as the link."""
    folder = os.path.dirname(path)
    target = os.readlink(os.path.join(root, path))
    within = os.path.relpath(os.path.normpath(os.path.join(root, folder, target)), root)
    if within.split("/")[0] == ".." or _is_out(within, left_out):
        return os.path.join(root, folder, target)
    return os.path.relpath(within, folder or ".") if os.path.isabs(target) else target


def _is_out(path: str, left_out: set[str]) -> bool:
    if path.endswith(".pyc") or "__pycache__" in path.split("/"):
        return True
    return not left_out.isdisjoint([path, *parents_of(path)])


def parents_of(path: str) -> list[str]:
    """Return the folders above a path, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


# The copy.


def copy_code(plan: SnapshotPlan, owner: Path) -> None:
    """Copy a work tree into the folder of a run or a sweep, which nobody else knows yet. Raises
    UserError where a file cannot be read any more, and RunDirectoryError."""
    copy = owner / FOLDER
    # One that a laptop has sent was made for this command, and can be linked to itself.
    former = Path(plan.root) if plan.root != plan.source else _find_last_copy(owner.parent)
    from concurrent.futures import ThreadPoolExecutor

    try:
        copy.mkdir(mode=files.PRIVATE_FOLDER)
        for path in sorted({os.path.dirname(path) for path in plan.targets} - {""}):
            os.makedirs(copy / path, mode=files.PRIVATE_FOLDER, exist_ok=True)
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            done = pool.map(lambda path: _put(plan, path, copy, former), plan.targets)
            for _ in track(done, "copying the work tree", total=len(plan.targets)):
                pass
    except OSError as error:
        raise cannot_write(owner.parent, error) from None


def _put(plan: SnapshotPlan, path: str, copy: Path, former: Path | None) -> None:
    if plan.targets[path]:
        os.symlink(plan.targets[path], copy / path)
        return
    with _open_original(os.path.join(plan.root, path)) as original:
        status = os.fstat(original.fileno())
        mode = 0o500 if status.st_mode & stat.S_IXUSR else 0o400
        wanted = (stat.S_IFREG | mode, os.geteuid(), status.st_size, status.st_mtime_ns)
        if former is not None:
            with suppress(OSError):  # the file is new, or the file system has no hard links
                last = os.lstat(former / path)
                is_same = (last.st_mode, last.st_uid, last.st_size, last.st_mtime_ns) == wanted
                if is_same and last.st_ctime_ns - last.st_mtime_ns > _TICK_NS:
                    os.link(former / path, copy / path, follow_symlinks=False)
                    return
        descriptor = os.open(copy / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(original, file)
        os.utime(copy / path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _find_last_copy(runs: Path) -> Path | None:
    """Return the copy of a work tree that was made last among these runs; None without one."""
    with suppress(OSError):
        names = [name for name in files.list_names(runs) if ID.fullmatch(name)]
        names.sort(key=lambda name: re.findall(r"-\d{8}-\d{6}-", name)[-1], reverse=True)
        return next((copy for name in names if is_own(copy := runs / name / FOLDER)), None)
    return None


def find_code(run: Run, spec: RunSpec | None) -> Path | None:
    """Return the copy that a run starts from, its own or its sweep's; None if it is not there, or
    another user's."""
    if spec is None or spec.snapshot is None or spec.snapshot.folder is None:
        return None
    owner = Path(spec.snapshot.folder).parent.name
    copy = run.path.parent / owner / FOLDER
    is_there = owner != ".." and not copy.parent.is_symlink() and not copy.is_symlink()
    return copy if is_there and is_own(copy.parent) and is_own(copy) else None


def read_contents(copy: Path) -> dict[str, str]:
    """Return the digest of each file in a copy, and where links lead, without what jobs wrote."""
    found = {}
    for path, status, target in walk(copy):
        if target:
            found[path] = f"link to {target}"
        elif not status.st_mode & stat.S_IWUSR:  # as only a job's file has it
            with suppress(OSError):
                content = files.read_bytes(copy / path, most_bytes=math.inf)
                found[path] = hashlib.sha256(content).hexdigest()
    return found


def walk(folder: Path) -> Iterator[tuple[str, os.stat_result, str]]:
    """Yield path, status and target of all files and links, in order; links are not followed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *folders]):
            place = os.path.join(parent, name)
            with suppress(FileNotFoundError):  # removed at this moment
                status = os.lstat(place)
                is_link = stat.S_ISLNK(status.st_mode)
                if is_link or stat.S_ISREG(status.st_mode):
                    target = os.readlink(place) if is_link else ""
                    yield os.path.relpath(place, folder), status, target


# git.

_TIMEOUT_S = 60.0


def find_work_tree(cwd: str) -> str:
    """Return the root of the work tree that `cwd` lies in; NoWorkTreeError where there is none."""
    return run_git(cwd, ["rev-parse", "--show-toplevel"]).removesuffix("\n")


def _list_files(folder: str, prefix: str = "") -> Iterator[str]:
    """Yield the files that git lists, also of nested work trees, and tracked ones that are gone."""
    for entry in _ls_files(folder, "--cached", "--others", "--exclude-standard"):
        path = os.path.join(folder, entry.rstrip("/"))
        # A submodule, or a work tree that lies in this one: git lists the folder alone.
        if os.path.lexists(os.path.join(path, ".git")):
            if not os.path.islink(path):
                yield from _list_files(path, f"{prefix}{entry.rstrip('/')}/")
        elif not entry.endswith("/"):
            yield prefix + entry


def _ls_files(folder: str, *arguments: str) -> set[str]:
    return set(run_git(folder, ["ls-files", "-z", *arguments]).split("\0")) - {""}


def run_git(folder: str, arguments: Sequence[str], *, limit_s: float = _TIMEOUT_S) -> str:
    """Return what git prints in a folder, without any program that the repository's settings name:
    .git/config may have come with an archive.

    Raises NoWorkTreeError where git is missing or fails, and HpcdistError where it is silent.
    """
    settings = ["core.fsmonitor=", "core.hooksPath=/dev/null"]
    if "status" in arguments:  # it alone compares contents, by filters
        listed = run_git(folder, ["config", "--list", "-z"], limit_s=limit_s)
        names = (entry.partition("\n")[0] for entry in listed.split("\0"))
        for name in {name.rpartition(".")[0] for name in names if name.startswith("filter.")}:
            if "=" in name:
                raise HpcdistError(f"the git repository of {folder} has the filter {name!r}")
            settings += [f"{name}.{key}" for key in ("clean=", "process=", "required=false")]
    given = [word for setting in settings for word in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *given, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # names of files keep their bytes
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
    if done.returncode:
        said = " ".join(done.stderr.split()).removeprefix("fatal: ")
        raise NoWorkTreeError(
            f"{folder} is in no git work tree that can be read: {said}",
            hint="make one with git init, or submit without a snapshot: --no-snapshot",
        )
    return done.stdout
